"""What ``eks-fsdp check-nodes`` runs in a node's pod: its devices, and all-reduces of torchrun's ranks.

``python -m eks_fsdp.trainer.check_nodes devices`` prints one line of JSON with what the pod sees of GPUs and EFA.
``torchrun ... -m eks_fsdp.trainer.check_nodes reduce`` measures; rank 0 prints one line for each message size.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from eks_fsdp.spec.bandwidth import bus_bandwidth
from eks_fsdp.spec.records import CHECK_KEY

from . import transport

TOOL_SECONDS = 60.0
WARM_UP = 5
"""All-reduces before the clock starts: NCCL builds its connections in the first."""
REPEATS = 20
"""All-reduces under the clock."""
MIB = 1024**2


def devices() -> dict[str, object]:
    """What the pod sees. None: the tool that would tell is not there."""
    smi = _output(["nvidia-smi", "-L"])
    fi = _output(["fi_info", "-p", "efa", "-t", "FI_EP_RDM"])
    return {
        CHECK_KEY: "devices",
        "gpus": None if smi is None else len(re.findall(r"^GPU \d+:", smi, re.MULTILINE)),
        "efa_devices": len(list(Path("/dev/infiniband").glob("uverbs*"))),
        "efa_domains": None if fi is None else len(set(re.findall(r"^\s*domain: (\S+)", fi, re.MULTILINE))),
    }


def _output(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def reduce(backend: str, sizes: Sequence[int], timeout: float) -> None:
    """All-reduce buffers of ``sizes`` bytes over all ranks, and print what rank 0 measured. Raises on a wrong sum."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    # Named for NCCL alone: its communicator is built at once then, and a barrier knows its GPU.
    bound = device if device.type == "cuda" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=bound)
    try:
        rank, ranks = dist.get_rank(), dist.get_world_size()

        def settle() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()

        for size in sizes:
            buffer = torch.full((max(1, size // 4),), 1.0, device=device)
            dist.all_reduce(buffer)
            wrong = int((buffer != float(ranks)).sum())
            if wrong:
                raise SystemExit(f"rank {rank}: {wrong} of {buffer.numel()} sums are wrong")
            # Zeros stay zeros, however often they are summed up.
            buffer.zero_()
            for _ in range(WARM_UP):
                dist.all_reduce(buffer)
            settle()
            began = time.perf_counter()
            for _ in range(REPEATS):
                dist.all_reduce(buffer)
            settle()
            seconds = (time.perf_counter() - began) / REPEATS
            if rank == 0:
                row = {
                    CHECK_KEY: "reduce",
                    "ranks": ranks,
                    "bytes": buffer.numel() * 4,
                    "seconds": seconds,
                    "gb_per_second": bus_bandwidth(buffer.numel() * 4, seconds, ranks) if ranks > 1 else None,
                    "transport": transport.detect(backend),
                }
                print(json.dumps(row), flush=True)
    finally:
        dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="check_nodes")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("devices")
    measured = commands.add_parser("reduce")
    measured.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    measured.add_argument("--mib", type=float, nargs="+", required=True, help="Message sizes in MiB.")
    measured.add_argument("--timeout", type=float, default=60.0, help="Seconds for one collective.")
    asked = parser.parse_args(arguments)
    if asked.command == "devices":
        print(json.dumps(devices()), flush=True)
    else:
        reduce(asked.backend, [int(mib * MIB) for mib in asked.mib], asked.timeout)


if __name__ == "__main__":
    main(sys.argv[1:])
