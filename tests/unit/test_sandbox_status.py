"""A pod's status."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.sandbox.status import ContainerStatus, backoff_seconds, conditions, phase, restarts_after, terminated

RUNNING: dict[str, Any] = {"running": {"startedAt": "t"}}
WAITING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


def ended(code: int) -> dict[str, Any]:
    return terminated(code, 0, "t", "t", "id", "")


def container(state: dict[str, Any], kind: str = "main", **others: Any) -> ContainerStatus:
    return ContainerStatus(f"c{kind}", "image", kind, state, passed_startup=True, passed_readiness=True, **others)


@pytest.mark.parametrize(
    ("states", "policy", "expected"),
    [
        ([WAITING], "Always", "Pending"),
        ([RUNNING, WAITING], "Always", "Pending"),
        ([RUNNING], "Always", "Running"),
        ([ended(0)], "Always", "Running"),
        ([ended(0)], "Never", "Succeeded"),
        ([ended(0), RUNNING], "Never", "Running"),
        ([ended(0), ended(1)], "Never", "Failed"),
        ([ended(1)], "OnFailure", "Running"),
        ([ended(0)], "OnFailure", "Succeeded"),
    ],
)
def test_phases(states: list[dict[str, Any]], policy: str, expected: str) -> None:
    assert phase([container(state) for state in states], policy) == expected


def test_a_container_that_waits_for_its_restart_keeps_the_pod_running() -> None:
    assert phase([container(WAITING, last_state=ended(1))], "Always") == "Running"


def test_init_containers_come_first() -> None:
    assert phase([container(RUNNING, "init"), container(WAITING)], "Always") == "Pending"
    assert phase([container(ended(1), "init"), container(WAITING)], "Never") == "Failed"
    assert phase([container(ended(0), "init"), container(RUNNING)], "Always") == "Running"


def test_a_transition_time_changes_only_with_the_status() -> None:
    first = conditions([container(RUNNING)], "Running", [], "10:00")
    later = conditions([container(RUNNING)], "Running", first, "11:00")
    assert later == first
    over = {c["type"]: c for c in conditions([container(ended(0))], "Succeeded", later, "12:00")}
    assert (over["Ready"]["status"], over["Ready"]["reason"]) == ("False", "PodCompleted")
    assert over["Ready"]["lastTransitionTime"] == "12:00"
    assert over["Initialized"]["lastTransitionTime"] == "10:00"


def test_an_unready_container_is_named() -> None:
    status = container(RUNNING)
    status.passed_readiness = False
    ready = next(c for c in conditions([status], "Running", [], "t") if c["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "containers with unready status: [cmain]")


def test_which_containers_run_again_and_when() -> None:
    assert restarts_after("Always", 0)
    assert restarts_after("OnFailure", 1)
    assert not restarts_after("OnFailure", 0)
    assert not restarts_after("Never", 1)
    assert [backoff_seconds(restart) for restart in (1, 2, 3, 4, 20)] == [0, 10, 20, 40, 300]


def test_a_signal_is_told() -> None:
    state = terminated(137, 9, "a", "b", "id", "")["terminated"]
    assert (state["exitCode"], state["signal"], state["reason"]) == (137, 9, "Error")
