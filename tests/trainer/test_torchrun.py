"""The whole: torchrun, its agents and the etcd-v3 rendezvous, with workers that are killed."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from .conftest import Agents, Finished, RankServer

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
