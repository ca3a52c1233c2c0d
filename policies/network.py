"""Rules of the network: EFA's security group, public addresses, and what the internet reaches."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .view import UNKNOWN, Resource, identifier, is_true

Problem = tuple[str, str]
"""URN and message."""
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
_RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
_INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
EFA_KINDS = ("efa", "efa-only")
CLUSTER = "aws:eks/cluster:Cluster"
EFA_TYPES = (TEMPLATE, GROUP, CLUSTER, _RULE, _INGRESS, _EGRESS)
"""Resources that `efa_groups` looks at."""
_WORLD_PREFIX = 7
"""Longest prefix that counts as the whole internet: two halves of it are no narrower than all of it."""


def no_public_address(resource: Resource) -> Iterable[str]:
    """Nodes have private addresses only; an EFA node with several interfaces cannot even have a public one."""
    match resource.type:
        case "aws:ec2/launchTemplate:LaunchTemplate":
            for index, interface in enumerate(resource.items("networkInterfaces")):
                if is_true(interface.get("associatePublicIpAddress")):
                    yield f"networkInterfaces[{index}].associatePublicIpAddress is true; accepted: false, or not set"
        case "aws:ec2/instance:Instance" | "aws:ec2/launchConfiguration:LaunchConfiguration":
            if is_true(resource.get("associatePublicIpAddress")):
                yield "associatePublicIpAddress is true; accepted: false, or not set"
        case "aws:ec2/subnet:Subnet":
            if is_true(resource.get("mapPublicIpOnLaunch")):
                yield "mapPublicIpOnLaunch is true: every node in it would get a public address; accepted: false"


def not_open_to_world(resource: Resource) -> Iterable[str]:
    """No security group lets the whole internet in."""
    match resource.type:
        case "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
            yield from _worlds("", resource.props)
        case "aws:ec2/securityGroupRule:SecurityGroupRule" if resource.get("type") == "ingress":
            yield from _worlds("", resource.props)
        case "aws:ec2/securityGroup:SecurityGroup" | "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup":
            for index, rule in enumerate(resource.items("ingress")):
                yield from _worlds(f"ingress[{index}].", rule)


def _worlds(path: str, rule: Mapping[str, Any]) -> Iterable[str]:
    for key in ("cidrIpv4", "cidrIpv6", "cidrBlocks", "ipv6CidrBlocks"):
        found = rule.get(key)
        for cidr in found if isinstance(found, list) else [found]:
            if isinstance(cidr, str) and _is_world(cidr):
                yield f"{path}{key} {cidr!r} lets in the whole internet; accepted: your own ranges, or a security group"


def _is_world(cidr: str) -> bool:
    try:
        return ipaddress.ip_network(cidr, strict=False).prefixlen <= _WORLD_PREFIX
    except ValueError:
        return False


def efa_groups(resources: Sequence[Resource]) -> Iterable[Problem]:
    """Every EFA interface carries a security group that lets all traffic from itself in, and to itself out.

    EFA's packets are no IP packets: a rule for 0.0.0.0/0 does not cover them. A group that is not of this stack cannot be
    looked into from here; `eks-fsdp preflight` does.
    """
    groups = {resource.urn: resource for resource in resources if resource.type == GROUP}
    open_groups = {urn for urn, group in groups.items() if _open_to_itself(group, resources)}
    open_ids = {identifier(groups[urn]) for urn in open_groups}
    ours = {identifier(group) for group in groups.values()}
    ours |= {r.get("vpcConfig.clusterSecurityGroupId") for r in resources if r.type == CLUSTER}
    for template in (resource for resource in resources if resource.type == TEMPLATE):
        sources = template.depends.get("networkInterfaces", frozenset())
        for index, interface in enumerate(template.items("networkInterfaces")):
            if interface.get("interfaceType") not in EFA_KINDS:
                continue
            carried = interface.get("securityGroups") or []
            known = [] if carried is UNKNOWN else [item for item in carried if item is not UNKNOWN]
            unknown = carried is UNKNOWN or UNKNOWN in carried
            if any(item in open_ids or item not in ours for item in known) or (unknown and sources & open_groups):
                continue
            yield (
                template.urn,
                f"networkInterfaces[{index}] (EFA) carries no security group that is open to itself in both directions: "
                "EFA's traffic would be dropped; accepted: a group with an ingress and an egress rule, all protocols, "
                "that name the group itself",
            )


def _open_to_itself(group: Resource, resources: Sequence[Resource]) -> bool:
    found = {
        direction
        for direction in ("ingress", "egress")
        for rule in group.items(direction)
        if is_true(rule.get("self")) and _all_protocols(rule.get("protocol"))
    }
    for rule in resources:
        if rule.type in (_INGRESS, _EGRESS):
            direction = "ingress" if rule.type == _INGRESS else "egress"
            itself = _means(rule, "referencedSecurityGroupId", group)
            everything = _all_protocols(rule.get("ipProtocol"))
        elif rule.type == _RULE:
            direction = str(rule.get("type"))
            itself = is_true(rule.get("self")) or _means(rule, "sourceSecurityGroupId", group)
            everything = _all_protocols(rule.get("protocol"))
        else:
            continue
        if itself and everything and _means(rule, "securityGroupId", group):
            found.add(direction)
    return found >= {"ingress", "egress"}


def _means(rule: Resource, prop: str, group: Resource) -> bool:
    """Whether a rule's property is this group, by its id or, where that is not known yet, by where it comes from."""
    value, identity = rule.get(prop), identifier(group)
    if isinstance(value, str) and isinstance(identity, str):
        return value == identity
    return group.urn in rule.depends.get(prop, frozenset())


def _all_protocols(value: Any) -> bool:
    return str(value) in ("-1", "all")
