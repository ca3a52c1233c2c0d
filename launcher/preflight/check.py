"""What a check is, and what it may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.spec.settings import Settings

State = Literal["ok", "warning", "failed", "unchecked"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the table."""

    name: str
    state: State
    """``unchecked``: it could not be asked; `seen` says why."""
    seen: str
    do: str = ""
    """The way out, where there is something to do."""


def ok(name: str, seen: str) -> Check:
    """It is as it must be."""
    return Check(name=name, state="ok", seen=seen)


def warning(name: str, seen: str, do: str) -> Check:
    """It will do, and is worth a look."""
    return Check(name=name, state="warning", seen=seen, do=do)


def failed(name: str, seen: str, do: str) -> Check:
    """`pulumi up` or the jobs would fail on it."""
    return Check(name=name, state="failed", seen=seen, do=do)


def unchecked(name: str, why: str, do: str = "") -> Check:
    """It could not be asked."""
    return Check(name=name, state="unchecked", seen=why, do=do)


@dataclass
class Context:
    """What every check is given. Answers that several of them need are asked for once."""

    stack: str
    settings: Settings
    aws: Aws
    now: datetime
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """The stack's outputs; empty where it is not up, or nobody is signed in to its backend."""

    @cached_property
    def zones(self) -> dict[str, str]:
        """Id by name of every zone that the account may use in the region. Raises `AwsError`."""
        found = self.aws.all("ec2", "describe_availability_zones", "AvailabilityZones")
        return {str(zone["ZoneName"]): str(zone["ZoneId"]) for zone in found if zone.get("State") == "available"}

    def zone_name(self, zone: str) -> str | None:
        """The name in this account of a zone that is given by name or id; None: the account has no such zone."""
        if zone in self.zones:
            return zone
        return next((name for name, identity in self.zones.items() if identity == zone), None)

    @cached_property
    def caller(self) -> dict[str, str]:
        """``Account`` and ``Arn`` of the credentials. Raises `AwsError`."""
        found = self.aws.ask("sts", "get_caller_identity")
        return {key: str(found[key]) for key in ("Account", "Arn")}

    def wanted_nodes(self) -> dict[str, int]:
        """The most nodes that each GPU group is asked for: `desired`, or what its largest job takes."""
        wanted = {group.name: max(group.desired, group.capacity.scheduled_nodes) for group in self.settings.gpu_nodes}
        for name, job in self.settings.jobs.items():
            group = self.settings.group_of(name)
            wanted[group.name] = max(wanted[group.name], job.nodes)
        return wanted


def why_not(error: AwsError) -> tuple[str, str]:
    """What is seen and what to do where a check cannot be made."""
    if error.denied:
        return f"the credentials may not ask this: {error}", "ask with a role that may, or let its owner run preflight"
    return str(error), ""
