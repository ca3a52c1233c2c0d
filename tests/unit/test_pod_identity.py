"""Rights of pods: what the component declares, and what the account takes and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eks_fsdp.components.pod_identity import PodIdentity, PodIdentityArgs, pod_trust_policy
from eks_fsdp.sandbox.account import Account

from .conftest import Declare
from .machine_room_double import FakeMachineRoom

READS = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::models/*"}
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [READS]})


def test_the_association_comes_after_the_roles_rights(declare_program: Declare) -> None:
    args = PodIdentityArgs(
        cluster_name="c",
        namespace="training",
        service_account="training",
        policies=[POLICY],
        managed_policy_arns=["arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy"],
        permissions_boundary="arn:aws:iam::123456789012:policy/limit",
        tags={"a": "b"},
    )
    declared = {resource.name: resource for resource in declare_program(lambda: PodIdentity("pods", args))}
    assert declared.keys() == {
        "pods",
        "pods-role",
        "pods-policy-0",
        "pods-CloudWatchAgentServerPolicy",
        "pods-association",
    }
    role, association = declared["pods-role"].inputs, declared["pods-association"]
    assert json.loads(role["assumeRolePolicy"])["Statement"][0]["Action"] == ["sts:AssumeRole", "sts:TagSession"]
    assert role["permissionsBoundary"] == "arn:aws:iam::123456789012:policy/limit"
    assert json.loads(declared["pods-policy-0"].inputs["policy"])["Statement"] == [READS]
    assert association.inputs == {
        "clusterName": "c",
        "namespace": "training",
        "serviceAccount": "training",
        "roleArn": "arn:aws:iam::123456789012:role/pods-role",
        "tags": {"a": "b"},
    }
    assert {declared["pods-policy-0"].urn, declared["pods-CloudWatchAgentServerPolicy"].urn} <= set(
        association.depends_on
    )


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account(FakeMachineRoom(), cluster_port=6443)
    account.start()
    ec2: Any = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=f"us-west-2{zone}")["Subnet"]
        for i, zone in enumerate("ab")
    ]
    eks: Any = account.client("eks")
    config = {"subnetIds": [subnet["SubnetId"] for subnet in subnets]}
    eks.create_cluster(name="c", roleArn=_role(account, "cluster"), resourcesVpcConfig=config)
    try:
        yield account
    finally:
        account.stop()


def _role(account: Account, name: str, trust: str = "{}") -> str:
    iam: Any = account.client("iam")
    return str(iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"])


def _refusal(call: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def test_associations_of_the_account(account: Account) -> None:
    eks: Any = account.client("eks")
    pods = {"clusterName": "c", "namespace": "training", "serviceAccount": "training"}
    role = _role(account, "pods", pod_trust_policy())
    made = eks.create_pod_identity_association(**pods, roleArn=role, tags={"a": "b"})["association"]
    key = {"clusterName": "c", "associationId": made["associationId"]}
    assert eks.describe_pod_identity_association(**key)["association"]["roleArn"] == role
    listed = eks.list_pod_identity_associations(clusterName="c", namespace="training")["associations"]
    assert [item["associationId"] for item in listed] == [made["associationId"]]
    assert eks.list_pod_identity_associations(clusterName="c", namespace="other")["associations"] == []
    again = _refusal(lambda: eks.create_pod_identity_association(**pods, roleArn=role))
    assert again == f"ResourceInUseException: Association already exists: {made['associationId']}"
    other = _role(account, "others", pod_trust_policy())
    eks.update_pod_identity_association(**key, roleArn=other)
    assert eks.describe_pod_identity_association(**key)["association"]["roleArn"] == other
    eks.tag_resource(resourceArn=made["associationArn"], tags={"c": "d"})
    assert eks.describe_pod_identity_association(**key)["association"]["tags"] == {"a": "b", "c": "d"}
    eks.delete_pod_identity_association(**key)
    assert "ResourceNotFoundException" in _refusal(lambda: eks.describe_pod_identity_association(**key))


def test_a_role_that_pods_could_not_take_on_is_refused(account: Account) -> None:
    eks: Any = account.client("eks")

    def create(role: str) -> str:
        pods = {"clusterName": "c", "namespace": "training", "serviceAccount": "training"}
        return _refusal(lambda: eks.create_pod_identity_association(**pods, roleArn=role))

    assert "does not exist" in create("arn:aws:iam::123456789012:role/nobody")
    assert "not in the account" in create("arn:aws:iam::999999999999:role/stranger")
    untagged = pod_trust_policy().replace(', "sts:TagSession"', "")
    assert "sts:TagSession" in create(_role(account, "untagged", untagged))
    assert "pods.eks.amazonaws.com" in create(_role(account, "nodes", pod_trust_policy().replace("pods.eks", "ec2")))
