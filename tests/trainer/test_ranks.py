"""The trainer on one and several gloo ranks: it computes what one process computes, and goes on where it was."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from .conftest import Finished, RankServer


@pytest.fixture(scope="module")
def alone(ranks: RankServer) -> Finished:
    """One process, no accumulation: the reference."""
    return ranks.run(1, "--steps", "4", "--micro_batch_size", "12").succeeded()


@pytest.mark.parametrize(
    ("size", "micro", "flags"),
    [
        (1, 1, ["--strategy", "FULL_SHARD"]),
        (4, 3, ["--strategy", "FULL_SHARD"]),
        (4, 1, ["--strategy", "FULL_SHARD", "--reshard_after_forward", "2", "--prefetch", "2"]),
        (2, 3, ["--strategy", "SHARD_GRAD_OP", "--activation_checkpointing", "full"]),
        (4, 1, ["--strategy", "HYBRID_SHARD", "--shard_group", "2", "--activation_checkpointing", "selective-op"]),
        (4, 3, ["--strategy", "HYBRID_SHARD_ZERO2", "--shard_group", "2", "--activation_checkpointing", "every-2"]),
        (1, 6, ["--strategy", "NO_SHARD"]),
        (2, 3, ["--strategy", "NO_SHARD", "--loss_chunk_tokens", "50"]),
        (2, 3, ["--cpu_offload", "true"]),
    ],
)
def test_every_layout_computes_what_one_process_computes(
    ranks: RankServer, alone: Finished, size: int, micro: int, flags: list[str]
) -> None:
    run = ranks.run(size, "--steps", "4", "--micro_batch_size", str(micro), *flags).succeeded()
    assert run.losses == pytest.approx(alone.losses, abs=1e-4)
    assert run.norms == pytest.approx(alone.norms, rel=1e-4)
    (start,) = run.rows("start")
    strategy = flags[1] if flags[0] == "--strategy" else "FULL_SHARD"
    assert (start["world_size"], start["transport"], start["strategy"]) == (size, "gloo", strategy)
    assert start["accumulation"] == 12 // (size * micro)
    assert [row["step"] for row in run.rows("step")] == [1, 2, 3, 4]
    assert all(row["mfu"] is None and row["tokens"] == 12 * 32 for row in run.rows("step"))
    assert run.rows("end")[0]["final_loss"] == run.losses[-1]


def test_bfloat16_with_float32_master_weights(ranks: RankServer, alone: Finished) -> None:
    run = ranks.run(2, "--steps", "4", "--param_dtype", "bfloat16").succeeded()
    assert run.losses == pytest.approx(alone.losses, rel=1e-2)


def test_loss_falls(ranks: RankServer) -> None:
    run = ranks.run(1, "--steps", "12", "--micro_batch_size", "12").succeeded()
    assert run.losses[-1] < run.losses[0] - 1.0


def test_evaluation_does_not_disturb_training(ranks: RankServer, alone: Finished) -> None:
    run = ranks.run(2, "--steps", "4", "--eval.every", "2", "--micro_batch_size", "3").succeeded()
    assert run.losses == pytest.approx(alone.losses, abs=1e-4)
    evals = run.rows("eval")
    assert [row["step"] for row in evals] == [2, 4]
    assert evals[1]["loss"] < evals[0]["loss"]
    assert evals[0]["tokens"] == 2 * 2 * 3 * 32


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 3)])
def test_resume_continues_the_same_run(ranks: RankServer, tmp_path: Path, first: int, then: int) -> None:
    flags = [
        "--steps",
        "6",
        "--checkpoint.directory",
        str(tmp_path),
        "--checkpoint.every",
        "2",
        "--checkpoint.keep",
        "9",
    ]
    whole = ranks.run(first, *flags).succeeded()
    for cut_off in ("step-00000004", "step-00000006"):
        (tmp_path / cut_off / "COMMITTED").unlink()
    # A save that was cut off is skipped; the next one at the same step replaces it; and all of it works twice.
    again = ranks.run(then, *flags).succeeded()
    assert again.rows("start")[0]["resumed_from_step"] == 2
    assert "step-00000006 is incomplete" in again.err
    assert [row["step"] for row in again.rows("step")] == [3, 4, 5, 6]
    assert again.losses == pytest.approx(whole.losses[2:], abs=1e-4)
    assert again.norms == pytest.approx(whole.norms[2:], rel=1e-4)
    (tmp_path / "step-00000006" / "COMMITTED").unlink()
    third = ranks.run(first, *flags).succeeded()
    assert third.rows("start")[0]["resumed_from_step"] == 4
    assert third.losses == pytest.approx(whole.losses[4:], abs=1e-4)
    # Nothing left to do: it says so and ends.
    done = ranks.run(first, *flags).succeeded()
    assert done.losses == []
    assert done.rows("end")[0]["final_loss"] == pytest.approx(whole.losses[-1], abs=1e-4)
    kept = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in kept if row["eksfsdp"] == "step"] == [1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 5, 6]


def test_keeps_the_last_checkpoints_only(ranks: RankServer, tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()
    ranks.run(1, "--steps", "5", "--checkpoint.directory", str(tmp_path), "--checkpoint.every", "1").succeeded()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000004", "step-00000005"]


def test_sigterm_to_one_rank_stops_all_at_the_same_step(ranks: RankServer, tmp_path: Path) -> None:
    pids = ranks.start(2, "--steps", "9000", "--checkpoint.directory", str(tmp_path))
    ranks.wait_for_step(3)
    os.kill(pids[1], signal.SIGTERM)
    stopped = ranks.finish()
    assert stopped.codes == [75, 75], stopped.err
    last = stopped.rows("step")[-1]["step"]
    assert f"asked to stop: after step {last}, saved" in stopped.err
    resumed = ranks.run(2, "--steps", str(last + 1), "--checkpoint.directory", str(tmp_path)).succeeded()
    assert [row["step"] for row in resumed.rows("step")] == [last + 1]


def test_a_loss_that_is_not_finite_fails_with_a_reason(ranks: RankServer) -> None:
    run = ranks.run(2, "--steps", "9", "--optimizer.learning_rate", "1e30", "--optimizer.warmup_steps", "0")
    assert run.codes == [3, 3]
    assert "not finite" in run.err
    assert "Traceback" not in run.err


def test_checkpoint_of_another_model_is_refused(ranks: RankServer, tmp_path: Path) -> None:
    flags = ["--steps", "1", "--checkpoint.directory", str(tmp_path)]
    ranks.run(1, *flags).succeeded()
    marker = tmp_path / "step-00000001" / "COMMITTED"
    marker.write_text(marker.read_text().replace("llama-debug", "llama2-7b"))
    run = ranks.run(2, *flags)
    assert run.codes == [2, 2]
    assert run.err.count("the checkpoint") == 1


def test_directory_that_cannot_be_written_fails_before_training(ranks: RankServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = ranks.run(2, "--steps", "1", "--checkpoint.directory", str(tmp_path / "file" / "x"))
    assert (run.codes, run.losses) == ([3, 3], [])
    assert "cannot write to" in run.err


def test_a_save_that_fails_is_told_and_leaves_the_last_good_one(ranks: RankServer, tmp_path: Path) -> None:
    flags = ["--checkpoint.directory", str(tmp_path), "--checkpoint.keep", "1"]
    ranks.run(2, "--steps", "1", *flags).succeeded()
    run = ranks.run(2, "--steps", "2", *flags, environment={"FILE_LIMIT": "1000000"})
    assert run.codes == [3, 3], run.err
    assert "step-00000002 could not be saved: " in run.err
    assert "Traceback" not in run.err
    again = ranks.run(2, "--steps", "2", *flags).succeeded()
    assert again.rows("start")[0]["resumed_from_step"] == 1


def test_a_damaged_checkpoint_is_told(ranks: RankServer, tmp_path: Path) -> None:
    flags = ["--steps", "1", "--checkpoint.directory", str(tmp_path)]
    ranks.run(2, *flags).succeeded()
    for file in (tmp_path / "step-00000001").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:1000])
    run = ranks.run(2, *flags)
    assert run.codes == [3, 3], run.err
    assert "step-00000001 cannot be loaded: " in run.err


def test_a_killed_rank_is_a_crash_not_a_told_failure(ranks: RankServer, tmp_path: Path) -> None:
    flags = ["--checkpoint.directory", str(tmp_path), "--checkpoint.every", "1"]
    pids = ranks.start(2, "--steps", "9000", *flags)
    ranks.wait_for_step(2)
    os.kill(pids[1], signal.SIGKILL)
    assert ranks.finish().codes == [1, -9]


def test_wrong_world_size_is_refused_on_every_rank(ranks: RankServer) -> None:
    run = ranks.run(5, "--steps", "1")
    assert run.codes == [2] * 5
    assert run.err.count("global_batch_size: 12 does not divide over 5 ranks") == 1
    assert run.out == ""
