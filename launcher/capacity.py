"""``eks-fsdp capacity``: what can be bought and what is reserved already, and the settings for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.offerings import END_MINUTES, count_problem, duration_problem

from .aws import Aws, AwsError
from .errors import UserError
from .live import console, live_line

SEARCH_DAYS = 56
"""How far ahead blocks can be bought (EC2 User Guide: eight weeks)."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One row: a block that can be bought, or a reservation or block that the account has."""

    kind: Literal["offer", "block", "odcr"]
    """``offer``: not bought yet."""
    id: str
    region: str
    zone: str
    zone_id: str
    instance_type: str
    nodes: int
    """Instances in all."""
    free: int
    """Instances that nobody uses yet."""
    starts: datetime | None
    ends: datetime | None
    """None: until it is cancelled."""
    state: str
    price: float | None = None
    """US dollars for the whole block, paid at once."""

    @property
    def hours(self) -> float | None:
        """From start to end."""
        return (self.ends - self.starts).total_seconds() / 3600 if self.starts and self.ends else None

    @property
    def node_hour(self) -> float | None:
        """US dollars for each node and hour."""
        return self.price / (self.nodes * self.hours) if self.price is not None and self.hours else None


def as_offer(item: dict[str, Any], region: str, zones: dict[str, str]) -> Offer:
    """A row of DescribeCapacityBlockOfferings."""
    zone = str(item["AvailabilityZone"])
    return Offer(
        kind="offer",
        id=str(item["CapacityBlockOfferingId"]),
        region=region,
        zone=zone,
        zone_id=zones.get(zone, ""),
        instance_type=str(item["InstanceType"]),
        nodes=int(item["InstanceCount"]),
        free=int(item["InstanceCount"]),
        starts=item["StartDate"],
        ends=item["EndDate"],
        state="for sale",
        price=float(item["UpfrontFee"]),
    )


def as_reservation(item: dict[str, Any], region: str) -> Offer:
    """A row of DescribeCapacityReservations."""
    return Offer(
        kind="block" if item.get("ReservationType") == "capacity-block" else "odcr",
        id=str(item["CapacityReservationId"]),
        region=region,
        zone=str(item["AvailabilityZone"]),
        zone_id=str(item.get("AvailabilityZoneId") or ""),
        instance_type=str(item["InstanceType"]),
        nodes=int(item["TotalInstanceCount"]),
        free=int(item["AvailableInstanceCount"]),
        starts=item.get("StartDate"),
        ends=item.get("EndDate"),
        state=str(item["State"]),
    )


def in_order(offers: Sequence[Offer]) -> list[Offer]:
    """Soonest first, then cheapest; what is running already comes before all that begins later."""
    never = datetime.max.replace(tzinfo=UTC)
    return sorted(offers, key=lambda o: (o.starts or never, o.price or 0.0, o.zone, o.id))


def best(offers: Sequence[Offer], nodes: int) -> Offer | None:
    """The row to take: an own reservation that holds ``nodes``, else the soonest and then cheapest offer; `in_order`."""
    own = [o for o in offers if o.kind != "offer" and o.free >= nodes]
    return next(iter(own), None) or next((o for o in offers if o.kind == "offer"), None)


def settings_for(offer: Offer, nodes: int, now: datetime) -> list[str]:
    """Lines of a stack file for one row."""
    group = offer.instance_type.partition(".")[0]
    begun = offer.starts is None or offer.starts <= now
    lines = [
        f"eks-fsdp:region: {offer.region}",
        "eks-fsdp:gpu_nodes:",
        f"  - name: {group}",
        f"    instance_type: {offer.instance_type}",
        f"    zone: {offer.zone_id or offer.zone}" + (f"  # {offer.zone} in this account" if offer.zone_id else ""),
        f"    desired: {nodes if begun else 0}",
        f"    max: {nodes}",
        "    capacity:",
    ]
    if offer.kind == "odcr":
        return [*lines, "      kind: odcr", f"      reservation_id: {offer.id}"]
    bought = offer.id if offer.kind == "block" else "cr-...  # the id that the purchase prints"
    lines += ["      kind: capacity-block", f"      reservation_id: {bought}"]
    if offer.starts is not None and not begun:
        lines += [f'      starts: "{_iso(offer.starts)}"', f"      scheduled_nodes: {nodes}"]
    return lines + ([f'      ends: "{_iso(offer.ends)}"'] if offer.ends else [])


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ask(region: str, instance_type: str, nodes: int, days: int, now: datetime) -> tuple[list[Offer], str]:
    """One region's rows, and why some could not be asked for; empty: all could."""
    aws, found, troubles = Aws(region), list[Offer](), list[str]()
    try:
        zones = {
            str(zone["ZoneName"]): str(zone["ZoneId"])
            for zone in aws.all("ec2", "describe_availability_zones", "AvailabilityZones")
        }
    except AwsError as error:
        return [], f"{region}: {error}"
    try:
        offers = aws.all(
            "ec2",
            "describe_capacity_block_offerings",
            "CapacityBlockOfferings",
            InstanceType=instance_type,
            InstanceCount=nodes,
            CapacityDurationHours=days * 24,
            StartDateRange=now,
            EndDateRange=now + timedelta(days=SEARCH_DAYS + days),
        )
        found += [as_offer(item, region, zones) for item in offers]
    except AwsError as error:
        # A region without blocks of this type refuses the question.
        troubles.append(f"{region}: no capacity blocks: {error}")
    try:
        own = aws.all(
            "ec2",
            "describe_capacity_reservations",
            "CapacityReservations",
            Filters=[
                {"Name": "instance-type", "Values": [instance_type]},
                {"Name": "state", "Values": ["active", "pending", "scheduled", "payment-pending"]},
            ],
        )
        found += [as_reservation(item, region) for item in own]
    except AwsError as error:
        troubles.append(f"{region}: own reservations: {error}")
    return found, "; ".join(troubles)


