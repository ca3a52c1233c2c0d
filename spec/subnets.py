"""Address ranges of the program's own VPC, computed from its size and from what the nodes need."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

TAKEN_BY_AWS = 5
"""Addresses of each subnet that AWS keeps: network, router, DNS, reserved, broadcast."""


def zone_prefix(region: str) -> str:
    """How ids of the region's zones begin: ``usw2-`` of us-west-2, ``apse1-`` of ap-southeast-1."""
    area, *compass, number = region.split("-")
    short = {"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"}
    return area + "".join(short.get(part, part[:1] if part != "gov" else "g") for part in compass) + number + "-"


def is_zone_id(zone: str) -> bool:
    """Whether ``zone`` is the id of an availability zone (``usw2-az1``), not its name in one account (``us-west-2a``)."""
    return "-az" in zone


@dataclass(frozen=True, kw_only=True)
class SubnetPlan:
    """The address ranges of one zone."""

    zone: str
    public: str
    """CIDR of the public subnet: NAT gateways and load balancers."""
    private: str
    """CIDR of the private subnet: nodes, file systems, and pods where they have no range of their own."""
    intra: str
    """CIDR of the intra subnet, from which no way leads out: the control plane's interfaces and the endpoints of AWS' services."""
    pods: str | None = None
    """CIDR of the pods' own subnet."""


def usable(cidr: str) -> int:
    """Addresses of a subnet that AWS gives out."""
    return ipaddress.IPv4Network(cidr).num_addresses - TAKEN_BY_AWS


def plan_subnets(
    cidr: str, zones: Sequence[str], *, pod_cidr: str | None = None, needed: Mapping[str, int] | None = None
) -> list[SubnetPlan]:
    """Ranges for up to four zones in ``cidr`` (a /16 to /20), and in ``pod_cidr``.

    In parts of 64: private subnets have 8 each (8,187 usable addresses of a /16, 507 of a /20), public and intra ones 1
    each; 8 stay free. One zone that needs more addresses than that has the last 16 instead. So the plan of a zone depends
    neither on how many zones follow it nor on what the others need: a live subnet is never moved for another one's sake.
    Each pod subnet is a quarter of ``pod_cidr``. Raises `ValueError`, naming the zone, where that is not enough.
    """
    vpc = ipaddress.IPv4Network(cidr)
    parts = list(vpc.subnets(prefixlen_diff=6))
    eighths = list(vpc.subnets(prefixlen_diff=3))
    last = list(vpc.subnets(prefixlen_diff=2))[3]
    pods = list(ipaddress.IPv4Network(pod_cidr).subnets(prefixlen_diff=2)) if pod_cidr else []
    wide = _wide_zone(zones, needed or {}, usable(str(eighths[0])), usable(str(last)))
    return [
        SubnetPlan(
            zone=zone,
            private=str(last if zone == wide else eighths[index]),
            public=str(parts[32 + index]),
            intra=str(parts[36 + index]),
            pods=str(pods[index]) if pods else None,
        )
        for index, zone in islice(enumerate(zones), 4)
    ]


def _wide_zone(zones: Sequence[str], needed: Mapping[str, int], usual: int, wide: int) -> str | None:
    """The zone whose private subnet must be the large one."""
    large = [zone for zone in zones if needed.get(zone, 0) > usual]
    for zone in large:
        if needed[zone] > wide:
            raise ValueError(f"zone {zone} needs {needed[zone]} addresses, and a private subnet has at most {wide}")
    if len(large) > 1:
        raise ValueError(
            f"zones {' and '.join(large)} need {' and '.join(str(needed[zone]) for zone in large)} addresses; one zone's "
            f"private subnet has up to {wide}, the others' have {usual} each"
        )
    return large[0] if large else None
