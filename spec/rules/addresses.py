"""Addresses of a private subnet: what the nodes of a zone take, against what the subnet has.

The preview compares with the plan of the program's own VPC; the launcher's preflight compares the same need with what AWS
says is free in a subnet that is there already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from eks_fsdp.spec.instances import PREFIX_ADDRESSES
from eks_fsdp.spec.subnets import plan_subnets

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings

GPU_NODE_PODS = 16
"""Pods with an address of their own on a GPU node: the daemons (about ten), and those of a job."""
SYSTEM_NODE_PODS = 48
"""The same on a system node."""
MINIMUM_ADDRESSES, WARM_ADDRESSES = 20, 2
"""vpc-cni without prefix delegation holds as many addresses on a node at least, and as many beyond those in use."""
WARM_PREFIXES = 1
"""vpc-cni with prefix delegation holds as many /28 beyond those in use."""
OTHERS = 32
"""Addresses of a zone for what is no node: file systems, load balancers."""


def pod_addresses(pods: int, *, prefix_delegation: bool) -> int:
    """Addresses that vpc-cni holds on a node with ``pods`` pods, with the settings that the program gives it."""
    if prefix_delegation:
        return (math.ceil(pods / PREFIX_ADDRESSES) + WARM_PREFIXES) * PREFIX_ADDRESSES
    return max(MINIMUM_ADDRESSES, pods + WARM_ADDRESSES)


def node_addresses(group: GpuNodeGroupSettings, settings: Settings) -> int:
    """Addresses of the private subnet that one node of ``group`` takes. Raises `ValueError` for an impossible EFA layout."""
    own = group.instance.addresses(group.efa)
    if settings.network.pod_cidr is not None:
        return own
    pods = min(GPU_NODE_PODS, group.max_pods or GPU_NODE_PODS)
    return own + pod_addresses(pods, prefix_delegation=settings.cluster.addons.prefix_delegation)


def system_addresses(settings: Settings) -> int:
    """Addresses that the system nodes take, all of them in one zone, with the one more that an update brings."""
    delegated = settings.cluster.addons.prefix_delegation
    pods = 0 if settings.network.pod_cidr else pod_addresses(SYSTEM_NODE_PODS, prefix_delegation=delegated)
    return (settings.system_nodes.desired + 1) * (1 + pods)


def needed(settings: Settings) -> dict[str, int]:
    """Addresses that each zone's private subnet must have, with every GPU group at its ``max``."""
    rest = system_addresses(settings) + OTHERS
    return {
        zone: rest + sum(g.max * node_addresses(g, settings) for g in settings.gpu_nodes if g.zone == zone)
        for zone in settings.network.node_zones
    }


def fit(settings: Settings) -> Iterable[str]:
    """The program's own subnets have an address for every node that may come."""
    network = settings.network
    if settings.cluster.mode == "existing" or network.existing is not None:
        return
    try:
        plan_subnets(network.cidr, network.zones, pod_cidr=network.pod_cidr, needed=needed(settings))
    except ValueError as error:
        groups = "; ".join(
            f"gpu_nodes[{i}] has up to {g.max} nodes of {node_addresses(g, settings)} addresses each"
            for i, g in enumerate(settings.gpu_nodes)
        )
        yield (
            f"network.cidr: {network.cidr!r}: {error} ({groups}); accepted: a wider range (up to /16), a lower max of the "
            "group, or pod_cidr"
        )