def capacity(
    instance_type: str, nodes: int, days: int, regions: Sequence[str], *, chosen: str | None, as_json: bool
) -> bool:
    """Print what there is. Returns whether there is anything. Raises `UserError`."""
    _check(instance_type, nodes, days)
    now = datetime.now(UTC)
    with ThreadPoolExecutor(max(1, min(16, len(regions)))) as pool:
        asking = pool.map(lambda region: ask(region, instance_type, nodes, days, now), regions)
        if as_json:
            answers = list(asking)
        else:
            with live_line(f"Asking {', '.join(regions)}"):
                answers = list(asking)
    offers = in_order([offer for found, _ in answers for offer in found])
    troubles = [trouble for _, trouble in answers if trouble]
    if not offers and troubles and all("credentials" in trouble for trouble in troubles):
        raise UserError(troubles[0].partition(": ")[2])
    pick = next((o for o in offers if o.id == chosen), None) if chosen else best(offers, nodes)
    if chosen and pick is None:
        raise UserError(f"--choose {chosen}: not among these; there: {', '.join(o.id for o in offers) or 'none'}")
    lines = settings_for(pick, nodes, now) if pick else []
    if as_json:
        rows = [{**asdict(o), "hours": o.hours, "price_per_node_hour": o.node_hour} for o in offers]
        answer = {"offers": rows, "chosen": pick.id if pick else None, "settings": lines, "troubles": troubles}
        print(json.dumps(answer, indent=1, default=lambda moment: _iso(moment)))
    else:
        show(offers, pick, lines, troubles, f"{nodes} x {instance_type} for {days} day{'s' if days > 1 else ''}")
    return bool(offers)


def _check(instance_type: str, nodes: int, days: int) -> None:
    if instance_type not in INSTANCE_TYPES:
        raise UserError(
            f"--type {instance_type!r} is not in the catalogue; accepted: {', '.join(sorted(INSTANCE_TYPES))}"
        )
    if problem := count_problem(nodes):
        raise UserError(f"--nodes {problem}")
    if problem := duration_problem(days):
        raise UserError(f"--days {problem}")


def show(offers: Sequence[Offer], pick: Offer | None, lines: Sequence[str], troubles: Sequence[str], what: str) -> None:
    """Print the table, the settings, and what to run."""
    if offers:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, title=what, title_justify="left")
        table.add_column("Block or reservation", no_wrap=True)
        table.add_column("From – to (UTC)", no_wrap=True)
        table.add_column("Zone", no_wrap=True)
        table.add_column("Nodes", justify="right")
        table.add_column("Price,\na node-hour", justify="right", no_wrap=True)
        for offer in offers:
            mark = "► " if offer is pick else "  "
            word = {"offer": "for sale", "block": "own block", "odcr": "own ODCR"}[offer.kind]
            state = f", {offer.state}" if offer.kind != "offer" else ""
            nodes = str(offer.nodes) if offer.kind == "offer" else f"{offer.free} of {offer.nodes} free"
            table.add_row(
                Text.assemble(
                    (mark, "green"), (offer.id, "bold" if offer is pick else ""), (f"\n  {word}{state}", "dim")
                ),
                f"{_short(offer.starts)}\n– {_short(offer.ends) if offer.ends else 'no end'}",
                f"{offer.zone}\n{offer.zone_id}",
                nodes,
                f"${offer.price:,.0f}\n${offer.node_hour:,.2f}" if offer.price and offer.node_hour else "–",
            )
        console.print(table)
    else:
        console.print(f"No capacity block is offered and none is reserved for {what}.")
    for trouble in troubles:
        console.print(Text.assemble(("not asked  ", "yellow"), trouble), soft_wrap=True)
    if pick is None:
        return
    if pick.kind == "offer":
        console.print(f"To buy [bold]{pick.id}[/] (${pick.price:,.2f}, paid at once, cannot be cancelled):")
        command = (
            f"  aws ec2 purchase-capacity-block --region {pick.region} --capacity-block-offering-id {pick.id} "
            "--instance-platform Linux/UNIX"
        )
        console.print(Text(command), soft_wrap=True)
    console.print(f"Settings for [bold]{pick.id}[/]:")
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if pick.ends is not None and pick.kind != "odcr":
        console.print(
            Text(
                f"EC2 ends its instances {END_MINUTES} minutes before the end; EKS drains the nodes earlier still.",
                "dim",
            ),
            soft_wrap=True,
        )


def _short(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if moment else "–"
