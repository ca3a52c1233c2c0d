"""A VPC of the user's own, as preflight sees it."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.launcher.preflight.network import check_efa_security_group, check_routes
from eks_fsdp.sandbox.account import Account

from .account_doubles import ScriptedAws, account, context, shown

__all__ = ["account"]
VPC, GROUP = "vpc-0123456789abcdef0", "sg-0123456789abcdef0"
A, B = "subnet-00000001", "subnet-00000002"
EXISTING = {"vpc_id": VPC, "private_subnets": {"us-west-2a": A, "us-west-2b": B}, "efa_security_group": GROUP}
ITSELF = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": GROUP}]}]
ANYWHERE = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}], "UserIdGroupPairs": []}]


def efa_group(**answer: Any) -> list[Any]:
    found = {"GroupId": GROUP, "VpcId": VPC, "IpPermissions": ITSELF, "IpPermissionsEgress": ITSELF, **answer}
    aws = ScriptedAws({"describe_security_groups": {"SecurityGroups": [found]}})
    return list(check_efa_security_group(context(aws, network={"existing": EXISTING})))


@pytest.mark.parametrize(
    ("answer", "shut"),
    [
        ({}, []),
        ({"IpPermissionsEgress": [*ANYWHERE, *ITSELF]}, []),
        ({"IpPermissionsEgress": ANYWHERE}, ["egress"]),
        ({"IpPermissions": [{**ITSELF[0], "IpProtocol": "tcp"}]}, ["ingress"]),
        ({"IpPermissions": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-00000000"}]}]}, ["ingress"]),
        ({"IpPermissions": [], "IpPermissionsEgress": []}, ["ingress", "egress"]),
    ],
)
def test_the_efa_group_is_open_to_itself_both_ways(answer: dict[str, Any], shut: list[str]) -> None:
    (check,) = efa_group(**answer)
    assert check.state == ("failed" if shut else "ok")
    assert [way for way in ("ingress", "egress") if f"authorize-security-group-{way}" in check.do] == shut


def test_an_efa_group_of_another_vpc_or_none_fails() -> None:
    (check,) = efa_group(VpcId="vpc-00000000")
    assert check.state == "failed"
    gone = ScriptedAws({"describe_security_groups": AwsError("InvalidGroup.NotFound", "gone")})
    assert shown(check_efa_security_group(context(gone, network={"existing": EXISTING}))) == [
        (f"EFA group {GROUP}", "failed")
    ]
    nothing = ScriptedAws({})
    assert not list(check_efa_security_group(context(nothing)))
    assert not list(check_routes(context(nothing)))


def table(name: str, target: dict[str, str], **association: Any) -> dict[str, Any]:
    local = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local"}
    out = {"DestinationCidrBlock": "0.0.0.0/0", **target}
    return {"RouteTableId": name, "Associations": [association] if association else [], "Routes": [local, out]}


PUBLIC, PRIVATE = {"GatewayId": "igw-1"}, {"NatGatewayId": "nat-1"}


@pytest.mark.parametrize(
    ("tables", "states"),
    [
        ([table("main", PRIVATE, Main=True)], ["ok", "ok"]),
        ([table("main", PUBLIC, Main=True)], ["failed", "failed"]),
        ([table("main", PUBLIC, Main=True), table("own", PRIVATE, Main=False, SubnetId=A)], ["ok", "failed"]),
        ([table("own", PUBLIC, Main=False, SubnetId=B), table("main", PRIVATE, Main=True)], ["ok", "failed"]),
        ([], ["failed", "failed"]),
    ],
)
def test_a_private_subnet_that_leads_to_an_internet_gateway_is_public(tables: list[Any], states: list[str]) -> None:
    aws = ScriptedAws({"describe_route_tables": {"RouteTables": tables}})
    found = list(check_routes(context(aws, network={"existing": EXISTING})))
    assert [check.state for check in found] == states
    assert aws.asked[0][1]["Filters"] == [{"Name": "vpc-id", "Values": [VPC]}]
    for check in found:
        assert ("never join" in check.seen) == (check.state == "failed" and bool(tables))


def test_both_are_asked_of_the_stand_in_account(account: Account) -> None:
    ec2: Any = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    zones = ("us-west-2a", "us-west-2b")
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{index}.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
        for index, zone in enumerate(zones)
    }
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    public = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=public, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.associate_route_table(RouteTableId=public, SubnetId=subnets["us-west-2b"])
    group = ec2.create_security_group(GroupName="efa", Description="efa", VpcId=vpc)["GroupId"]
    existing = {"vpc_id": vpc, "private_subnets": subnets, "efa_security_group": group}
    at = context(Aws("us-west-2"), network={"existing": existing})
    assert [check.state for check in check_routes(at)] == ["ok", "failed"]
    (check,) = check_efa_security_group(at)
    assert check.state == "failed"
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    assert [check.state for check in check_efa_security_group(at)] == ["ok"]
