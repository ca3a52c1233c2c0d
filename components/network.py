"""The VPC: public, private and intra subnets in each zone, the ways out, endpoints of AWS' services, and the security group of EFA."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.subnets import SubnetPlan, is_zone_id, plan_subnets

ENDPOINT_SERVICES: dict[str, tuple[str, ...]] = {
    "ecr": ("ecr.api", "ecr.dkr"),
    "sts": ("sts",),
    "ec2": ("ec2",),
    "logs": ("logs",),
    "fsx": ("fsx",),
}
"""Services of interface endpoints by the setting's name: images are asked for at the one of ECR, and pulled from the other."""


def service_trust_policy(service: str) -> str:
    """JSON of the policy that lets an AWS service take on a role."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def flow_log_policy(log_group_arn: str) -> str:
    """JSON of the policy that lets flow logs into one log group."""
    writes = {
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
        "Resource": [log_group_arn, f"{log_group_arn}:*"],
    }
    finds = {"Effect": "Allow", "Action": "logs:DescribeLogGroups", "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [writes, finds]})


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """Inputs of `Network`."""

    cidr: str
    """IPv4 range of the VPC, /16 to /20."""
    zones: Sequence[str]
    """Availability zones by name or id, one to four."""
    region: str
    """AWS region of the zones: it is part of the endpoints' service names."""
    tags: Mapping[str, str]
    """Tags of every resource."""
    nat: Literal["single", "per-zone"] = "single"
    """One NAT gateway for all zones, or one in each."""
    endpoints: Sequence[str] = ()
    """Services with interface endpoints: keys of `ENDPOINT_SERVICES`. The gateway of S3 is always there."""
    pod_cidr: str | None = None
    """Second range of the VPC, for pods; None: none."""
    needed_addresses: Mapping[str, int] | None = None
    """Addresses that each zone's private subnet must have; None: as many as the usual plan gives."""
    flow_logs: bool = False
    """Whether the VPC's flow logs are kept."""
    flow_log_retention_days: int = 30
    """Days for which they are kept."""


