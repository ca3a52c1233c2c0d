"""What EC2 and EKS refuse, as pure functions: used by the account's API and by the provider's check at preview.

Each returns problems as ``(path, message)``; the path is in the API's spelling, e.g. ``NetworkInterfaces[3].DeviceIndex``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Problem = tuple[str, str]

EFA_INTERFACE_TYPES = ("efa", "efa-only")


def launch_template_problems(data: Mapping[str, Any], instance: Mapping[str, Any] | None = None) -> list[Problem]:
    """Problems of a LaunchTemplateData, and where the instance type's API description is given, of both together."""
    problems: list[Problem] = []
    interfaces: list[Mapping[str, Any]] = list(data.get("NetworkInterfaces") or [])
    if interfaces and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        problems.append(
            (
                "SecurityGroupIds",
                "Network interfaces and an instance-level security groups may not be specified on the same request: "
                "name the groups in each network interface",
            )
        )
    if len(interfaces) > 1:
        problems += [
            (
                f"NetworkInterfaces[{index}].AssociatePublicIpAddress",
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces",
            )
            for index, interface in enumerate(interfaces)
            if interface.get("AssociatePublicIpAddress")
        ]
    problems += _duplicates(interfaces)
    if instance is not None:
        problems += interface_problems(interfaces, instance)
    return problems


def _duplicates(interfaces: Iterable[Mapping[str, Any]]) -> Iterable[Problem]:
    seen: dict[tuple[int, int], int] = {}
    for index, interface in enumerate(interfaces):
        place = (int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0))
        if place in seen:
            yield (
                f"NetworkInterfaces[{index}].DeviceIndex",
                f"network card {place[0]} already has an interface with device index {place[1]} (interface {seen[place]})",
            )
        seen.setdefault(place, index)


def interface_problems(interfaces: Iterable[Mapping[str, Any]], instance: Mapping[str, Any]) -> list[Problem]:
    """Problems of network interfaces on an instance type (an item of DescribeInstanceTypes)."""
    name = instance["InstanceType"]
    network = instance.get("NetworkInfo", {})
    cards = {int(card["NetworkCardIndex"]): card for card in network.get("NetworkCards", [])}
    efa_limit = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))
    problems: list[Problem] = []
    efa = 0
    for index, interface in enumerate(interfaces):
        path = f"NetworkInterfaces[{index}]"
        card_index, device = int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)
        kind = interface.get("InterfaceType") or "interface"
        if kind in EFA_INTERFACE_TYPES:
            efa += 1
            if not network.get("EfaSupported"):
                problems.append((f"{path}.InterfaceType", f"EFA interfaces are not supported on {name}"))
                continue
        card = cards.get(card_index)
        if card is None:
            problems.append(
                (
                    f"{path}.NetworkCardIndex",
                    f"{name} has no network card {card_index}; it has cards 0 to {max(cards, default=0)}",
                )
            )
            continue
        limit = int(card["MaximumNetworkInterfaces"])
        if device >= limit:
            problems.append(
                (
                    f"{path}.DeviceIndex",
                    f"device index {device} is over the limit of network card {card_index} of {name}, which has {limit} "
                    f"interfaces (0 to {limit - 1})",
                )
            )
        if kind not in card.get("InterfaceTypes", [kind]):
            problems.append(
                (
                    f"{path}.InterfaceType",
                    f"network card {card_index} of {name} takes {', '.join(card['InterfaceTypes'])}, not {kind}",
                )
            )
    if network.get("EfaSupported") and efa > efa_limit:
        problems.append(("NetworkInterfaces", f"{efa} EFA interfaces are more than the {efa_limit} of {name}"))
    return problems


def efa_interfaces(data: Mapping[str, Any]) -> int:
    """EFA interfaces of a LaunchTemplateData."""
    return sum(i.get("InterfaceType") in EFA_INTERFACE_TYPES for i in data.get("NetworkInterfaces") or [])


def max_pods(instance: Mapping[str, Any]) -> int:
    """Pods that EKS lets a node have: the interfaces' secondary addresses, capped at 110, or 250 above 30 vCPU."""
    network = instance["NetworkInfo"]
    card = next(
        c for c in network["NetworkCards"] if int(c["NetworkCardIndex"]) == network.get("DefaultNetworkCardIndex", 0)
    )
    addresses = int(card["MaximumNetworkInterfaces"]) * (int(network["Ipv4AddressesPerInterface"]) - 1) + 2
    return min(addresses, 250 if vcpus(instance) > 30 else 110)


def vcpus(instance: Mapping[str, Any]) -> int:
    """vCPUs of an instance type."""
    return int(instance["VCpuInfo"]["DefaultVCpus"])


def gpus(instance: Mapping[str, Any]) -> int:
    """GPUs of an instance type."""
    return sum(int(gpu["Count"]) for gpu in instance.get("GpuInfo", {}).get("Gpus", []))


def scaling_problem(scaling: Mapping[str, Any]) -> str | None:
    """Why EKS refuses a node group's sizes, or None."""
    low, high, desired = (scaling.get(key) for key in ("minSize", "maxSize", "desiredSize"))
    if high is not None and int(high) < 1:
        return f"maxSize {high}: the maximum size of a node group is at least 1"
    if None not in (low, high) and int(low or 0) > int(high or 0):
        return f"minSize {low} is over maxSize {high}"
    if None not in (low, desired) and int(desired or 0) < int(low or 0):
        return f"desiredSize {desired} is under minSize {low}"
    if None not in (high, desired) and int(desired or 0) > int(high or 0):
        return f"desiredSize {desired} is over maxSize {high}"
    return None
