"""A job in the queue: told from one that cannot be placed, shown with the queue's own words, and stopped by its own limit."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.launcher import objects, view
from eks_fsdp.launcher.kube import ApiError, Cluster
from eks_fsdp.launcher.live import console, progress_text
from eks_fsdp.launcher.watch import Limits

from .launcher_samples import pod, pytorch_job
from .test_launcher_watch import FakeCluster, watch

WHY = "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor p5, 16 more needed"


def queued_job(*conditions: tuple[str, str]) -> dict[str, Any]:
    job = pytorch_job(*conditions)
    job["metadata"] |= {"uid": "j0", "namespace": "ns", "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    return {**job, "spec": {"runPolicy": {"suspend": True}}}


def workload(*conditions: dict[str, str], active: bool = True) -> dict[str, Any]:
    return {"spec": {"active": active}, "status": {"conditions": list(conditions)}}


PENDING = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": WHY}
EVICTED = {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout", "message": "exceeded the timeout"}


class Queued(FakeCluster):
    def workload(self, namespace: str, job: dict[str, Any]) -> dict[str, Any]:
        return workload(PENDING)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "waits in the queue, which has not taken it in yet"),
        (workload(), "waits in the queue: not looked at yet"),
        (workload(PENDING), f"waits in the queue: {WHY}"),
        (
            workload(PENDING, EVICTED),
            f"waits in the queue: back in it, PodsReadyTimeout: exceeded the timeout; {WHY}",
        ),
        (workload(PENDING, EVICTED, active=False), "the queue has given it up: exceeded the timeout"),
        ({"spec": {"active": False}}, "the queue has given it up: the workload is not active"),
    ],
)
def test_why_a_job_is_in_the_queue(found: dict[str, Any] | None, words: str) -> None:
    assert objects.queue_reason(found) == words


def test_who_is_in_the_queue() -> None:
    assert objects.is_queued(queued_job())
    assert not objects.is_queued(queued_job(("Failed", "x")))
    assert not objects.is_queued({**queued_job(), "spec": {"runPolicy": {"suspend": False}}})
    by_hand = queued_job()
    by_hand["metadata"]["labels"] = {}
    assert not objects.is_queued(by_hand)


def test_time_in_the_queue_is_no_time_pending() -> None:
    waits = ([], queued_job())
    runs = ([pod(), pod("job-worker-1", uid="u1")], pytorch_job(("Running", "")))
    ends = (runs[0], pytorch_job(("Running", ""), ("Succeeded", "done")))
    record, seen = watch(Queued([*[waits] * 40, *[runs] * 3, ends]), pending=0.2)
    assert record.condition == "Succeeded", record.message
    first = seen[0]
    assert first.queued == first.reason == f"waits in the queue: {WHY}"
    assert progress_text(first) == f"Queued  waits in the queue: {WHY}"
    assert not any(progress.queued for progress in seen[40:])


def test_a_job_may_be_in_the_queue_for_as_long_as_it_was_told() -> None:
    cluster = Queued([([], queued_job())])
    record, _ = watch(cluster, queue=0.1)
    assert cluster.deleted == ["job"]
    assert record.condition == "Stopped"
    assert record.message == f"in the queue for more than 0 s: waits in the queue: {WHY}"
    assert Limits().queue is None


def test_after_an_eviction_the_pending_limit_begins_anew() -> None:
    half = ([pod(), pod("job-worker-1", uid="u1", phase="Pending")], pytorch_job(("Running", "")))
    waits = ([], queued_job())
    record, _ = watch(Queued([*[half] * 8, *[waits] * 20, *[half] * 8, *[waits] * 2, (half[0], half[1])]), pending=0.25)
    assert record.condition == "Stopped"
    assert record.message.startswith("pending for more than 0 s: 1 of 2 pods wait")


class Answers(Cluster):
    def __init__(self, error: ApiError) -> None:
        self.error = error

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        raise self.error


def test_without_rights_or_a_queue_that_answers_there_is_no_reason_but_no_failure() -> None:
    for status in (403, 404):
        assert Answers(ApiError(status, "no")).workload("ns", queued_job()) is None
    with pytest.raises(ApiError):
        Answers(ApiError(500, "no")).workload("ns", queued_job())


def test_status_shows_the_queue_and_passes_over_nodes_that_may_not_be_seen() -> None:
    class Team(Queued):
        def nodes(self) -> list[dict[str, Any]]:
            raise ApiError(403, "nodes is forbidden")

        def jobs(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
            return [queued_job(("Suspended", ""))] if namespace == "ns" else []

    at = view.Place(Team([([], None)]), ("training", "ns"), None, None)  # type: ignore[arg-type]
    with console.capture() as shown:
        view._print_nodes(at, {})
        view._print_jobs(at)
    text = shown.get()
    assert "credentials may look at jobs alone" in text
    assert "Queued" in text
    assert f"job: waits in the queue: {WHY}" in text
