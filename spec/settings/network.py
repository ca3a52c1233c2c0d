"""Settings of the network."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import Field, model_validator

from eks_fsdp.spec.base import Strict

from .common import SecurityGroupId, SubnetId, Zone

Endpoint = Literal["ecr", "sts", "ec2", "logs", "fsx"]
SHARED_SPACE = ipaddress.IPv4Network("100.64.0.0/10")
"""RFC 6598: addresses that no company network uses, for pods."""


class ExistingNetworkSettings(Strict):
    """A VPC that is there already."""

    vpc_id: str = Field(pattern=r"^vpc-[0-9a-f]{8,17}$")
    """Id of the VPC, ``vpc-...``."""
    private_subnets: dict[Zone, SubnetId]
    """Private subnet of each zone, with a route to AWS' services: nodes and pods."""
    public_subnets: dict[Zone, SubnetId] = {}
    """Public subnets. The program puts nothing into them; none of them may be a private one too."""
    efa_security_group: SecurityGroupId | None = None
    """A group that is open to itself in both directions; None: the program makes one."""

    @model_validator(mode="after")
    def _no_subnet_twice(self) -> ExistingNetworkSettings:
        for zone, subnet in self.private_subnets.items():
            if subnet in self.public_subnets.values():
                raise ValueError(
                    f"private_subnets.{zone}: {subnet!r} is among public_subnets too; an EFA node with several interfaces "
                    "gets no public address, and never joins from a public subnet; accepted: a private subnet"
                )
        subnets = list(self.private_subnets.values())
        for zone, subnet in self.private_subnets.items():
            if subnets.count(subnet) > 1:
                raise ValueError(f"private_subnets.{zone}: {subnet!r} is named twice; accepted: each zone's own subnet")
        if len(self.private_subnets) < 2:
            raise ValueError(
                f"private_subnets: {len(self.private_subnets)} given; accepted: subnets in two zones at least, "
                "which the control plane needs"
            )
        return self


class NetworkSettings(Strict):
    """The VPC."""

    cidr: str = "10.0.0.0/16"
    """IPv4 range of the VPC."""
    zones: list[Zone] = ["us-west-2a", "us-west-2b"]
    """Availability zones by name or id, two or three; the GPU groups' zones are among them."""
    nat: Literal["single", "per-zone"] = "single"
    """One NAT gateway for all zones, or one in each: a zone's failure then leaves the others their way out."""
    endpoints: list[Endpoint] = ["ecr", "sts", "ec2", "logs", "fsx"]
    """AWS services that are reached without the NAT gateway, by interface endpoints in every zone. S3's gateway is always there."""
    pod_cidr: str | None = None
    """Second range of the VPC for pods, within 100.64.0.0/10; None: pods and nodes share `cidr`."""
    flow_logs: bool = False
    """Whether the VPC's flow logs are kept in CloudWatch Logs."""
    existing: ExistingNetworkSettings | None = None
    """A VPC of your own; all other settings of the network but `zones` are then left alone."""

    @model_validator(mode="after")
    def _usable(self) -> NetworkSettings:
        network = _network("cidr", self.cidr)
        if not 16 <= network.prefixlen <= 20:
            raise ValueError(f"cidr: {self.cidr!r} has prefix length {network.prefixlen}; accepted: /16 to /20")
        if not network.is_private and not network.subnet_of(SHARED_SPACE):
            raise ValueError(
                f"cidr: {self.cidr!r} is a range of the public internet, which nodes could then not reach; accepted: a "
                "private range, such as 10.0.0.0/16"
            )
        if self.pod_cidr is not None:
            pods = _network("pod_cidr", self.pod_cidr)
            if not pods.subnet_of(SHARED_SPACE) or not 16 <= pods.prefixlen <= 20:
                raise ValueError(f"pod_cidr: {self.pod_cidr!r}; accepted: a /16 to /20 within {SHARED_SPACE}")
            if pods.overlaps(network):
                raise ValueError(f"pod_cidr: {self.pod_cidr!r} overlaps cidr {self.cidr!r}; accepted: another range")
        if self.existing is None and (len(set(self.zones)) != len(self.zones) or not 2 <= len(self.zones) <= 4):
            raise ValueError(f"zones: {self.zones!r}; accepted: 2 to 4 different availability zones")
        return self

    @property
    def node_zones(self) -> list[str]:
        """The zones that have a private subnet."""
        return list(self.existing.private_subnets) if self.existing else list(self.zones)


def _network(setting: str, text: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{setting}: {text!r} is not an IPv4 network ({error}); accepted: 10.0.0.0/16") from None
