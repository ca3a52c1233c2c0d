"""What a run proves: each reason to refuse a point, its statistics, efficiency and the agreement of losses."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.launcher import verdict
from eks_fsdp.spec.records import Restarts

from .launcher_samples import STEPS, node_names, record, start_row, step_row


def test_a_clean_run_is_accepted() -> None:
    assert verdict.reasons(record()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"condition": "Failed", "message": "worker-1: exit code 1"}, "the job ended as Failed: worker-1: exit code 1"),
        ({"condition": "Stopped", "message": "pending for more than 9 s"}, "Stopped: pending for more than 9 s"),
        ({"nodes_seen": node_names(1), "starts": [start_row(1)]}, "2 nodes asked, pods ran on 1"),
        ({"nodes_seen": [*node_names(2), "another"]}, "2 nodes asked, pods ran on 3"),
        ({"instance_types": []}, "instance type is unknown"),
        ({"instance_types": ["p5.48xlarge", "p4d.24xlarge"]}, "more than one instance type: p5.48xlarge, p4d.24xlarge"),
        ({"restarts": Restarts(rendezvous_rounds=2)}, "2 rendezvous rounds beyond the first"),
        ({"restarts": Restarts(container_restarts=1)}, "1 container restart"),
        ({"restarts": Restarts(pod_recreations=3)}, "3 pod recreations"),
        ({"starts": []}, "no start row"),
        ({"starts": [start_row(2, nodes=["other-a", "other-b"])]}, "the ranks name other nodes (other-a, other-b)"),
        ({"starts": [start_row(2, nodes=node_names(1))]}, "the ranks were on 1 node, 2 asked"),
        ({"starts": [start_row(2, world_size=16)]}, "world size 16, expected 2"),
        ({"transport": "efa"}, "transport 'efa' declared, 'gloo' used"),
        ({"starts": [start_row(2, resumed_from_step=4)]}, "resumed from step 4 of an earlier run"),
        ({"steps": [step_row(s) for s in (1, 2, 3, 5, 6, 7, 8)]}, "7 of 8 steps have a row (first missing: 4)"),
        ({"unread_rows": 2}, "2 rows could not be read"),
        ({"steps": [step_row(s, loss=float("nan") if s == 7 else 4.0) for s in range(1, 9)]}, "not finite at step 7"),
    ],
)
def test_what_is_refused_and_why(changes: dict[str, Any], expected: str) -> None:
    found = verdict.reasons(record(**changes))
    assert any(expected in reason for reason in found), found


def test_kinds_of_restarts_are_told_apart() -> None:
    restarts = Restarts(rendezvous_rounds=1, container_restarts=2, pod_recreations=1)
    assert verdict.reasons(record(restarts=restarts)) == [
        "1 rendezvous round beyond the first",
        "2 container restarts",
        "1 pod recreation",
    ]


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    assert verdict.reasons(record(), warmup=STEPS) == [f"no step is left after a warm-up of {STEPS} steps"]


def test_warm_up_steps_do_not_count() -> None:
    steps = [step_row(s, 10.0 if s <= 5 else 1000.0 + s) for s in range(1, STEPS + 1)]
    point = verdict.point(record(steps=steps), warmup=5)
    assert point.measured_steps == 3
    assert point.tokens_per_second == 1007.0
    assert point.step_seconds_median == pytest.approx(1000 / 1007)
    assert (point.gpus, point.processes, point.accepted) == (16, 2, True)
    assert point.peak_memory_bytes == 300 * 2**20 + STEPS
    assert len(point.losses) == STEPS


def test_a_step_taken_again_after_a_resume_counts_once() -> None:
    steps = [step_row(s) for s in range(1, 7)] + [step_row(s, 500.0, time=200.0 + s) for s in range(5, STEPS + 1)]
    rows = verdict.last_rows(record(steps=steps))
    assert sorted(rows) == list(range(1, STEPS + 1))
    assert rows[5].tokens_per_second == 500.0


def test_percentile_interpolates() -> None:
    assert verdict.percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert verdict.percentile([1.0, 2.0, 3.0], 0.95) == pytest.approx(2.9)
    assert verdict.percentile([7.0], 0.95) == 7.0


def test_efficiency_is_against_the_smallest_accepted_point() -> None:
    runs = [record(4, 3000.0), record(1, 1000.0), record(2, 1800.0)]
    report = verdict.report("s", "strong", runs)
    assert [p.nodes for p in report.points] == [1, 2, 4]
    assert [p.efficiency for p in report.points] == [1.0, pytest.approx(0.9), pytest.approx(0.75)]
    assert report.baseline_nodes == 1
    assert report.simulated
    assert (report.instance_type, report.model, report.global_batch_size) == ("p5.48xlarge", "llama-debug", 8)


def test_a_refused_point_has_no_efficiency_and_is_no_baseline() -> None:
    runs = [record(1, 1000.0, restarts=Restarts(container_restarts=1)), record(2, 1800.0), record(4, 3000.0)]
    report = verdict.report("s", "strong", runs)
    assert [p.efficiency for p in report.points] == [None, 1.0, pytest.approx(3000 / (2 * 1800))]
    assert report.baseline_nodes == 2
    assert report.points[0].tokens_per_second == 1000.0


def test_losses_are_compared_step_by_step_between_accepted_points() -> None:
    near = [step_row(s, loss=5.0 - 0.1 * s + (4e-4 if s == 3 else 0)) for s in range(1, STEPS + 1)]
    far = [step_row(s, loss=9.0) for s in range(1, STEPS + 1)]
    runs = [record(1), record(2, steps=near), record(4, steps=far, restarts=Restarts(pod_recreations=1))]
    report = verdict.report("s", "strong", runs)
    assert report.max_loss_difference == pytest.approx(4e-4)
    assert verdict.report("w", "weak", runs).max_loss_difference is None
    assert verdict.report("one", "strong", runs[:1]).max_loss_difference is None


def test_losses_end_where_they_stop_being_numbers() -> None:
    steps = [step_row(s, loss=float("inf") if s == 4 else 4.0) for s in range(1, STEPS + 1)]
    assert verdict.point(record(steps=steps)).losses == [4.0, 4.0, 4.0]


def test_a_point_without_any_row_is_refused_and_reported() -> None:
    empty = record(4, condition="Failed", message="no room", nodes_seen=[], instance_types=[], starts=[], steps=[])
    report = verdict.report("s", "strong", [record(1), empty])
    assert report.points[1].tokens_per_second is None
    assert not report.points[1].accepted
    assert report.points[1].reasons == ["the job ended as Failed: no room"]
    assert report.points[0].efficiency == 1.0
