"""The whole: torchrun, its agents and the etcd-v3 rendezvous, with workers that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from .conftest import ENVIRONMENT, SMALL, Agents, Etcd, Finished, RankServer, wait_until

STEPS = "12"
FLAGS = ["--steps", STEPS, "--data.sequence_length", "128"]


@pytest.fixture(scope="module")
def reference(ranks: RankServer) -> Finished:
    return ranks.run(1, *FLAGS, "--micro_batch_size", "12").succeeded()


def test_workers_killed_with_and_without_restarts_left(agents: Agents, tmp_path: Path, reference: Finished) -> None:
    run_id = uuid.uuid4().hex
    flags = [*FLAGS, "--checkpoint.directory", str(tmp_path / "c"), "--checkpoint.every", "1"]
    agents.start(run_id, 2, 0, *flags)
    agents.wait_for_step(3)
    os.kill(agents.worker(0), signal.SIGKILL)
    failed = agents.finish()
    assert failed.codes == [1, 1], failed.err

    # With no restarts left both containers end, and the kubelet starts both again, under the same id.
    agents.start(run_id, 2, 1, *flags)
    agents.wait_for_step(6)
    os.kill(agents.worker(1), signal.SIGKILL)
    run = agents.finish()
    assert run.codes == [0, 0], run.err
    assert "RendezvousClosedError" not in failed.err + run.err
    starts = run.rows("start")
    assert [row["restart_count"] for row in starts] == [0, 1]
    assert [row["world_size"] for row in starts] == [2, 2]
    assert starts[0]["resumed_from_step"] >= 2
    assert starts[1]["resumed_from_step"] >= 5
    losses = {row["step"]: row["loss"] for row in failed.rows("step") + run.rows("step")}
    assert [losses[step] for step in range(1, int(STEPS) + 1)] == pytest.approx(reference.losses, abs=1e-3)
    assert len(run.rows("end")) == 1


def test_sigterm_to_an_agent_saves(agents: Agents, tmp_path: Path) -> None:
    agents.start(uuid.uuid4().hex, 1, 0, "--steps", "9000", "--checkpoint.directory", str(tmp_path / "c"))
    agents.wait_for_step(2)
    agents.processes[0].send_signal(signal.SIGTERM)
    run = agents.finish()
    assert run.codes == [1]
    last = run.rows("step")[-1]["step"]
    assert f"asked to stop: after step {last}, saved" in run.err
    assert (tmp_path / "c" / f"step-{last:08d}" / "COMMITTED").exists()


def test_sigterm_ends_an_agent_that_waits_for_others(etcd: Etcd) -> None:
    """As the first process of a container, for which the kernel drops signals that are not handled."""
    waiting = subprocess.Popen(
        [
            *("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"),
            *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=etcd-v3"),
            *(f"--rdzv-endpoint={etcd.endpoint}", f"--rdzv-id={uuid.uuid4().hex}", "--nnodes=2"),
            *("--local-addr=127.0.0.1", "-m", "eks_fsdp.trainer", *SMALL),
        ],
        env={**ENVIRONMENT, "PET_RDZV_BACKEND": "etcd-v3"},
        stderr=subprocess.DEVNULL,
    )
    try:
        children = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children")

        def handles_sigterm() -> bool:
            first = children.read_text().split()
            status = Path(f"/proc/{first[0]}/status").read_text() if first else ""
            caught = re.search(r"SigCgt:\s*(\w+)", status)
            return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

        wait_until(handles_sigterm, "the agent waits and handles SIGTERM")
        os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
        assert waiting.wait(20) == 128 + signal.SIGTERM
    finally:
        waiting.kill()
        waiting.wait()
