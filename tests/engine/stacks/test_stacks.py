"""Every stack file: previewed with no credentials and with the policy pack on, brought up in a sandbox, and counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import POLICIES, ROOT, MakeStack, Sandbox, Stack

pytestmark = pytest.mark.engine
TABLES: dict[str, Path] = {
    "p5-16": ROOT / "docs" / "p5-stack.md",
    **{
        name: Path(__file__).parent / "tables" / f"{name}.md"
        for name in ("p4de-odcr", "p5-capacity-block", "p5-existing-cluster", "g5-dev", "ci")
    },
}
HERE: dict[str, dict[str, Any]] = {
    # In place of URLs, for which the network is needed.
    "training_operator": {"manifests": "build/training-operator/base"},
    "queue": {"manifests": "build/kueue/default"},
    # Nobody outside is asked for this machine's address.
    "cluster": {"api_access": {"caller_ip": "none", "allowed_cidrs": ["127.0.0.1/32"]}},
}
"""What differs from the stack file: nothing of what is made."""
IDLE_IMAGE = "registry.example.com/idle:1"
"""Of which the sandbox knows nothing: its containers run, and do nothing. No machine here runs 128 ranks."""


def config_of(name: str) -> dict[str, Any]:
    """A stack file's settings by name."""
    content = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"]
    return {key.partition(":")[2]: value for key, value in content.items()}


def idle_jobs(config: Mapping[str, Any]) -> dict[str, Any]:
    """The jobs of a stack, with an image that does nothing."""
    return {name: {**job, "image": IDLE_IMAGE} for name, job in config.get("jobs", {}).items()}


def up(stack: Stack, **config: Any) -> None:
    """Preview and update in one, both under the policies."""
    own = config_of(stack.name)
    here = {part: {**own.get(part, {}), **values} for part, values in HERE.items()}
    stack.configure(**{**here, "jobs": idle_jobs(own), **config})
    stack.pulumi("up", "--yes", "--policy-pack", str(POLICIES))


def compare(stack: Stack) -> None:
    """The table of what was made is the one that is kept; with ``EKS_FSDP_UPDATE_GOLDEN=1`` it is written."""
    state = stack.pulumi("stack", "export")
    made = stack.sandbox.run(sys.executable, str(ROOT / "scripts" / "stack-table"), stack.name, text=state)
    file = TABLES[stack.name]
    if os.environ.get("EKS_FSDP_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(made)
    assert file.exists(), f"{file} is missing: make it with EKS_FSDP_UPDATE_GOLDEN=1 and read it"
    assert made == file.read_text(), f"{file} differs: after reading the difference, EKS_FSDP_UPDATE_GOLDEN=1"


def test_every_stack_file_is_brought_up_somewhere() -> None:
    files = {
        file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in (ROOT / "stacks").glob("Pulumi.*.yaml")
    }
    # The sandbox's own is up in tests/e2e.
    assert files == {*TABLES, "sandbox"}


def test_the_p5_stack_and_a_team_on_its_cluster(empty_sandbox: Sandbox, make_stack: MakeStack) -> None:
    platform = make_stack("p5-16")
    up(platform)
    compare(platform)
    nodes = json.loads(empty_sandbox.run("kubectl", "get", "nodes", "-l", "eksfsdp/role=gpu", "-o", "json"))["items"]
    assert len(nodes) == 16

    empty_sandbox.run("kubectl", "create", "namespace", "ml-research")
    empty_sandbox.run("kubectl", "create", "serviceaccount", "training", "-n", "ml-research")
    team = make_stack("p5-existing-cluster")
    there = {"mode": "existing"}
    up(
        team,
        cluster={**there, "kubeconfig": empty_sandbox.environment["KUBECONFIG"]},
        training_operator=there,
        queue={"mode": "none"},
    )
    compare(team)
    found = empty_sandbox.run("kubectl", "get", "pytorchjobs", "-A", "-o", "name")
    assert found.count("pytorchjob") == 2


def nothing(sandbox: Sandbox) -> dict[str, Any]:
    """Nothing has to be there before."""
    return {}


def an_expiry(sandbox: Sandbox) -> dict[str, Any]:
    """What each run in CI fills in."""
    ends = datetime.now(UTC) + timedelta(hours=3)
    return {"guard": {**config_of("ci")["guard"], "expiry": ends.isoformat(timespec="seconds")}}


def a_reservation(sandbox: Sandbox) -> dict[str, Any]:
    """Eight p4de nodes are reserved."""
    (group,) = config_of("p4de-odcr")["gpu_nodes"]
    made = sandbox.account("ec2").create_capacity_reservation(
        InstanceType=group["instance_type"],
        InstancePlatform="Linux/UNIX",
        AvailabilityZoneId=group["zone"],
        InstanceCount=group["max"],
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]
    capacity = {**group["capacity"], "reservation_id": made["CapacityReservationId"]}
    # Two of the eight, for this machine's sake: how many there are changes no resource.
    return {"gpu_nodes": [{**group, "desired": 2, "capacity": capacity}]}


def a_block(sandbox: Sandbox) -> dict[str, Any]:
    """A week of sixteen p5 nodes was bought."""
    own = config_of("p5-capacity-block")
    (group,) = own["gpu_nodes"]
    ec2 = sandbox.account("ec2")
    offered = ec2.describe_capacity_block_offerings(
        InstanceType=group["instance_type"], InstanceCount=group["max"], CapacityDurationHours=168
    )["CapacityBlockOfferings"][0]
    made = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offered["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    zone = made["AvailabilityZone"]
    capacity = {
        **group["capacity"],
        "reservation_id": made["CapacityReservationId"],
        "starts": made["StartDate"].isoformat(),
        "ends": made["EndDate"].isoformat(),
    }
    return {
        "network": {"zones": sorted({zone, "us-west-2a", "us-west-2b"})},
        "gpu_nodes": [{**group, "zone": zone, "capacity": capacity}],
    }


@pytest.mark.parametrize(
    ("name", "seed"),
    [("g5-dev", nothing), ("ci", an_expiry), ("p4de-odcr", a_reservation), ("p5-capacity-block", a_block)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_stack(
    name: str, seed: Callable[[Sandbox], dict[str, Any]], empty_sandbox: Sandbox, make_stack: MakeStack
) -> None:
    stack = make_stack(name)
    up(stack, **seed(empty_sandbox))
    compare(stack)
