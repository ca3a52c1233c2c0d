"""The stand-in account as an AWS SDK sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from eks_fsdp.sandbox.account import Account, leftovers

from .machine_room_double import FakeMachineRoom

POLICY = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


class Cloud:
    """An account with a VPC of two subnets and a role."""

    def __init__(self, account: Account, room: FakeMachineRoom) -> None:
        self.account = account
        self.room = room
        self.ec2: Any = account.client("ec2")
        self.eks: Any = account.client("eks")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=f"us-west-2{zone}")[
                "Subnet"
            ]["SubnetId"]
            for i, zone in enumerate("ab")
        ]
        iam: Any = account.client("iam")
        self.role = iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")["Role"]["Arn"]

    def cluster(self, **more: Any) -> dict[str, Any]:
        config = {"subnetIds": self.subnets}
        access = {"authenticationMode": "API"}
        return dict(
            self.eks.create_cluster(
                name="c", roleArn=self.role, resourcesVpcConfig=config, accessConfig=access, **more
            )["cluster"]
        )

    def group(self, name: str = "g", **more: Any) -> dict[str, Any]:
        values = {"subnets": self.subnets[:1], "nodeRole": self.role, "clusterName": "c", "nodegroupName": name} | more
        return dict(self.eks.create_nodegroup(**values)["nodegroup"])

    def template(self, **data: Any) -> str:
        made = self.ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)
        return str(made["LaunchTemplate"]["LaunchTemplateId"])


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    room = FakeMachineRoom()
    account = Account(room, cluster_port=6443)
    account.start()
    try:
        yield Cloud(account, room)
    finally:
        account.stop()


def refusal(call: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def test_a_cluster_is_a_control_plane(cloud: Cloud) -> None:
    made = cloud.cluster()
    assert made["status"] == "ACTIVE"
    assert made["endpoint"] == "https://127.0.0.1:6443"
    assert cloud.room.plane == "c"
    assert made["resourcesVpcConfig"]["vpcId"] == cloud.vpc
    config = cloud.account.kubeconfig("c")
    assert config["users"][0]["user"] == {"token": "token-of-c"}
    cloud.eks.delete_cluster(name="c")
    assert cloud.room.plane is None
    assert "ResourceNotFoundException" in refusal(lambda: cloud.eks.describe_cluster(name="c"))


def test_a_control_plane_that_does_not_come_leaves_no_cluster(cloud: Cloud) -> None:
    cloud.room.broken = "the machine room is not there"
    assert "the machine room is not there" in refusal(cloud.cluster)
    assert cloud.eks.list_clusters()["clusters"] == []


def test_a_second_cluster_is_over_the_limit(cloud: Cloud) -> None:
    cloud.cluster()
    config = {"subnetIds": cloud.subnets}
    more = refusal(lambda: cloud.eks.create_cluster(name="d", roleArn=cloud.role, resourcesVpcConfig=config))
    assert more.startswith("ResourceLimitExceededException")


def test_a_clusters_network_is_checked(cloud: Cloud) -> None:
    def create(**config: Any) -> str:
        return refusal(lambda: cloud.eks.create_cluster(name="c", roleArn=cloud.role, resourcesVpcConfig=config))

    assert "'subnet-0' does not exist" in create(subnetIds=["subnet-0"])
    assert "two different AZs" in create(subnetIds=cloud.subnets[:1])
    assert "'sg-0' does not exist" in create(subnetIds=cloud.subnets, securityGroupIds=["sg-0"])
    with pytest.raises(ParamValidationError, match="roleArn"):
        cloud.eks.create_cluster(name="c", resourcesVpcConfig={})
    assert "unsupported Kubernetes version 1.20" in refusal(lambda: cloud.cluster(version="1.20"))


def test_a_node_group_is_nodes(cloud: Cloud) -> None:
    cloud.cluster()
    cards = [
        {"NetworkCardIndex": card, "DeviceIndex": min(card, 1), "InterfaceType": "efa-only" if card else "efa"}
        for card in range(32)
    ]
    template = cloud.template(InstanceType="p5.48xlarge", NetworkInterfaces=cards)
    made = cloud.group(
        launchTemplate={"id": template, "version": "$Latest"},
        scalingConfig={"minSize": 0, "maxSize": 4, "desiredSize": 2},
        labels={"role": "gpu"},
        taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
    )
    assert made["launchTemplate"]["version"] == "1"
    spec = cloud.room.groups["g"]
    assert {key: spec[key] for key in ("desired", "instance_type", "cpu", "gpus", "efa_interfaces", "zone")} == {
        "desired": 2,
        "instance_type": "p5.48xlarge",
        "cpu": 192,
        "gpus": 8,
        "efa_interfaces": 32,
        "zone": "us-west-2a",
    }
    assert spec["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]
    assert spec["labels"]["eks.amazonaws.com/nodegroup"] == "g"
    cloud.eks.update_nodegroup_config(clusterName="c", nodegroupName="g", scalingConfig={"desiredSize": 3})
    assert cloud.room.groups["g"]["desired"] == 3
    too_many = refusal(
        lambda: cloud.eks.update_nodegroup_config(clusterName="c", nodegroupName="g", scalingConfig={"desiredSize": 9})
    )
    assert "desiredSize 9 is over maxSize 4" in too_many
    assert "nodegroups attached" in refusal(lambda: cloud.eks.delete_cluster(name="c"))
    cloud.eks.delete_nodegroup(clusterName="c", nodegroupName="g")
    assert cloud.room.groups == {}


def test_node_groups_that_eks_refuses(cloud: Cloud) -> None:
    cloud.cluster()
    assert "'subnet-0' does not exist" in refusal(lambda: cloud.group(subnets=["subnet-0"]))
    assert "do not exist: [p9.huge]" in refusal(lambda: cloud.group(instanceTypes=["p9.huge"]))
    elsewhere = refusal(lambda: cloud.group(instanceTypes=["trn1.32xlarge"]))
    assert "not supported in your requested Availability Zone (us-west-2a)" in elsewhere
    assert "us-west-2b" in elsewhere
    template = cloud.template(InstanceType="m6i.xlarge")
    reference = {"launchTemplate": {"id": template, "version": "1"}}
    assert "Cannot specify instance types" in refusal(lambda: cloud.group(instanceTypes=["m6i.xlarge"], **reference))
    assert "version 7 does not exist" in refusal(lambda: cloud.group(launchTemplate={"id": template, "version": "7"}))
    assert cloud.room.groups == {}


def test_launch_templates_that_ec2_refuses(cloud: Cloud) -> None:
    both = {"NetworkInterfaces": [{"DeviceIndex": 0}], "SecurityGroupIds": ["sg-1"]}
    assert refusal(lambda: cloud.template(**both)).startswith("InvalidParameterCombination")
    assert "Invalid instance type: p9.huge" in refusal(lambda: cloud.template(InstanceType="p9.huge"))


def test_add_ons_and_access_entries(cloud: Cloud) -> None:
    cluster = cloud.cluster()
    eks = cloud.eks
    made = eks.create_addon(clusterName="c", addonName="vpc-cni", tags={"a": "b"})["addon"]
    assert made["status"] == "ACTIVE"
    assert eks.list_addons(clusterName="c")["addons"] == ["vpc-cni"]
    assert "not supported" in refusal(lambda: eks.create_addon(clusterName="c", addonName="nothing"))
    other = {"clusterName": "c", "addonName": "coredns"}
    old = refusal(lambda: eks.create_addon(**other, addonVersion="v1.0.0-eksbuild.1"))
    assert "Addon version specified is not supported" in old
    assert "ConfigurationValue" in refusal(lambda: eks.create_addon(**other, configurationValues="a: b"))
    eks.update_addon(clusterName="c", addonName="vpc-cni", configurationValues="{}")
    assert eks.describe_addon(clusterName="c", addonName="vpc-cni")["addon"]["configurationValues"] == "{}"
    eks.untag_resource(resourceArn=made["addonArn"], tagKeys=["a"])
    assert eks.list_tags_for_resource(resourceArn=made["addonArn"])["tags"] == {}
    eks.delete_addon(clusterName="c", addonName="vpc-cni")
    assert "ResourceNotFoundException" in refusal(lambda: eks.describe_addon(clusterName="c", addonName="vpc-cni"))

    entry = {"clusterName": "c", "principalArn": cloud.role}
    eks.create_access_entry(**entry, kubernetesGroups=["admins"])
    assert "ResourceInUseException" in refusal(lambda: eks.create_access_entry(**entry))
    eks.associate_access_policy(**entry, policyArn=POLICY, accessScope={"type": "cluster"})
    found = eks.list_associated_access_policies(**entry)["associatedAccessPolicies"]
    assert [policy["policyArn"] for policy in found] == [POLICY]
    eks.disassociate_access_policy(**entry, policyArn=POLICY)
    eks.delete_access_entry(**entry)
    assert cloud.role not in eks.list_access_entries(clusterName="c")["accessEntries"]
    eks.tag_resource(resourceArn=cluster["arn"], tags={"x": "y"})
    assert eks.describe_cluster(name="c")["cluster"]["tags"] == {"x": "y"}


def test_placement_groups(cloud: Cloud) -> None:
    made = cloud.ec2.create_placement_group(GroupName="p", Strategy="cluster")["PlacementGroup"]
    assert made["State"] == "available"
    assert "Duplicate" in refusal(lambda: cloud.ec2.create_placement_group(GroupName="p", Strategy="cluster"))
    cloud.ec2.delete_placement_group(GroupName="p")
    assert "Unknown" in refusal(lambda: cloud.ec2.describe_placement_groups(GroupNames=["p"]))


def test_the_images_parameter(cloud: Cloud) -> None:
    name = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
    ssm: Any = cloud.account.client("ssm")
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"].startswith("ami-")


def test_leftovers_name_what_is_left(cloud: Cloud) -> None:
    cloud.cluster()
    cloud.ec2.create_tags(Resources=[cloud.vpc], Tags=[{"Key": "Name", "Value": "mine"}])
    left = leftovers(cloud.account.client)
    assert f"VPC {cloud.vpc} (mine)" in left
    assert "EKS cluster c" in left
    assert "IAM role nodes" in left


def test_an_empty_account_has_none(cloud: Cloud) -> None:
    for subnet in cloud.subnets:
        cloud.ec2.delete_subnet(SubnetId=subnet)
    cloud.ec2.delete_vpc(VpcId=cloud.vpc)
    cloud.account.client("iam").delete_role(RoleName="nodes")  # type: ignore[attr-defined]
    assert leftovers(cloud.account.client) == []
