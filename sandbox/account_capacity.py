"""Capacity of the stand-in account: reservations, blocks and their offerings, and which nodes can start at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from .account_errors import Refusal

Reservation = dict[str, Any]
OFFERING_ZONES = ("a", "b")
BLOCK_HOUR = timedelta(hours=11, minutes=30)
"""Blocks begin and end at this time of the day, UTC."""
FEE_PER_GPU_HOUR = 4
"""In US dollars: a made-up price, the same for every type."""


@dataclass
class Start:
    """How many nodes of a group run, and what EKS says of those that do not."""

    nodes: int
    issues: list[dict[str, Any]] = field(default_factory=list)


class Capacity:
    """Reservations of each region, what node groups hold of them, and what EC2 has left on demand."""

    def __init__(self) -> None:
        self._reservations: dict[tuple[str, str], Reservation] = {}
        self._groups: dict[str, set[str]] = {}
        self._held: dict[str, dict[str, int]] = {}
        self._left: dict[tuple[str, str], int] = {}
        self._offered: dict[str, dict[str, Any]] = {}

    def reset(self) -> None:
        """Forget everything."""
        for store in (self._reservations, self._groups, self._held, self._left, self._offered):
            store.clear()

    # For tests: what a real account has because somebody else did it

    def leave_on_demand(self, instance_type: str, zone: str, nodes: int) -> None:
        """From now on EC2 has capacity for so many instances of a type in a zone, beside reservations."""
        self._left[instance_type, zone] = nodes

    # EC2's requests

    def reserve(self, region: str, account: str, zone: Mapping[str, str], values: Mapping[str, Any]) -> Reservation:
        """A new reservation that is active at once, or a block that begins at its ``StartDate``."""
        count = int(values["InstanceCount"])
        if count < 1:
            raise Refusal("InvalidParameterValue", f"Value ({count}) for parameter instanceCount is invalid.")
        name = f"cr-{uuid.uuid4().hex[:17]}"
        made: Reservation = {
            "CapacityReservationId": name,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{account}:capacity-reservation/{name}",
            "OwnerId": account,
            "InstancePlatform": "Linux/UNIX",
            "Tenancy": "default",
            "InstanceMatchCriteria": "open",
            "EndDateType": "limited" if values.get("EndDate") else "unlimited",
            "EbsOptimized": False,
            "EphemeralStorage": False,
            "ReservationType": "default",
            "Tags": [],
            "CreateDate": datetime.now(UTC),
            "StartDate": datetime.now(UTC),
            "AvailabilityZone": zone["ZoneName"],
            "AvailabilityZoneId": zone["ZoneId"],
            **{key: value for key, value in values.items() if value is not None and key != "InstanceCount"},
            "TotalInstanceCount": count,
        }
        self._reservations[region, name] = made
        return self._shown(made)

    def describe(self, region: str, ids: Iterable[str] = ()) -> list[Reservation]:
        """Reservations by id, or all. Refuses ids that do not exist."""
        here = {name: made for (where, name), made in self._reservations.items() if where == region}
        wanted = list(ids) or list(here)
        for name in wanted:
            if name not in here:
                raise Refusal(
                    "InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' was not found"
                )
        return [self._shown(here[name]) for name in wanted]

    def kept(self, region: str) -> list[Reservation]:
        """The reservations themselves, whose tags may be changed."""
        return [made for (where, _), made in self._reservations.items() if where == region]

    def modify(self, region: str, name: str, values: Mapping[str, Any]) -> None:
        """Another count or end. Refuses a block, which cannot be changed."""
        shown = self.describe(region, [name])[0]
        if shown["ReservationType"] == "capacity-block":
            raise Refusal("OperationNotPermitted", f"The capacity block '{name}' cannot be modified.")
        made = self._reservations[region, name]
        if values.get("InstanceCount") is not None:
            made["TotalInstanceCount"] = int(values["InstanceCount"])
        if values.get("EndDate") is not None:
            made |= {"EndDate": values["EndDate"], "EndDateType": "limited"}

    def cancel(self, region: str, name: str) -> None:
        """Refuses a block, which is paid for, and what is over."""
        shown = self.describe(region, [name])[0]
        if shown["ReservationType"] == "capacity-block" or shown["State"] not in ("active", "pending"):
            raise Refusal("InvalidCapacityReservationState", f"The capacity reservation '{name}' is {shown['State']}.")
        self._reservations[region, name]["Cancelled"] = True

    def offerings(self, region: str, wanted: Mapping[str, Any], gpus: int) -> list[dict[str, Any]]:
        """What DescribeCapacityBlockOfferings answers: one in each of two zones, at the next two days that fit.

        Refuses a duration that AWS does not sell: whole days, and from two weeks on whole weeks.
        """
        hours, count = int(wanted["CapacityDurationHours"]), int(wanted["InstanceCount"])
        days = hours / 24
        if days != int(days) or not 1 <= days <= 182 or (days > 14 and days % 7):
            raise Refusal("InvalidParameterValue", f"The capacity duration of {hours} hours is not supported.")
        # botocore's times come through moto without their zone, which is UTC.
        earliest = (wanted.get("StartDateRange") or datetime.now(UTC)).replace(tzinfo=UTC)
        latest = wanted["EndDateRange"].replace(tzinfo=UTC) if wanted.get("EndDateRange") else None
        day = datetime.combine(earliest.date(), datetime.min.time(), UTC) + BLOCK_HOUR
        first = day if day > earliest else day + timedelta(days=1)
        found = []
        for offset, letter in enumerate(OFFERING_ZONES):
            start = first + timedelta(days=offset)
            end = start + timedelta(hours=hours)
            if latest is not None and end > latest:
                continue
            key = f"{region}{letter}/{wanted['InstanceType']}/{count}/{start.isoformat()}/{hours}"
            found.append(
                {
                    "CapacityBlockOfferingId": f"cbo-{uuid.uuid5(uuid.NAMESPACE_URL, key).hex[:17]}",
                    "InstanceType": wanted["InstanceType"],
                    "InstanceCount": count,
                    "AvailabilityZone": f"{region}{letter}",
                    "StartDate": start,
                    "EndDate": end,
                    "CapacityBlockDurationHours": hours,
                    "UpfrontFee": str(FEE_PER_GPU_HOUR * gpus * hours * count),
                    "CurrencyCode": "USD",
                    "Tenancy": "default",
                }
            )
        self._offered.update({offering["CapacityBlockOfferingId"]: offering for offering in found})
        return found

    def offering(self, name: str) -> dict[str, Any]:
        """An offering that was shown before. Refuses one that was not."""
        if name not in self._offered:
            raise Refusal("InvalidCapacityBlockOfferingId.NotFound", f"The offering '{name}' was not found")
        return self._offered[name]

    # Resource groups

    def add_to_group(self, group: str, arns: Iterable[str]) -> None:
        """Put reservations into a resource group, by ARN."""
        self._groups.setdefault(group, set()).update(arns)

    def remove_from_group(self, group: str, arns: Iterable[str]) -> None:
        """Take reservations out of a resource group."""
        self._groups.setdefault(group, set()).difference_update(arns)

    def group_members(self, group: str) -> list[str]:
        """ARNs of a resource group's reservations."""
        return sorted(self._groups.get(group, ()))

    # Nodes

    def start(
        self, region: str, owner: str, nodes: int, types: Iterable[str], zone: str, template: Mapping[str, Any]
    ) -> Start:
        """How many of ``nodes`` instances of node group ``owner`` run, after what it held before is free again."""
        self.release(owner)
        target = (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
        instance_type = next(iter(types), "")
        if not target:
            left = self._left.get((instance_type, zone), nodes)
            missing = f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone})."
            return _start(nodes, left, "InsufficientInstanceCapacity", missing, owner)
        try:
            found = self._targeted(region, target)
        except Refusal as refusal:
            return _start(nodes, 0, str(refusal.code), str(refusal.message), owner)
        block = (template.get("InstanceMarketOptions") or {}).get("MarketType") == "capacity-block"
        places, reasons = 0, []
        for reservation in found:
            reason = _mismatch(reservation, instance_type, zone, block)
            if reason:
                reasons.append(reason)
                continue
            share = min(nodes - places, int(reservation["AvailableInstanceCount"]))
            self._held.setdefault(owner, {})[reservation["CapacityReservationId"]] = share
            places += share
        names = ", ".join(reservation["CapacityReservationId"] for reservation in found) or "the resource group"
        missing = "; ".join(reasons) or f"{names}: insufficient capacity in the reservation."
        return _start(nodes, places, "ReservationCapacityExceeded", missing, owner)

    def release(self, owner: str) -> None:
        """Give back all that a node group holds."""
        self._held.pop(owner, None)

    def _targeted(self, region: str, target: Mapping[str, Any]) -> list[Reservation]:
        if target.get("CapacityReservationId"):
            return self.describe(region, [target["CapacityReservationId"]])
        members = self.group_members(str(target.get("CapacityReservationResourceGroupArn")))
        return self.describe(region, [arn.rpartition("/")[2] for arn in members]) if members else []

    def _shown(self, made: Reservation) -> Reservation:
        name, now = made["CapacityReservationId"], datetime.now(UTC)
        held = sum(shares.get(name, 0) for shares in self._held.values())
        state = "active"
        if made.get("Cancelled"):
            state = "cancelled"
        elif made.get("EndDate") and made["EndDate"] <= now:
            state = "expired"
        elif made["StartDate"] > now:
            state = "scheduled"
        shown = {key: value for key, value in made.items() if key != "Cancelled"}
        available = made["TotalInstanceCount"] - held if state == "active" else 0
        return {**shown, "State": state, "AvailableInstanceCount": max(available, 0)}


