"""A VPC of the user's own: whether EFA nodes can talk in it, and reach anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eks_fsdp.launcher.aws import AwsError

from .check import Check, Context, failed, ok

EVERYWHERE = "0.0.0.0/0"


def open_to_itself(group: Mapping[str, Any], permissions: str) -> bool:
    """Whether ``IpPermissions`` or ``IpPermissionsEgress`` of a security group let its members' every protocol through.

    A rule with an address range does not count: EFA traffic has no addresses.
    """
    return any(
        str(rule.get("IpProtocol")) == "-1"
        and any(pair.get("GroupId") == group["GroupId"] for pair in rule.get("UserIdGroupPairs") or ())
        for rule in group.get(permissions) or ()
    )


def check_efa_security_group(at: Context) -> Iterable[Check]:
    """The user's own security group for EFA is open to itself in both directions."""
    existing = at.settings.network.existing
    if existing is None or existing.efa_security_group is None:
        return
    if not any(group.uses_efa for group in at.settings.gpu_nodes):
        return
    identity, setting = existing.efa_security_group, "network.existing.efa_security_group"
    name = f"EFA group {identity}"
    try:
        found = at.aws.all("ec2", "describe_security_groups", "SecurityGroups", GroupIds=[identity])
    except AwsError as error:
        if not error.code.startswith("InvalidGroup"):
            raise
        found = []
    if not found:
        yield failed(name, "there is no such security group here", f"correct {setting}, or leave it out: one is made")
        return
    (group,) = found
    if group.get("VpcId") != existing.vpc_id:
        yield failed(name, f"is in {group.get('VpcId')}, not in {existing.vpc_id}", f"set {setting} to one of that VPC")
        return
    ways = {"ingress": "IpPermissions", "egress": "IpPermissionsEgress"}
    shut = [way for way, permissions in ways.items() if not open_to_itself(group, permissions)]
    if not shut:
        yield ok(name, "open to itself both ways")
        return
    rule = f"--group-id {identity} --ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={identity}}}]'"
    yield failed(
        name,
        f"has no rule for {' and '.join(shut)} of all protocols with itself: EFA traffic is dropped, and jobs hang in NCCL",
        "; ".join(f"aws ec2 authorize-security-group-{way} {rule}" for way in shut),
    )


def route_table_of(subnet: str, tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The route table of a subnet: its own, else the VPC's main one."""
    main = None
    for table in tables:
        for association in table.get("Associations") or ():
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main"):
                main = table
    return main


def internet_gateway(table: Mapping[str, Any]) -> str | None:
    """The internet gateway that a route table sends everything else to."""
    for route in table.get("Routes") or ():
        gateway = str(route.get("GatewayId") or "")
        if route.get("DestinationCidrBlock") == EVERYWHERE and gateway.startswith("igw-"):
            return gateway
    return None


def check_routes(at: Context) -> Iterable[Check]:
    """The user's private subnets are private."""
    existing = at.settings.network.existing
    if existing is None:
        return
    only = [{"Name": "vpc-id", "Values": [existing.vpc_id]}]
    tables = at.aws.all("ec2", "describe_route_tables", "RouteTables", Filters=only)
    for zone, subnet in sorted(existing.private_subnets.items()):
        table = route_table_of(subnet, tables)
        name = f"Route of {subnet}"
        if table is None:
            yield failed(name, f"{existing.vpc_id} has no route table for it", "correct network.existing.vpc_id")
        elif gateway := internet_gateway(table):
            yield failed(
                name,
                f"{table['RouteTableId']} sends {EVERYWHERE} to {gateway}: the subnet is public, and EFA nodes, which get no "
                "public address, never join from it",
                f"set network.existing.private_subnets.{zone} to a subnet whose way out is a NAT gateway or endpoints",
            )
        else:
            yield ok(name, f"{table['RouteTableId']}: no internet gateway")
