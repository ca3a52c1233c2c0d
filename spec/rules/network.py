"""Rules of the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eks_fsdp.spec.subnets import is_zone_id, zone_prefix

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

INTERFACES_FOR_CUSTOM_NETWORKING = 3
"""Interfaces of a card from which pods may have one in a subnet of their own beside the node's address and EFA."""


def zones_of_region(settings: Settings) -> Iterable[str]:
    """Zones by name are zones of the region."""
    if settings.cluster.mode == "existing":
        return
    zones = settings.network.node_zones
    if len({is_zone_id(zone) for zone in zones}) > 1:
        yield f"network.zones: {zones!r} mixes names and ids, and both may mean one zone; accepted: all names or all ids"
    for zone in zones:
        if is_zone_id(zone) and not zone.startswith(zone_prefix(settings.region)):
            yield (
                f"network.zones: {zone!r} is not in region {settings.region!r}; accepted: ids that begin with "
                f"{zone_prefix(settings.region)}"
            )
        if not is_zone_id(zone) and zone[:-1] != settings.region:
            yield (
                f"network.zones: {zone!r} is not in region {settings.region!r}; accepted: {settings.region}a, "
                f"{settings.region}b, ..., or zone ids"
            )


def pod_range(settings: Settings) -> Iterable[str]:
    """A range of their own for pods goes with the program's own VPC, and types with interfaces to spare.

    vpc-cni gives pods in other subnets an interface of their own on the first card. A p5 has two interfaces on it, and as
    many in all as it has EFA interfaces: no pod would ever get an address (aws/amazon-vpc-cni-k8s#3189).
    """
    network = settings.network
    if network.pod_cidr is None or settings.cluster.mode == "existing":
        return
    setting = f"network.pod_cidr: {network.pod_cidr!r}"
    if network.existing is not None:
        yield f"{setting} with network.existing, whose subnets are used as they are; accepted: one of them"
    for index, group in enumerate(settings.gpu_nodes):
        if group.instance.interfaces_per_card < INTERFACES_FOR_CUSTOM_NETWORKING and group.uses_efa:
            yield (
                f"{setting} with gpu_nodes[{index}] ({group.instance_type}): its network cards take "
                f"{group.instance.interfaces_per_card} interfaces each, so that none is left for pods in subnets of their "
                "own, and no pod starts; accepted: no pod_cidr (with prefix_delegation a node takes few addresses), or "
                "another instance type"
            )
