"""The VPC: a public and a private subnet in each zone, one NAT gateway, an S3 endpoint, and the security group of EFA."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pulumi
import pulumi_aws as aws


@dataclass(frozen=True, kw_only=True)
class SubnetPlan:
    """The address ranges of one zone."""

    zone: str
    public: str
    """CIDR of the public subnet: NAT gateways and load balancers."""
    private: str
    """CIDR of the private subnet: nodes and pods."""


def plan_subnets(cidr: str, zones: Sequence[str]) -> list[SubnetPlan]:
    """Ranges for up to four zones in ``cidr`` (a /16 to /20).

    A private subnet is an eighth of the VPC (8,187 usable addresses of a /16, 507 of a /20), a public one a 64th; the
    last 28 of 64 parts stay free. The plan of a zone does not depend on how many zones follow it.
    """
    vpc = ipaddress.IPv4Network(cidr)
    private = vpc.subnets(prefixlen_diff=3)
    public = islice(vpc.subnets(prefixlen_diff=6), 32, None)
    return [
        SubnetPlan(zone=zone, private=str(inner), public=str(outer))
        for zone, inner, outer in zip(zones, private, public, strict=False)
    ]


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """Inputs of `Network`."""

    cidr: str
    """IPv4 range of the VPC, /16 to /20."""
    zones: Sequence[str]
    """Availability zones, one to four."""
    region: str
    """AWS region of the zones: it is part of the S3 endpoint's service name."""
    tags: Mapping[str, str]
    """Tags of every resource."""


class Network(pulumi.ComponentResource):
    """A VPC whose nodes have private addresses only and reach the internet through one NAT gateway."""

    vpc_id: pulumi.Output[str]
    public_subnet_ids: list[pulumi.Output[str]]
    """One for each zone, in the order of the zones."""
    private_subnet_ids: dict[str, pulumi.Output[str]]
    """By zone."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:network:Network", name, None, opts)
        self._tags = args.tags
        child = pulumi.ResourceOptions(parent=self)
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=args.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self._named(f"{name}-vpc"),
            opts=child,
        )
        gateway = aws.ec2.InternetGateway(
            f"{name}-internet", vpc_id=vpc.id, tags=self._named(f"{name}-internet"), opts=child
        )
        plans = plan_subnets(args.cidr, args.zones)
        public = [
            self._subnet(f"{name}-public-{plan.zone}", vpc, plan.zone, plan.public, "kubernetes.io/role/elb")
            for plan in plans
        ]
        private = [
            self._subnet(f"{name}-private-{plan.zone}", vpc, plan.zone, plan.private, "kubernetes.io/role/internal-elb")
            for plan in plans
        ]
        address = aws.ec2.Eip(f"{name}-nat", domain="vpc", tags=self._named(f"{name}-nat"), opts=child)
        nat = aws.ec2.NatGateway(
            f"{name}-nat",
            allocation_id=address.id,
            subnet_id=public[0].id,
            tags=self._named(f"{name}-nat"),
            # AWS refuses a NAT gateway in a VPC that has no internet gateway yet.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[gateway]),
        )
        self._route_table(f"{name}-public", vpc, public, gateway_id=gateway.id)
        inner = self._route_table(f"{name}-private", vpc, private, nat_gateway_id=nat.id)
        aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            service_name=f"com.amazonaws.{args.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[inner.id],
            tags=self._named(f"{name}-s3"),
            opts=child,
        )
        self.vpc_id = vpc.id
        self.public_subnet_ids = [subnet.id for subnet in public]
        self.private_subnet_ids = {plan.zone: subnet.id for plan, subnet in zip(plans, private, strict=True)}
        self.register_outputs(
            {
                "vpc_id": self.vpc_id,
                "public_subnet_ids": self.public_subnet_ids,
                "private_subnet_ids": self.private_subnet_ids,
            }
        )

    def _named(self, name: str) -> dict[str, str]:
        return {**self._tags, "Name": name}

    def _subnet(self, name: str, vpc: aws.ec2.Vpc, zone: str, cidr: str, role: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            name,
            vpc_id=vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            # No instance gets a public address: an EFA node with one never joins, as several interfaces forbid it.
            map_public_ip_on_launch=False,
            tags={**self._named(name), role: "1"},
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _route_table(
        self,
        name: str,
        vpc: aws.ec2.Vpc,
        subnets: Sequence[aws.ec2.Subnet],
        *,
        gateway_id: pulumi.Input[str] | None = None,
        nat_gateway_id: pulumi.Input[str] | None = None,
    ) -> aws.ec2.RouteTable:
        child = pulumi.ResourceOptions(parent=self)
        table = aws.ec2.RouteTable(name, vpc_id=vpc.id, tags=self._named(name), opts=child)
        aws.ec2.Route(
            f"{name}-default",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway_id,
            nat_gateway_id=nat_gateway_id,
            opts=child,
        )
        for index, subnet in enumerate(subnets):
            aws.ec2.RouteTableAssociation(f"{name}-{index}", route_table_id=table.id, subnet_id=subnet.id, opts=child)
        return table


@dataclass(frozen=True, kw_only=True)
class EfaSecurityGroupArgs:
    """Inputs of `EfaSecurityGroup`."""

    vpc_id: pulumi.Input[str]
    """VPC of the nodes."""
    tags: Mapping[str, str]
    """Tags of every resource."""


class EfaSecurityGroup(pulumi.ComponentResource):
    """The security group that EFA traffic needs, for every EFA interface beside the cluster's own group.

    EFA's packets are no IP packets: only a rule that names the group itself lets them pass, in both directions. A rule
    for 0.0.0.0/0 does not cover them.
    """

    security_group_id: pulumi.Output[str]

    def __init__(self, name: str, args: EfaSecurityGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:network:EfaSecurityGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            f"{name}-group",
            vpc_id=args.vpc_id,
            description="EFA traffic between GPU nodes",
            tags={**args.tags, "Name": name},
            opts=child,
        )
        aws.vpc.SecurityGroupIngressRule(
            f"{name}-from-itself",
            security_group_id=group.id,
            ip_protocol="-1",
            referenced_security_group_id=group.id,
            description="All traffic from the group itself",
            tags=args.tags,
            opts=child,
        )
        aws.vpc.SecurityGroupEgressRule(
            f"{name}-to-itself",
            security_group_id=group.id,
            ip_protocol="-1",
            referenced_security_group_id=group.id,
            description="All traffic to the group itself",
            tags=args.tags,
            opts=child,
        )
        self.security_group_id = group.id
        self.register_outputs({"security_group_id": self.security_group_id})
