"""The network: its plan, what it declares, and how many addresses nodes take."""

from __future__ import annotations

import ipaddress
import itertools
import json
from typing import Any

import pytest

from eks_fsdp.components.network import Network, NetworkArgs, flow_log_policy
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.rules import addresses
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.subnets import plan_subnets, usable

from .conftest import Declare, Declared

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")


def every_range(plans: Any) -> list[ipaddress.IPv4Network]:
    return [
        ipaddress.IPv4Network(cidr)
        for p in plans
        for cidr in (p.public, p.private, p.intra, p.pods)
        if cidr is not None
    ]


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.20.0.0/18", "192.168.16.0/20"])
@pytest.mark.parametrize("needed", [{}, {"us-west-2b": 900}])
def test_subnets_do_not_overlap_and_lie_in_their_ranges(cidr: str, needed: dict[str, int]) -> None:
    plans = plan_subnets(cidr, (*ZONES, "us-west-2d"), pod_cidr="100.64.0.0/16", needed=needed)
    ranges = every_range(plans)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(ranges, 2))
    parents = [ipaddress.IPv4Network(cidr), ipaddress.IPv4Network("100.64.0.0/16")]
    assert all(any(r.subnet_of(parent) for parent in parents) for r in ranges)


def test_a_zones_plan_depends_neither_on_its_followers_nor_on_their_needs() -> None:
    alone = plan_subnets("10.0.0.0/20", ZONES[:2])
    together = plan_subnets("10.0.0.0/20", ZONES, needed={"us-west-2c": 800})
    assert alone == together[:2]
    assert together[2].private == "10.0.12.0/22"
    assert usable(together[2].private) == 1019
    # The subnets of stacks that were made before intra subnets came.
    assert [(p.private, p.public) for p in alone] == [("10.0.0.0/23", "10.0.8.0/26"), ("10.0.2.0/23", "10.0.8.64/26")]


def test_what_no_plan_can_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="zone us-west-2a needs 1020 addresses, and a private subnet has at most 1019"):
        plan_subnets("10.0.0.0/20", ZONES, needed={"us-west-2a": 1020})
    with pytest.raises(ValueError, match="zones us-west-2a and us-west-2b need 600 and 700 addresses"):
        plan_subnets("10.0.0.0/20", ZONES, needed={"us-west-2a": 600, "us-west-2b": 700})


def test_addresses_that_the_cni_holds() -> None:
    # One prefix in use and one to spare; without delegation, what it is told to hold.
    assert addresses.pod_addresses(16, prefix_delegation=True) == 32
    assert addresses.pod_addresses(17, prefix_delegation=True) == 48
    assert addresses.pod_addresses(5, prefix_delegation=False) == 20
    assert addresses.pod_addresses(40, prefix_delegation=False) == 42


def settings(**values: Any) -> Settings:
    group = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2a", **values.pop("group", {})}
    return Settings.parse({"gpu_nodes": [group], **values})