class Network(pulumi.ComponentResource):
    """A VPC whose nodes have private addresses only, and reach AWS by endpoints and the internet by NAT."""

    vpc_id: pulumi.Output[str]
    public_subnet_ids: list[pulumi.Output[str]]
    """One for each zone, in the order of the zones."""
    private_subnet_ids: dict[str, pulumi.Output[str]]
    """By zone, as the zone was given."""
    intra_subnet_ids: list[pulumi.Output[str]]
    """One for each zone, for the control plane's interfaces."""
    pod_subnet_ids: dict[str, pulumi.Output[str]]
    """By zone; empty without a range for pods."""

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
        plans = plan_subnets(args.cidr, args.zones, pod_cidr=args.pod_cidr, needed=args.needed_addresses)
        public = [
            self._subnet(f"{name}-public-{plan.zone}", vpc, plan.zone, plan.public, "kubernetes.io/role/elb")
            for plan in plans
        ]
        private = [
            self._subnet(f"{name}-private-{plan.zone}", vpc, plan.zone, plan.private, "kubernetes.io/role/internal-elb")
            for plan in plans
        ]
        intra = [self._subnet(f"{name}-intra-{plan.zone}", vpc, plan.zone, plan.intra) for plan in plans]
        pods = self._pod_subnets(name, vpc, args, plans)
        outer = self._route_table(f"{name}-public", vpc, gateway_id=gateway.id)
        inner = [self._private_table(name, vpc, plans, public, place, gateway, args.nat) for place in self._nats(args)]
        self._associate(f"{name}-public", public, [outer])
        self._associate(f"{name}-private", private, inner)
        self._associate(f"{name}-pods", list(pods.values()), inner)
        self._associate(f"{name}-intra", intra, [self._route_table(f"{name}-intra", vpc)])
        aws.ec2.VpcEndpoint(
            f"{name}-s3",
            vpc_id=vpc.id,
            service_name=f"com.amazonaws.{args.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id for table in inner],
            tags=self._named(f"{name}-s3"),
            opts=child,
        )
        if args.endpoints:
            self._endpoints(name, vpc, args, intra)
        if args.flow_logs:
            self._flow_logs(name, vpc, args.flow_log_retention_days)
        self.vpc_id = vpc.id
        self.public_subnet_ids = [subnet.id for subnet in public]
        self.private_subnet_ids = {plan.zone: subnet.id for plan, subnet in zip(plans, private, strict=True)}
        self.intra_subnet_ids = [subnet.id for subnet in intra]
        self.pod_subnet_ids = {zone: subnet.id for zone, subnet in pods.items()}
        self.register_outputs(
            {
                "vpc_id": self.vpc_id,
                "public_subnet_ids": self.public_subnet_ids,
                "private_subnet_ids": self.private_subnet_ids,
                "intra_subnet_ids": self.intra_subnet_ids,
                "pod_subnet_ids": self.pod_subnet_ids,
            }
        )

    def _named(self, name: str) -> dict[str, str]:
        return {**self._tags, "Name": name}

    def _subnet(
        self,
        name: str,
        vpc: aws.ec2.Vpc,
        zone: str,
        cidr: str,
        role: str | None = None,
        depends_on: Sequence[pulumi.Resource] = (),
    ) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            name,
            vpc_id=vpc.id,
            availability_zone=None if is_zone_id(zone) else zone,
            availability_zone_id=zone if is_zone_id(zone) else None,
            cidr_block=cidr,
            # No instance gets a public address: an EFA node with one never joins, as several interfaces forbid it.
            map_public_ip_on_launch=False,
            tags={**self._named(name), **({role: "1"} if role else {})},
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(depends_on)),
        )

    def _pod_subnets(
        self, name: str, vpc: aws.ec2.Vpc, args: NetworkArgs, plans: Sequence[SubnetPlan]
    ) -> dict[str, aws.ec2.Subnet]:
        if args.pod_cidr is None:
            return {}
        second = aws.ec2.VpcIpv4CidrBlockAssociation(
            f"{name}-pods", vpc_id=vpc.id, cidr_block=args.pod_cidr, opts=pulumi.ResourceOptions(parent=self)
        )
        return {
            plan.zone: self._subnet(f"{name}-pods-{plan.zone}", vpc, plan.zone, plan.pods, depends_on=[second])
            for plan in plans
            if plan.pods is not None
        }

    @staticmethod
    def _nats(args: NetworkArgs) -> range:
        """Places of the zones that have a NAT gateway."""
        return range(len(args.zones) if args.nat == "per-zone" else 1)

    def _private_table(
        self,
        name: str,
        vpc: aws.ec2.Vpc,
        plans: Sequence[SubnetPlan],
        public: Sequence[aws.ec2.Subnet],
        place: int,
        gateway: aws.ec2.InternetGateway,
        nat: str,
    ) -> aws.ec2.RouteTable:
        """NAT gateway and route table of a zone. The first zone's have the names of those that all zones share."""
        suffix = f"-{plans[place].zone}" if place else ""
        address = aws.ec2.Eip(
            f"{name}-nat{suffix}",
            domain="vpc",
            tags=self._named(f"{name}-nat{suffix}"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        way_out = aws.ec2.NatGateway(
            f"{name}-nat{suffix}",
            allocation_id=address.id,
            subnet_id=public[place].id,
            tags=self._named(f"{name}-nat{suffix}"),
            # AWS refuses a NAT gateway in a VPC that has no internet gateway yet.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[gateway]),
        )
        return self._route_table(f"{name}-private{suffix}", vpc, nat_gateway_id=way_out.id)

    def _route_table(
        self,
        name: str,
        vpc: aws.ec2.Vpc,
        *,
        gateway_id: pulumi.Input[str] | None = None,
        nat_gateway_id: pulumi.Input[str] | None = None,
    ) -> aws.ec2.RouteTable:
        child = pulumi.ResourceOptions(parent=self)
        table = aws.ec2.RouteTable(name, vpc_id=vpc.id, tags=self._named(name), opts=child)
        if gateway_id is not None or nat_gateway_id is not None:
            aws.ec2.Route(
                f"{name}-default",
                route_table_id=table.id,
                destination_cidr_block="0.0.0.0/0",
                gateway_id=gateway_id,
                nat_gateway_id=nat_gateway_id,
                opts=child,
            )
        return table

    def _associate(self, name: str, subnets: Sequence[aws.ec2.Subnet], tables: Sequence[aws.ec2.RouteTable]) -> None:
        """Each subnet with its zone's table, or all with the one that there is."""
        for index, subnet in enumerate(subnets):
            table = tables[index if len(tables) > 1 else 0]
            aws.ec2.RouteTableAssociation(
                # Named by the subnet: one that gets another table is changed, as AWS takes no second association.
                f"{name}-{index}",
                route_table_id=table.id,
                subnet_id=subnet.id,
                opts=pulumi.ResourceOptions(parent=self),
            )

    def _endpoints(self, name: str, vpc: aws.ec2.Vpc, args: NetworkArgs, subnets: Sequence[aws.ec2.Subnet]) -> None:
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            f"{name}-endpoints",
            vpc_id=vpc.id,
            description="AWS services, for the VPC alone",
            tags=self._named(f"{name}-endpoints"),
            opts=child,
        )
        for what, cidr in (("nodes", args.cidr), ("pods", args.pod_cidr)):
            if cidr is not None:
                aws.vpc.SecurityGroupIngressRule(
                    f"{name}-endpoints-{what}",
                    security_group_id=group.id,
                    ip_protocol="tcp",
                    from_port=443,
                    to_port=443,
                    cidr_ipv4=cidr,
                    description=f"HTTPS from the VPC's {what}",
                    tags=self._tags,
                    opts=child,
                )
        for service in (service for setting in args.endpoints for service in ENDPOINT_SERVICES[setting]):
            aws.ec2.VpcEndpoint(
                f"{name}-{service}",
                vpc_id=vpc.id,
                service_name=f"com.amazonaws.{args.region}.{service}",
                vpc_endpoint_type="Interface",
                subnet_ids=[subnet.id for subnet in subnets],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                tags=self._named(f"{name}-{service}"),
                opts=child,
            )

    def _flow_logs(self, name: str, vpc: aws.ec2.Vpc, retention_days: int) -> None:
        child = pulumi.ResourceOptions(parent=self)
        kept = aws.cloudwatch.LogGroup(
            f"{name}-flow", retention_in_days=retention_days, tags=self._named(f"{name}-flow"), opts=child
        )
        role = aws.iam.Role(
            f"{name}-flow",
            assume_role_policy=service_trust_policy("vpc-flow-logs.amazonaws.com"),
            description="Flow logs of the VPC",
            tags=self._tags,
            opts=child,
        )
        policy = aws.iam.RolePolicy(f"{name}-flow", role=role.name, policy=kept.arn.apply(flow_log_policy), opts=child)
        aws.ec2.FlowLog(
            f"{name}-flow",
            vpc_id=vpc.id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=kept.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=600,
            tags=self._named(f"{name}-flow"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )


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
