"""Watching a job: why it waits, what restarted, when it is given up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.launcher import objects
from eks_fsdp.launcher.errors import WaitError
from eks_fsdp.launcher.kube import ApiError
from eks_fsdp.launcher.live import progress_text
from eks_fsdp.launcher.tracker import Asked, Progress, RowError, Tracker, parse_row
from eks_fsdp.launcher.watch import Limits, Watch, wait_until_gone
from eks_fsdp.spec.records import EndRow, Restarts, StepRow

from .launcher_samples import UNSCHEDULABLE, job_settings, line, pending_pod, pod, pytorch_job, start_row, step_row

ASKED = Asked(job="job", run="s1", nodes=2, gpus_per_node=8, settings=job_settings(2))


def no_events(names: list[str]) -> list[dict[str, Any]]:
    return []


def test_rows_are_found_in_ordinary_output() -> None:
    row = step_row(3)
    assert parse_row(line(row)) == row
    assert parse_row(f"[default0]:{line(row)}") == row
    assert parse_row("INFO step 3 loss 4.7 {}") is None
    assert parse_row('{"a": 1}') is None
    assert isinstance(parse_row(line(EndRow(time=1.0, steps=8, final_loss=4.0))), EndRow)


@pytest.mark.parametrize("text", ['{"eksfsdp": "step", "step": 1}', '{"eksfsdp": "nonsense"}', '{"eksfsdp": "step", '])
def test_a_line_that_claims_to_be_a_row_and_is_none_is_told(text: str) -> None:
    with pytest.raises(RowError):
        parse_row(text)
    tracker = Tracker(ASKED)
    tracker.see_line("w-0", "u0", text)
    assert tracker.record().unread_rows == 1


def test_the_schedulers_own_words_say_why_a_pod_waits() -> None:
    tracker = Tracker(ASKED)
    tracker.see_pods([pending_pod("job-worker-0"), pending_pod("job-worker-1", "u1")], no_events)
    progress = tracker.progress(0.0)
    assert progress.reason == f"2 of 2 pods wait: Unschedulable: {UNSCHEDULABLE}"
    assert UNSCHEDULABLE in progress_text(progress)


def test_what_else_can_keep_a_pod_from_running() -> None:
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    assert objects.waiting_reason(pod(phase="Pending", state=pull, node="n")) == "ImagePullBackOff: not found"
    creating = pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}, node="n")
    event = {"type": "Warning", "reason": "FailedMount", "message": "no claim", "involvedObject": {"uid": "u0"}}
    assert objects.waiting_reason(creating, [event]) == "FailedMount: no claim"
    assert objects.waiting_reason(creating) == "ContainerCreating"
    assert objects.waiting_reason(pod(phase="Pending")) == "not yet seen by the scheduler"
    assert objects.waiting_reason(pod()) is None
    crash = pod(state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}})
    assert objects.waiting_reason(crash) == "CrashLoopBackOff: back-off 20s"


def test_restarts_are_counted_apart() -> None:
    tracker = Tracker(ASKED)
    tracker.see_pods([pod(restarts=1), pod("job-worker-1", uid="u1")], no_events)
    tracker.see_pods([pod(restarts=1), pod("job-worker-1", uid="u2", restarts=2)], no_events)
    for row in (start_row(2), start_row(2, restart_count=1), start_row(2, resumed_from_step=4)):
        tracker.see_line("job-worker-0", "u0", line(row))
    assert tracker.restarts == Restarts(rendezvous_rounds=2, container_restarts=3, pod_recreations=1)


def test_a_round_that_died_before_its_start_row_is_counted_by_torchruns_own_count() -> None:
    tracker = Tracker(ASKED)
    tracker.see_line("job-worker-0", "u0", line(start_row(2, restart_count=2)))
    assert tracker.restarts.rendezvous_rounds == 2


def test_progress_in_words() -> None:
    tracker = Tracker(ASKED)
    tracker.see_job(pytorch_job(("Created", ""), ("Running", "")), 0.0)
    tracker.see_pods([pod(), pod("job-worker-1", uid="u1")], no_events)
    tracker.see_line("job-worker-0", "u0", line(step_row(5, 1234.0)))
    text = progress_text(tracker.progress(0.0))
    assert text == "Running  2/2 pods  step 5/8  loss 4.5000  1,234 tokens/s"


class FakeCluster:
    """A cluster whose answers follow a script of one scene for each look."""

    def __init__(self, scenes: list[tuple[list[dict[str, Any]], Any]], log: list[bytes] | None = None) -> None:
        self.scenes = scenes
        self.log = log or []
        self.deleted: list[str] = []

    def pods(self, namespace: str, job: str) -> Any:
        pods: Any = self.scenes[0][0]
        if isinstance(pods, Exception):
            self._next()
            raise pods
        return pods

    def job(self, namespace: str, name: str) -> Any:
        job = self.scenes[0][1]
        self._next()
        return None if self.deleted else job

    def _next(self) -> None:
        if len(self.scenes) > 1:
            self.scenes.pop(0)

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        return next((p for p in self.scenes[0][0] if objects.name_of(p) == name), None)

    def stream(self, path: str, query: dict[str, str], *, silence: float = 0) -> Iterator[bytes]:
        yield from self.log if "worker-0" in path else []

    def events(self, namespace: str, *names: str) -> list[dict[str, Any]]:
        warning = {"type": "Warning", "reason": "FailedCreate", "message": "exceeded quota"}
        return [warning] if names == ("job",) else []

    def node_labels(self, name: str) -> dict[str, str]:
        return {"node.kubernetes.io/instance-type": "p5.48xlarge", "eksfsdp/simulated": "true"}

    def delete_job(self, namespace: str, name: str) -> bool:
        self.deleted.append(name)
        return True


def watch(cluster: Any, **limits: float) -> tuple[Any, list[Progress]]:
    seen: list[Progress] = []
    watched = Watch(cluster, "ns", ASKED, limits=Limits(**limits), on_progress=seen.append, poll_seconds=0.01)
    return watched.run(), seen


def test_a_run_from_pending_to_its_end(tmp_path: Path) -> None:
    rows = [start_row(2), *(step_row(s) for s in range(1, 9))]
    log = [f"2026-01-02T03:04:{n:02d}Z {line(row)}\n".encode() for n, row in enumerate(rows)]
    names = ("job-worker-0", "job-worker-1")
    over = [pod(name, uid=f"u{i}", phase="Succeeded", node=f"node-{i}") for i, name in enumerate(names)]
    cluster = FakeCluster(
        [
            ([], pytorch_job(("Created", ""))),
            ([pending_pod(name, f"u{i}") for i, name in enumerate(names)], pytorch_job(("Created", ""))),
            (over, pytorch_job(("Running", ""))),
            (over, pytorch_job(("Succeeded", "done"))),
        ],
        log,
    )
    seen: list[Progress] = []
    record = Watch(
        cluster,  # type: ignore[arg-type]
        "ns",
        ASKED,
        on_progress=seen.append,
        log_folder=tmp_path / "logs",
        poll_seconds=0.01,
    ).run()
    assert record.condition == "Succeeded"
    assert record.nodes_seen == ["node-0", "node-1"]
    assert record.instance_types == ["p5.48xlarge"]
    assert record.simulated
    assert [row.step for row in record.steps] == list(range(1, 9))
    assert record.restarts.total == 0
    assert record.settings == ASKED.settings
    assert "no pods" in str(seen[0].waiting)
    assert UNSCHEDULABLE in str(seen[1].reason)
    (file,) = (tmp_path / "logs").glob("job-worker-0*.log")
    assert len(file.read_text().splitlines()) == 9


def test_a_job_that_stays_pending_is_stopped_with_the_schedulers_reason() -> None:
    cluster = FakeCluster([([pending_pod()], pytorch_job(("Created", "")))])
    record, _ = watch(cluster, pending=0.1)
    assert cluster.deleted == ["job"]
    assert record.condition == "Stopped"
    assert record.message.startswith("pending for more than 0 s: 1 of 2 pods wait: Unschedulable: 0/5 nodes")


def test_a_job_without_pods_is_stopped_with_the_operators_reason() -> None:
    record, _ = watch(FakeCluster([([], pytorch_job(("Created", "")))]), pending=0.1)
    assert "FailedCreate: exceeded quota" in record.message


def test_a_job_that_hangs_is_stopped() -> None:
    running = [pod(), pod("job-worker-1", uid="u1")]
    record, _ = watch(FakeCluster([(running, pytorch_job(("Running", "")))]), silent=0.1, drain=0.1)
    assert record.message == "no row for more than 0 s after step 0"


def test_a_deleted_job_ends_the_watch() -> None:
    running = [pod(), pod("job-worker-1", uid="u1")]
    record, _ = watch(FakeCluster([(running, pytorch_job(("Running", ""))), ([], None)]), drain=0.1)
    assert (record.condition, record.message) == ("Stopped", "the job was deleted")


def test_a_failed_job_tells_the_exit_code() -> None:
    ended = pod(phase="Failed", state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    scenes = [([ended], pytorch_job(("Running", ""))), ([ended], pytorch_job(("Failed", "PyTorchJob job is failed")))]
    record, _ = watch(FakeCluster(scenes))
    assert record.condition == "Failed"
    assert record.message == "PyTorchJob job is failed; job-worker-0: exit code 137 (OOMKilled)"


def test_an_api_server_that_comes_back_costs_nothing_and_one_that_does_not_ends_the_wait() -> None:
    over = [pod(phase="Succeeded"), pod("job-worker-1", uid="u1", phase="Succeeded")]
    away: Any = ApiError(0, "127.0.0.1 does not answer")
    record, seen = watch(FakeCluster([(away, None), (over, pytorch_job(("Succeeded", "")))]))
    assert record.condition == "Succeeded"
    assert "does not answer" in str(seen[0].trouble)
    assert seen[-1].trouble is None
    with pytest.raises(WaitError, match="for the API server while watching job job: 127"):
        watch(FakeCluster([(away, None)]), unreachable=0.1)


def test_a_loss_that_is_no_number_is_kept_in_the_record() -> None:
    tracker = Tracker(ASKED)
    tracker.see_line("w", "u", json.dumps(step_row(1, loss=float("nan")).model_dump()))
    (row,) = tracker.record().steps
    assert isinstance(row, StepRow)
    assert row.loss != row.loss
    assert tracker.progress(0.0).loss is None


def finished_run() -> tuple[list[dict[str, Any]], list[bytes]]:
    """Two pods that have ended well, and the leader's log with its start row and one step."""
    log = [f"2026-01-02T03:04:0{n}Z {line(row)}\n".encode() for n, row in enumerate((start_row(2), step_row(1)))]
    names = ("job-worker-0", "job-worker-1")
    return [pod(name, uid=f"u{i}", phase="Succeeded", node=f"n{i}") for i, name in enumerate(names)], log


