"""EC2's vCPU quotas: which one an instance type counts against, and how many vCPUs a stack takes of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .instances import INSTANCE_TYPES
from .settings.gpu_nodes import GpuNodeGroupSettings


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota of Service Quotas, service ``ec2``. Its value is in vCPUs."""

    code: str
    name: str
    families: str
    """Pattern of the instance types that count against it."""
    spot: bool = False

    def covers(self, instance_type: str) -> bool:
        """Whether instances of this type count against it."""
        return re.match(self.families, instance_type) is not None


# Codes and names: EC2 User Guide, pages "On-Demand Instance quotas" and "Spot Instance quotas".
QUOTAS: tuple[Quota, ...] = (
    Quota(code="L-417A185B", name="Running On-Demand P instances", families=r"p\d"),
    Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances", families=r"(g|vt)\d"),
    Quota(
        code="L-1216C47A",
        name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        families=r"(a|c|d|h|i|m|r|t|z)\d|im4gn|is4gen",
    ),
    Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests", families=r"p[234]", spot=True),
    Quota(code="L-C4BD4855", name="All P5 Spot Instance Requests", families=r"p5", spot=True),
    Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests", families=r"(g|vt)\d", spot=True),
)
"""Those that training stacks meet. Sources disagree on which one Spot p6 counts against, so none is here."""


def quota_of(instance_type: str, *, spot: bool = False) -> Quota | None:
    """The quota that a type counts against; None: not known."""
    return next((quota for quota in QUOTAS if quota.spot == spot and quota.covers(instance_type)), None)


def wanted_vcpus(groups: Mapping[str, tuple[GpuNodeGroupSettings, int]]) -> dict[Quota | None, int]:
    """vCPUs by quota for ``nodes`` of each group, given as ``{name: (group, nodes)}``.

    Capacity blocks have capacity of their own. A Capacity Reservation counts from its creation on, used or not (EC2
    User Guide), so nodes that run in one take nothing more.
    """
    wanted: dict[Quota | None, int] = {}
    for group, nodes in groups.values():
        if nodes and not group.capacity.reserved:
            quota = quota_of(group.instance_type, spot=group.capacity.kind == "spot")
            most = max(INSTANCE_TYPES[name].vcpus for name in (group.instance_type, *group.alternatives))
            wanted[quota] = wanted.get(quota, 0) + nodes * most
    return wanted