def refused(**values: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(**values)
    return str(caught.value)


def test_nodes_are_counted_with_their_pods_or_without_them() -> None:
    # 16 nodes of one address and two prefixes; three system nodes of one and four; and the rest.
    assert addresses.needed(settings()) == {"us-west-2a": 16 * 33 + 3 * 65 + 32, "us-west-2b": 3 * 65 + 32}
    own = settings(group={"instance_type": "p5en.48xlarge"}, network={"pod_cidr": "100.64.0.0/16"})
    assert addresses.needed(own)["us-west-2a"] == 16 + 3 + 32


def test_more_nodes_than_addresses_are_refused() -> None:
    wide = settings(network={"cidr": "10.0.0.0/20"}, group={"max": 23})
    assert addresses.needed(wide)["us-west-2a"] <= 1019
    told = refused(network={"cidr": "10.0.0.0/20"}, group={"max": 64})
    assert "network.cidr: '10.0.0.0/20': zone us-west-2a needs 2339 addresses" in told
    assert "gpu_nodes[0] has up to 64 nodes of 33 addresses each" in told


def test_a_range_for_pods_goes_with_types_that_have_interfaces_to_spare() -> None:
    pods = {"pod_cidr": "100.64.0.0/16"}
    assert "gpu_nodes[0] (p5.48xlarge): its network cards take 2 interfaces each" in refused(network=pods)
    assert settings(network=pods, group={"instance_type": "p4d.24xlarge"}).network.pod_cidr
    mixed = {**pods, "zones": ["us-west-2a", "usw2-az2"]}
    assert "all names or all ids" in refused(network=mixed, group={"instance_type": "p4d.24xlarge"})


def test_ranges_that_overlap_and_zones_of_another_region_are_refused() -> None:
    assert "overlaps cidr" in refused(network={"cidr": "100.64.0.0/16", "pod_cidr": "100.64.0.0/18"})
    told = refused(region="us-east-1", group={"zone": "us-west-2a"})
    assert "network.zones: 'us-west-2a' is not in region 'us-east-1'" in told


# What is declared


def declare_network(declare_program: Declare, **values: Any) -> dict[tuple[str, str], Declared]:
    args = NetworkArgs(cidr="10.0.0.0/16", region="us-west-2", tags={"a": "b"}, **{"zones": ZONES[:2], **values})
    return {(r.type.rpartition(":")[2], r.name): r for r in declare_program(lambda: Network("n", args))}


def test_intra_subnets_have_no_way_out_and_private_ones_go_through_one_nat(declare_program: Declare) -> None:
    made = declare_network(declare_program)
    routes = {name: r.inputs for (kind, name), r in made.items() if kind == "Route"}
    assert routes.keys() == {"n-public-default", "n-private-default"}
    assert routes["n-private-default"]["natGatewayId"] == "n-nat-id"
    tables = {name: r.inputs["routeTableId"] for (kind, name), r in made.items() if kind == "RouteTableAssociation"}
    assert tables == {
        **{f"n-public-{i}": "n-public-id" for i in range(2)},
        **{f"n-private-{i}": "n-private-id" for i in range(2)},
        **{f"n-intra-{i}": "n-intra-id" for i in range(2)},
    }
    assert "kubernetes.io/role/internal-elb" not in made["Subnet", "n-intra-us-west-2a"].inputs["tags"]
    assert not any(kind in ("FlowLog", "SecurityGroup", "VpcIpv4CidrBlockAssociation") for kind, _ in made)


def test_a_nat_in_each_zone_keeps_the_first_zones_names(declare_program: Declare) -> None:
    made = declare_network(declare_program, nat="per-zone")
    nats = {name: r.inputs["subnetId"] for (kind, name), r in made.items() if kind == "NatGateway"}
    assert nats == {"n-nat": "n-public-us-west-2a-id", "n-nat-us-west-2b": "n-public-us-west-2b-id"}
    assert made["RouteTableAssociation", "n-private-1"].inputs["routeTableId"] == "n-private-us-west-2b-id"
    assert made["VpcEndpoint", "n-s3"].inputs["routeTableIds"] == ["n-private-id", "n-private-us-west-2b-id"]


def test_endpoints_are_in_every_zone_and_let_the_vpc_in_on_443_alone(declare_program: Declare) -> None:
    made = declare_network(declare_program, endpoints=["ecr", "sts"], pod_cidr="100.64.0.0/16")
    endpoints = {name: r.inputs for (kind, name), r in made.items() if kind == "VpcEndpoint" and name != "n-s3"}
    assert {e["serviceName"] for e in endpoints.values()} == {
        f"com.amazonaws.us-west-2.{service}" for service in ("ecr.api", "ecr.dkr", "sts")
    }
    for endpoint in endpoints.values():
        assert endpoint["subnetIds"] == ["n-intra-us-west-2a-id", "n-intra-us-west-2b-id"]
        assert endpoint["securityGroupIds"] == ["n-endpoints-id"]
        assert endpoint["privateDnsEnabled"] is True
    rules = [r.inputs for (kind, _), r in made.items() if kind == "SecurityGroupIngressRule"]
    assert sorted((r["cidrIpv4"], r["fromPort"], r["toPort"]) for r in rules) == [
        ("10.0.0.0/16", 443, 443),
        ("100.64.0.0/16", 443, 443),
    ]
    second = made["VpcIpv4CidrBlockAssociation", "n-pods"]
    pods = made["Subnet", "n-pods-us-west-2b"]
    assert second.urn in pods.depends_on
    assert pods.inputs["cidrBlock"] == "100.64.64.0/18"


def test_zones_by_id(declare_program: Declare) -> None:
    made = declare_network(declare_program, zones=["usw2-az1", "usw2-az2"])
    subnet = made["Subnet", "n-private-usw2-az2"].inputs
    assert subnet["availabilityZoneId"] == "usw2-az2"
    assert "availabilityZone" not in subnet


def test_flow_logs_are_kept_for_a_time_and_may_write_nowhere_else(declare_program: Declare) -> None:
    made = declare_network(declare_program, flow_logs=True, flow_log_retention_days=7)
    assert made["LogGroup", "n-flow"].inputs["retentionInDays"] == 7
    assert made["FlowLog", "n-flow"].inputs["vpcId"] == "n-vpc-id"
    statements = json.loads(flow_log_policy("arn:x"))["Statement"]
    assert statements[0]["Resource"] == ["arn:x", "arn:x:*"]
    assert statements[1] == {"Effect": "Allow", "Action": "logs:DescribeLogGroups", "Resource": "*"}
