"""Capacity: what is for sale and what is reserved, in order, with settings that the program accepts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from eks_fsdp.launcher.capacity import Offer, as_reservation, best, capacity, in_order, settings_for
from eks_fsdp.launcher.errors import UserError
from eks_fsdp.sandbox.account import Account
from eks_fsdp.spec.offerings import DURATION_DAYS, count_problem, duration_problem
from eks_fsdp.spec.settings import Settings

from .account_doubles import NOW, account

__all__ = ["account"]


def offer(identity: str, kind: Any = "offer", **more: Any) -> Offer:
    values: dict[str, Any] = {
        "region": "us-west-2",
        "zone": "us-west-2a",
        "zone_id": "usw2-az2",
        "instance_type": "p5.48xlarge",
        "nodes": 4,
        "free": 4,
        "starts": NOW + timedelta(days=1),
        "ends": NOW + timedelta(days=3),
        "state": "for sale",
        "price": 4 * 48 * 30.0 if kind == "offer" else None,
    }
    return Offer(kind=kind, id=identity, **{**values, **more})


@pytest.mark.parametrize("days", [0, 15, 20, 22, 183, -1])
def test_durations_that_nobody_sells(days: int) -> None:
    assert "accepted: 1 to 14, then whole weeks up to 182" in (duration_problem(days) or "")


def test_durations_that_aws_sells() -> None:
    assert [duration_problem(days) for days in (1, 14, 21, 28, 182)] == [None] * 5
    assert DURATION_DAYS[13:16] == (14, 21, 28)
    assert (count_problem(64), count_problem(1)) == (None, None)
    assert "accepted: 1 to 64" in (count_problem(65) or "")


def test_soonest_first_then_cheapest() -> None:
    late = offer("late", starts=NOW + timedelta(days=5))
    dear = offer("dear", price=9e9)
    open_ended = offer("odcr", "odcr", starts=NOW - timedelta(days=9), ends=None)
    rows = in_order([late, dear, offer("cheap"), open_ended])
    assert [row.id for row in rows] == ["odcr", "cheap", "dear", "late"]
    chosen = best(rows, 4)
    assert chosen is not None
    assert chosen.id == "odcr", "what is paid for already comes before what is for sale"
    assert (found := best(rows, 5)) is not None
    assert found.id == "cheap"
    assert best([open_ended], 5) is None
    assert offer("x").node_hour == pytest.approx(30.0)
    assert open_ended.node_hour is None


@pytest.mark.parametrize("kind", ["offer", "block", "odcr"])
def test_the_settings_are_what_the_program_takes(kind: Any) -> None:
    identity = "cr-0123456789abcdef0"
    text = "\n".join(settings_for(offer(identity, kind), 4, NOW)).replace(
        "cr-...  # the id that the purchase prints", identity
    )
    config = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in yaml.safe_load(text).items()
    }
    config["eks-fsdp:network"] = json.dumps({"zones": ["usw2-az2", "usw2-az1"]})
    group = Settings.from_config(config).gpu_nodes[0]
    assert group.zone == "usw2-az2"
    assert group.capacity.reservation_id == identity
    if kind == "odcr":
        assert (group.capacity.kind, group.capacity.ends) == ("odcr", None)
    else:
        assert (group.desired, group.capacity.scheduled_nodes) == (0, 4)
        assert group.capacity.starts == NOW + timedelta(days=1)


def test_a_block_that_has_begun_is_used_at_once() -> None:
    lines = settings_for(offer("cr-0123456789abcdef0", "block", starts=NOW - timedelta(hours=1)), 3, NOW)
    assert "    desired: 3" in lines
    assert not any("scheduled_nodes" in line or "starts:" in line for line in lines)


def test_own_reservations_and_offers_of_several_regions(account: Account, capfd: pytest.CaptureFixture[str]) -> None:
    ec2: Any = account.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-west-2b", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    assert capacity("p5.48xlarge", 2, 1, ["us-west-2", "us-east-1"], chosen=None, as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert answer["chosen"] == made
    assert "      kind: odcr" in answer["settings"]
    kinds = {(row["kind"], row["region"]) for row in answer["offers"]}
    assert kinds == {("odcr", "us-west-2"), ("offer", "us-west-2"), ("offer", "us-east-1")}
    assert all(row["zone_id"] for row in answer["offers"])
    sold = next(row for row in answer["offers"] if (row["kind"], row["region"]) == ("offer", "us-west-2"))
    assert sold["price_per_node_hour"] == pytest.approx(sold["price"] / 2 / 24)

    bought = ec2.purchase_capacity_block(CapacityBlockOfferingId=sold["id"], InstancePlatform="Linux/UNIX")
    row = as_reservation(bought["CapacityReservation"], "us-west-2")
    assert row.kind == "block"
    assert capacity("p5.48xlarge", 2, 1, ["us-west-2"], chosen=row.id, as_json=False)
    printed = capfd.readouterr().out
    assert "own block, scheduled" in printed
    assert "own ODCR, active" in printed
    assert "kind: capacity-block" in printed
    with pytest.raises(UserError, match=f"--choose nothing: not among these; there: .*{made}"):
        capacity("p5.48xlarge", 2, 1, ["us-west-2"], chosen="nothing", as_json=True)


def test_a_region_that_does_not_answer_is_told_beside_the_others(
    account: Account, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capacity("p5.48xlarge", 1, 1, ["us-west-2", "xx-west-9"], chosen=None, as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert [trouble.partition(":")[0] for trouble in answer["troubles"]] == ["xx-west-9"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(UserError, match="no AWS credentials"):
        capacity("p5.48xlarge", 1, 1, ["us-west-2"], chosen=None, as_json=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("p9.huge", 1, 1), "--type 'p9.huge' is not in the catalogue"),
        (("p5.48xlarge", 0, 1), "--nodes 0; accepted: 1 to 64"),
        (("p5.48xlarge", 1, 15), "--days 15 days; accepted"),
    ],
)
def test_what_cannot_be_had_is_not_asked_for(arguments: tuple[str, int, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        capacity(*arguments, ["us-west-2"], chosen=None, as_json=True)


def test_times_are_utc() -> None:
    moment = datetime(2027, 1, 31, 12, 30, tzinfo=UTC)
    lines = settings_for(offer("cr-0123456789abcdef0", "block", ends=moment), 1, NOW)
    assert '      ends: "2027-01-31T12:30:00Z"' in lines
