"""Rules of reserved capacity: On-Demand Capacity Reservations and Capacity Blocks for ML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings

BLOCK_MARGIN = timedelta(minutes=60)
"""Before a block's end nothing runs in it for as long: EKS drains its nodes at 40 minutes, EC2 ends them at 30."""


def capacity(settings: Settings) -> Iterable[str]:
    """A block's nodes fit its group, and what cannot be had from a reservation is not asked of one."""
    for index, group in enumerate(settings.gpu_nodes):
        path, wanted = f"gpu_nodes[{index}]", group.capacity
        if wanted.scheduled_nodes > group.max:
            yield (
                f"{path}.capacity.scheduled_nodes: {wanted.scheduled_nodes} is more than the group may have (max {group.max}); "
                "accepted: at most max, or a larger max"
            )
        if wanted.scheduled_nodes and wanted.starts is None:
            yield (
                f"{path}.capacity.scheduled_nodes: {wanted.scheduled_nodes} are started when the block begins, and "
                "capacity.starts is not set; accepted: both, or desired alone for a block that has begun"
            )
        if wanted.reserved and group.alternatives:
            yield (
                f"{path}.alternatives: {', '.join(group.alternatives)} with capacity.kind {wanted.kind!r}; a reservation "
                "is for one instance type; accepted: none, or kind on-demand or spot"
            )
        if wanted.reserved and group.placement_group.mode == "auto":
            yield (
                f"{path}.placement_group.mode: 'auto' with capacity.kind {wanted.kind!r}; a group of our own leaves out "
                "instances of the reservation that stand elsewhere, and some nodes never start; accepted: none, or existing "
                "where the reservation was made in that placement group"
            )


def block_outlasts_jobs(settings: Settings) -> Iterable[str]:
    """A block that says when it begins lasts as long as the jobs of its group may."""
    for name, group, index, minutes in _jobs_in_blocks(settings):
        if group.capacity.starts is not None:
            yield from _outlasting(name, group, index, minutes, group.capacity.starts)


def moments(settings: Settings, now: datetime) -> Iterable[str]:
    """What is wrong at ``now`` alone: nodes of a block that has not begun or is over, and jobs beyond its end."""
    for index, group in enumerate(settings.gpu_nodes):
        path, wanted = f"gpu_nodes[{index}]", group.capacity
        if wanted.starts is not None and now < wanted.starts and group.desired:
            yield (
                f"{path}.desired: {group.desired}, and the capacity block begins at {wanted.starts.isoformat()}; accepted: 0 "
                "until then, and capacity.scheduled_nodes for what is started at its beginning"
            )
        if wanted.ends is not None and now >= wanted.ends - BLOCK_MARGIN and group.desired:
            yield (
                f"{path}.desired: {group.desired}, and the capacity block ends at {wanted.ends.isoformat()}; accepted: 0, or "
                "another block"
            )
    for name, group, index, minutes in _jobs_in_blocks(settings):
        if group.capacity.starts is None:
            yield from _outlasting(name, group, index, minutes, now)


def _jobs_in_blocks(settings: Settings) -> Iterable[tuple[str, GpuNodeGroupSettings, int, int]]:
    """Jobs on groups with a capacity block: name, group, the group's index, minutes until the job's deadline."""
    for name, job in settings.jobs.items():
        for index, group in enumerate(settings.gpu_nodes):
            if job.group in (None, group.name) and group.capacity.ends is not None:
                yield name, group, index, job.deadline_minutes