def test_a_request_that_fails_just_after_pods_appeared_loses_no_log() -> None:
    class FailsOnce(FakeCluster):
        def node_labels(self, name: str) -> dict[str, str]:
            if len(self.scenes) > 1:
                self._next()
                raise ApiError(0, "gone for a moment")
            return super().node_labels(name)

    pods, log = finished_run()
    record, _ = watch(FailsOnce([(pods, None), (pods, pytorch_job(("Succeeded", "")))], log))
    assert [row.step for row in record.steps] == [1]


def test_a_log_that_cannot_be_kept_costs_no_row(tmp_path: Path) -> None:
    pods, log = finished_run()
    cluster: Any = FakeCluster([(pods, pytorch_job(("Running", ""))), (pods, pytorch_job(("Succeeded", "")))], log)
    watched = Watch(cluster, "ns", ASKED, log_folder=tmp_path / "logs", poll_seconds=0.01)
    (tmp_path / "logs").rmdir()
    record = watched.run()
    assert [row.step for row in record.steps] == [1]
    assert "logs are no longer kept" in str(watched.tracker.trouble)


def test_waiting_for_pods_to_go_outlasts_an_absent_api_server_and_has_a_limit() -> None:
    away: Any = ApiError(0, "127.0.0.1 does not answer")
    wait_until_gone(FakeCluster([(away, None), ([], None)]), "ns", "job", 60)  # type: ignore[arg-type]
    with pytest.raises(WaitError, match=r"left: .* does not answer"):
        wait_until_gone(FakeCluster([(away, None)]), "ns", "job", 0)  # type: ignore[arg-type]
    forbidden: Any = ApiError(403, "forbidden")
    with pytest.raises(ApiError, match="forbidden"):
        wait_until_gone(FakeCluster([(forbidden, None)]), "ns", "job", 60)  # type: ignore[arg-type]