def _mismatch(reservation: Reservation, instance_type: str, zone: str, block: bool) -> str:
    """Why no instance of a template starts in a reservation, or nothing."""
    name = reservation["CapacityReservationId"]
    if reservation["State"] != "active":
        return f"The capacity reservation '{name}' is {reservation['State']}."
    if reservation["InstanceType"] != instance_type:
        return f"The capacity reservation '{name}' is for {reservation['InstanceType']}, not {instance_type}."
    if reservation["AvailabilityZone"] != zone:
        return f"The capacity reservation '{name}' is in {reservation['AvailabilityZone']}, not {zone}."
    if (reservation["ReservationType"] == "capacity-block") != block:
        return f"The capacity reservation '{name}' is of type {reservation['ReservationType']}, which the market type does not fit."
    return ""


def _start(nodes: int, places: int, code: str, message: str, owner: str) -> Start:
    if places >= nodes:
        return Start(nodes)
    # EKS puts what the Auto Scaling group met into one of its own codes; that of EC2 stands in the message.
    issue = {
        "code": "AsgInstanceLaunchFailures",
        "message": f"Could not launch On-Demand Instances. {code} - {message} Launching EC2 instance failed.",
        "resourceIds": [owner.rpartition("/")[2]],
    }
    return Start(places, [issue])


def moment(value: Any) -> datetime | None:
    """A point in time of a request."""
    if value is None:
        return None
    read = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return read if read.tzinfo else read.replace(tzinfo=UTC)


CAPACITY = Capacity()
"""Of the account of this process."""
