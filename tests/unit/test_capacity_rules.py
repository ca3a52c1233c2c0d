"""What the rules say of reserved capacity, with the time and AWS' answers passed in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.rules.capacity import moments, reservation_problems
from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings

NAME = "cr-0123456789abcdef0"
STARTS, ENDS = datetime(2027, 1, 2, 11, 30, tzinfo=UTC), datetime(2027, 1, 4, 11, 30, tzinfo=UTC)
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
BLOCK: dict[str, Any] = {
    "kind": "capacity-block",
    "reservation_id": NAME,
    "starts": STARTS.isoformat(),
    "ends": ENDS.isoformat(),
}


def settings(minutes: int | None = None, **values: Any) -> Settings:
    group = {"name": "gpu", "instance_type": "p5.48xlarge", "zone": "us-west-2a", **values}
    jobs = {} if minutes is None else {"long": {"nodes": 1, "deadline_minutes": minutes}}
    return Settings.parse({"gpu_nodes": [group], "jobs": jobs})


def group(**values: Any) -> GpuNodeGroupSettings:
    return settings(**{"capacity": {"kind": "odcr", "reservation_id": NAME}, **values}).gpu_nodes[0]


def reservation(**values: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": NAME,
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-west-2a",
        "AvailabilityZoneId": "usw2-az2",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 4,
        "State": "active",
        "ReservationType": "default",
        **values,
    }


def told(of: GpuNodeGroupSettings, *found: dict[str, Any], **more: Any) -> list[str]:
    return list(reservation_problems("gpu_nodes[0]", of, found, now=NOW, **more))


def test_a_reservation_that_fits() -> None:
    assert told(group(desired=4), reservation()) == []
    by_id = group(desired=4).model_copy(update={"zone": "usw2-az2"})
    assert told(by_id, reservation()) == []
    # Half of it is held by the group's own nodes already.
    assert told(group(desired=4), reservation(AvailableInstanceCount=2), running=2) == []
    end = NOW + timedelta(hours=3)
    assert told(group(desired=1), reservation(EndDate=end), until=end) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"State": "expired"}, ["capacity.reservation_id", "expired", "an active one"]),
        ({"State": "cancelled"}, ["capacity.reservation_id", "cancelled"]),
        ({"InstanceType": "p4de.24xlarge"}, ["instance_type: 'p5.48xlarge'", "'p4de.24xlarge'"]),
        (
            {"AvailabilityZone": "us-west-2b", "AvailabilityZoneId": "usw2-az1"},
            ["zone: 'us-west-2a'", "us-west-2b (usw2-az1)"],
        ),
        ({"AvailableInstanceCount": 1}, ["room for 1 p5.48xlarge", "2 nodes are wanted"]),
        ({"ReservationType": "capacity-block"}, ["capacity.kind: 'odcr'", "accepted: capacity-block"]),
        ({"EndDate": NOW + timedelta(hours=1)}, ["can be used until", "job's deadline"]),
        ({"EndDate": NOW - timedelta(hours=1)}, ["can be used until"]),
    ],
)
def test_a_reservation_that_does_not(found: dict[str, Any], words: list[str]) -> None:
    (problem,) = told(group(desired=2), reservation(**found), until=NOW + timedelta(hours=2))
    assert problem.startswith("gpu_nodes[0].")
    assert all(word in problem for word in words), problem
    assert "accepted:" in problem


def test_a_reservation_that_is_not_there() -> None:
    assert "has no reservation in this account and region" in told(group())[0]


def test_of_a_resource_groups_reservations_those_count_that_fit() -> None:
    arn = "arn:aws:resource-groups:us-west-2:123456789012:group/p5"
    pool = {"kind": "odcr", "resource_group_arn": arn}
    elsewhere = reservation(AvailabilityZone="us-west-2b", AvailabilityZoneId="usw2-az1")
    assert told(group(desired=8, capacity=pool), reservation(), reservation(), elsewhere) == []
    (problem,) = told(group(desired=9, capacity=pool), reservation(), reservation(), elsewhere)
    assert "capacity.resource_group_arn" in problem
    assert "room for 8" in problem
    assert "us-west-2b" in told(group(desired=1, capacity=pool), elsewhere)[0]


def test_a_block_before_its_beginning_has_its_size_and_no_node_yet() -> None:
    block = reservation(State="scheduled", AvailableInstanceCount=0, ReservationType="capacity-block", EndDate=ENDS)
    wanted = {**BLOCK, "scheduled_nodes": 4}
    assert told(group(capacity=wanted), block) == []
    assert "room for 4" in told(group(capacity={**wanted, "scheduled_nodes": 5}), block)[0]
    early = told(group(desired=1, capacity=BLOCK), block)
    assert "desired 0 until it is" in early[0]
    later = {**BLOCK, "ends": (ENDS + timedelta(days=1)).isoformat()}
    assert "capacity.ends" in told(group(capacity=later), block)[0]
    # EKS drains the nodes 40 minutes before the end.
    assert "can be used until 2027-01-04T10:30" in told(group(capacity=BLOCK), block, until=ENDS)[0]


def test_a_block_lasts_as_long_as_the_job_may() -> None:
    assert settings(47 * 60, capacity=BLOCK)
    with pytest.raises(SettingsError, match=r"jobs\.long\.deadline_minutes: 2821, .*accepted: at most 2820"):
        settings(47 * 60 + 1, capacity=BLOCK)


def test_what_is_wrong_now_and_was_not_or_will_not_be() -> None:
    early = settings(desired=2, capacity=BLOCK)
    (problem,) = moments(early, NOW)
    assert problem.startswith("gpu_nodes[0].desired: 2, and the capacity block begins at 2027-01-02T11:30")
    assert list(moments(early, STARTS)) == []
    assert "ends at" in next(iter(moments(early, ENDS - timedelta(minutes=30))))
    assert list(moments(settings(capacity={**BLOCK, "scheduled_nodes": 2}), NOW)) == []
    # A block without a beginning has begun: what is left of it counts.
    begun = settings(24 * 60, capacity={**BLOCK, "starts": None})
    assert list(moments(begun, ENDS - timedelta(hours=25))) == []
    assert "jobs.long.deadline_minutes" in next(iter(moments(begun, ENDS - timedelta(hours=24))))