def _outlasting(job: str, group: GpuNodeGroupSettings, index: int, minutes: int, begin: datetime) -> Iterable[str]:
    assert group.capacity.ends is not None
    usable = group.capacity.ends - BLOCK_MARGIN - begin
    if timedelta(minutes=minutes) > usable:
        left = max(int(usable.total_seconds()) // 60, 0)
        yield (
            f"jobs.{job}.deadline_minutes: {minutes}, and the block of gpu_nodes[{index}] ({group.name}) ends at "
            f"{group.capacity.ends.isoformat()}: {left} minutes after {begin.isoformat()} without the last "
            f"{int(BLOCK_MARGIN.total_seconds()) // 60}, in which nodes are drained; accepted: at most {left}, or a longer "
            "block; capacity.starts says when the block begins"
        )


def reservation_problems(
    path: str,
    group: GpuNodeGroupSettings,
    found: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    until: datetime | None = None,
    running: int = 0,
) -> Iterable[str]:
    """What keeps the nodes of ``group`` from starting in its reservation.

    ``path``: the group in the settings, such as ``gpu_nodes[0]``. ``found``: items of DescribeCapacityReservations: the
    one of `reservation_id`, or all those of the resource group; empty where there is none. ``until``: when the last job
    must be over. ``running``: nodes of the group that hold a part of the reservation already.
    """
    wanted = group.capacity
    setting = f"{path}.capacity.{'reservation_id' if wanted.reservation_id else 'resource_group_arn'}"
    said = wanted.reservation_id or wanted.resource_group_arn
    if not found:
        yield f"{setting}: {said!r} has no reservation in this account and region; accepted: one that is there"
        return
    usable, refused = [], []
    for reservation in found:
        problems = list(_unusable(path, setting, group, reservation, now, until))
        refused += problems
        if not problems:
            usable.append(reservation)
    nodes = max(group.desired, wanted.scheduled_nodes)
    places = sum(_places(reservation) for reservation in usable) + running
    # One of several that does not fit is left alone, as long as the others are enough.
    if not usable or (wanted.reservation_id and refused):
        yield from refused
    elif places < nodes:
        yield (
            f"{setting}: {said!r} has room for {places} {group.instance_type}, and {nodes} nodes are wanted; accepted: at most "
            f"{places} for desired and scheduled_nodes, or a larger reservation"
        )


def _places(reservation: Mapping[str, Any]) -> int:
    # Before its beginning a block has no instance available.
    key = "AvailableInstanceCount" if reservation["State"] == "active" else "TotalInstanceCount"
    return int(reservation[key])


def _unusable(
    path: str,
    setting: str,
    group: GpuNodeGroupSettings,
    reservation: Mapping[str, Any],
    now: datetime,
    until: datetime | None,
) -> Iterable[str]:
    name, state, wanted = reservation["CapacityReservationId"], reservation["State"], group.capacity
    block = reservation.get("ReservationType") == "capacity-block"
    if block != (wanted.kind == "capacity-block"):
        kind = "capacity-block" if block else "odcr"
        yield f"{path}.capacity.kind: {wanted.kind!r}, and {name} is of kind {kind!r}; accepted: {kind}"
    if state != "active" and not (state == "scheduled" and not group.desired):
        yield f"{setting}: {name} is {state}; accepted: an active one" + (
            ", or desired 0 until it is" if state == "scheduled" else ""
        )
    if reservation["InstanceType"] != group.instance_type:
        yield (
            f"{path}.instance_type: {group.instance_type!r}, and {name} is for {reservation['InstanceType']!r}; "
            f"accepted: {reservation['InstanceType']}"
        )
    places = [place for place in (reservation.get("AvailabilityZone"), reservation.get("AvailabilityZoneId")) if place]
    if group.zone not in places:
        yield f"{path}.zone: {group.zone!r}, and {name} is in {' ('.join(places)}{')' * (len(places) - 1)}; accepted: that zone"
    end: datetime | None = reservation.get("EndDate")
    if end is None:
        return
    last = end - BLOCK_MARGIN if block else end
    if wanted.ends is not None and wanted.ends > end:
        yield f"{path}.capacity.ends: {wanted.ends.isoformat()}, and {name} ends at {end.isoformat()}; accepted: {end.isoformat()}"
    if now >= last or (until is not None and until > last):
        yield (
            f"{setting}: {name} can be used until {last.isoformat()}, and the job's deadline is "
            f"{(until or now).isoformat()}; accepted: a shorter deadline, or one that ends later"
        )
