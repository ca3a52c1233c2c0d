"""The stand-in provider's tables: how a program's values become requests."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from pulumi.runtime.proto import provider_pb2

from eks_fsdp.sandbox.cloud.kinds import Context, Kind
from eks_fsdp.sandbox.cloud.network import permissions
from eks_fsdp.sandbox.cloud.provider import KINDS, before, difference
from eks_fsdp.sandbox.cloud.shapes import Untranslatable, api_value, member_name
from eks_fsdp.sandbox.cloud.wire import UNKNOWN, from_struct, has_unknown, to_struct

VPC, TEMPLATE = KINDS["aws:ec2/vpc:Vpc"], KINDS["aws:ec2/launchTemplate:LaunchTemplate"]
GROUP, CLUSTER = KINDS["aws:eks/nodeGroup:NodeGroup"], KINDS["aws:eks/cluster:Cluster"]


def client(service: str) -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        region_name="us-west-2",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )


def context(kind: Kind, **inputs: Any) -> Context:
    return Context(
        clients=client,
        service=kind.service,
        region="us-west-2",
        account="1",
        inputs=inputs,
        tags=inputs.get("tags", {}),
    )


def test_a_request_is_made_of_inputs() -> None:
    request = VPC.create.request(context(VPC, cidrBlock="10.0.0.0/16", tags={"a": "b"}), VPC.names)
    assert request == {
        "CidrBlock": "10.0.0.0/16",
        "TagSpecifications": [{"ResourceType": "vpc", "Tags": [{"Key": "a", "Value": "b"}]}],
    }


def test_nested_values_take_the_apis_spelling_and_types() -> None:
    inputs = {
        "name": "t",
        "networkInterfaces": [
            {"networkCardIndex": 1, "deviceIndex": 1, "securityGroups": ["sg-1"], "deleteOnTermination": "true"}
        ],
        "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": 100, "encrypted": "true"}}],
        "tagSpecifications": [{"resourceType": "instance", "tags": {"a": "b"}}],
        "metadataOptions": {"httpTokens": "required"},
    }
    data = TEMPLATE.create.request(context(TEMPLATE, **inputs), TEMPLATE.names)["LaunchTemplateData"]
    assert data["NetworkInterfaces"] == [
        {"NetworkCardIndex": 1, "DeviceIndex": 1, "Groups": ["sg-1"], "DeleteOnTermination": True}
    ]
    assert data["BlockDeviceMappings"][0]["Ebs"] == {"VolumeSize": 100, "Encrypted": True}
    assert data["TagSpecifications"] == [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]


def test_a_single_value_where_the_api_has_a_list() -> None:
    kind = KINDS["aws:fsx/lustreFileSystem:LustreFileSystem"]
    request = kind.create.request(context(kind, subnetIds="subnet-1", storageCapacity=1200), kind.names)
    assert request["SubnetIds"] == ["subnet-1"]


def test_what_the_api_does_not_have_is_refused_with_its_path() -> None:
    shape = client("eks").meta.service_model.operation_model("CreateNodegroup").input_shape
    with pytest.raises(Untranslatable, match=r"scalingConfig\.wanted"):
        api_value(shape.members["scalingConfig"], {"wanted": 1}, "scalingConfig", {})
    with pytest.raises(Untranslatable, match="whole number"):
        api_value(shape.members["scalingConfig"], {"minSize": "many"}, "scalingConfig", {})


def test_names_match_without_case_and_plural() -> None:
    shape = client("eks").meta.service_model.operation_model("CreateNodegroup").input_shape
    assert [member_name(shape, name) for name in ("subnetIds", "subnet", "nodegroupname")] == [
        None,
        "subnets",
        "nodegroupName",
    ]


def test_an_input_that_is_not_covered_is_refused() -> None:
    failures = VPC.check(context(VPC, cidrBlock="10.0.0.0/16", ipv4IpamPoolId="p"), complete=True)
    assert [name for name, _ in failures] == ["ipv4IpamPoolId"]
    assert "does not cover" in failures[0][1]


def test_botocores_model_speaks_at_preview() -> None:
    failures = CLUSTER.check(context(CLUSTER, name="c"), complete=True)
    assert "roleArn" in failures[0][1]
    # With inputs that are not known yet, what is missing may still come.
    assert CLUSTER.check(context(CLUSTER, name="c", roleArn=UNKNOWN), complete=False) == []


def test_sizes_are_checked_at_preview() -> None:
    failures = GROUP.check(
        context(GROUP, clusterName=UNKNOWN, scalingConfig={"minSize": 3, "maxSize": 2, "desiredSize": 2}),
        complete=False,
    )
    assert failures == [("scalingConfig", "minSize 3 is over maxSize 2")]


def test_both_security_group_lists_are_refused_while_ids_are_unknown() -> None:
    failures = TEMPLATE.check(
        context(TEMPLATE, name="t", vpcSecurityGroupIds=[UNKNOWN], networkInterfaces=[{"deviceIndex": 0}]),
        complete=False,
    )
    assert [name for name, _ in failures] == ["vpcSecurityGroupIds"]


def test_a_policy_that_is_no_json_is_refused() -> None:
    kind = KINDS["aws:iam/role:Role"]
    assert kind.check(context(kind, name="r", assumeRolePolicy="{"), complete=True)[0][0] == "assumeRolePolicy"


def test_what_replaces_and_what_updates() -> None:
    old = {
        "clusterName": "c",
        "nodeGroupName": "g",
        "scalingConfig": {"desiredSize": 1},
        "launchTemplate": {"id": "lt-1", "version": "1"},
    }
    same = difference(GROUP, old, dict(old), [])
    assert same.changes == provider_pb2.DiffResponse.DIFF_NONE
    update = difference(
        GROUP, old, {**old, "scalingConfig": {"desiredSize": 2}, "launchTemplate": {"id": "lt-1", "version": "2"}}, []
    )
    assert (list(update.diffs), list(update.replaces)) == (["launchTemplate", "scalingConfig"], [])
    assert set(update.detailedDiff) == {"launchTemplate.version", "scalingConfig.desiredSize"}
    replace = difference(
        GROUP, old, {**old, "launchTemplate": {"id": "lt-2", "version": "1"}, "instanceTypes": ["a"]}, []
    )
    assert list(replace.replaces) == ["instanceTypes", "launchTemplate"]
    assert replace.deleteBeforeReplace
    named = {**old, "__defaults": ["nodeGroupName"]}
    assert not difference(GROUP, named, {**named, "nodeGroupName": "h", "subnetIds": ["x"]}, []).deleteBeforeReplace


def test_drift_shows_in_inputs_and_order_does_not() -> None:
    inputs = {"subnetIds": ["a", "b"], "scalingConfig": {"desiredSize": 1}, "labels": {"x": "y"}}
    seen = {"subnets": ["b", "a"], "scalingConfig": {"desiredSize": 1, "minSize": 0}, "labels": {"x": "y"}}
    assert GROUP.drifted(inputs, seen, {}) == {}
    seen |= {"labels": {"x": "y", "more": "z"}, "scalingConfig": {"desiredSize": 4}}
    assert GROUP.drifted(inputs, seen, {}) == {"labels": {"x": "y", "more": "z"}, "scalingConfig": {"desiredSize": 4}}


def test_rules_become_permissions() -> None:
    rule = {
        "protocol": "tcp",
        "fromPort": 443,
        "toPort": 443,
        "cidrBlocks": ["10.0.0.0/8"],
        "self": True,
        "description": "d",
    }
    assert permissions([rule], "sg-1") == [
        {
            "IpProtocol": "tcp",
            "FromPort": 443,
            "ToPort": 443,
            "IpRanges": [{"CidrIp": "10.0.0.0/8", "Description": "d"}],
            "UserIdGroupPairs": [{"GroupId": "sg-1", "Description": "d"}],
        }
    ]
    assert permissions([{"protocol": "-1", "fromPort": 0, "toPort": 0}], "sg-1") == [{"IpProtocol": "-1"}]


def test_values_cross_the_wire() -> None:
    value = {"whole": 3, "part": 0.5, "list": [1, {"a": True}], "unknown": UNKNOWN}
    assert from_struct(to_struct({**value, "none": None})) == value
    assert has_unknown(value)
    assert not has_unknown({"a": [1, "b"]})


@pytest.mark.parametrize("token", sorted(KINDS))
def test_tables_fit_the_sdk(token: str) -> None:
    """Inputs and outputs of every type are properties of the SDK's class."""
    import pulumi_aws
    from pulumi import _types

    kind = KINDS[token]
    _, module, name = token.split(":")
    package = {"lambda": "lambda_"}.get(module.split("/")[0], module.split("/")[0])
    resource = getattr(getattr(pulumi_aws, package), name)
    types = _types.resource_types(resource)
    unknown = {key for key in kind.properties | kind.output_names if key not in types}
    # The SDK has no region where the service is global; nor some of the inputs that only the constructor takes.
    extra = {"region", "arn", "tags", "tagsAll"}
    assert unknown <= extra


def test_saying_what_aws_had_chosen_changes_nothing() -> None:
    state = {"amiType": "x", "capacityType": "ON_DEMAND"}
    request = provider_pb2.DiffRequest(olds=to_struct(state), old_inputs=to_struct({"amiType": "x"}))
    for said, changed in (("ON_DEMAND", False), ("SPOT", True)):
        news = {"amiType": "x", "capacityType": said}
        assert bool(difference(GROUP, before(request, from_struct(request.olds), news), news, []).replaces) is changed
