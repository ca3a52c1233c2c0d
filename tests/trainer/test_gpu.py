"""What only a GPU shows: the same program on CUDA with NCCL."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from .conftest import ENVIRONMENT, rows_in

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_training_on_every_gpu_of_this_machine(strategy: str) -> None:
    gpus = torch.cuda.device_count()
    environment = {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    if not environment["CUDA_VISIBLE_DEVICES"]:
        del environment["CUDA_VISIBLE_DEVICES"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"),
            *("-m", "eks_fsdp.trainer", "--strategy", strategy, "--steps", "20", "--param_dtype", "bfloat16"),
            *("--global_batch_size", str(8 * gpus), "--micro_batch_size", "4"),
        ],
        env={**environment, "EKS_FSDP_TRANSPORT": "tcp"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    (start,) = rows_in(done.stdout, "start")
    steps = rows_in(done.stdout, "step")
    assert start["device"] != "cpu"
    assert start["transport"] == "tcp"
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert all(row["mfu"] is None or 0 < row["mfu"] < 1 for row in steps)
