"""The actions that preflight asks IAM about: none is forgotten of what the components make."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from eks_fsdp.launcher.preflight.access import needed_actions
from eks_fsdp.launcher.preflight.parts import installed_addons

from .account_doubles import NOW, P5, settings

COMPONENTS = Path(__file__).parents[2] / "components"
CONSTRUCTED = re.compile(r"\baws\.([a-z0-9_]+\.[A-Z]\w*)\(")
CREATES = {
    "autoscaling.Schedule": "autoscaling:PutScheduledUpdateGroupAction",
    "autoscaling.Tag": "autoscaling:CreateOrUpdateTags",
    "budgets.Budget": "budgets:ModifyBudget",
    "cloudwatch.LogGroup": "logs:CreateLogGroup",
    "codebuild.Project": "codebuild:CreateProject",
    "ec2.Eip": "ec2:AllocateAddress",
    "ec2.FlowLog": "ec2:CreateFlowLogs",
    "ec2.InternetGateway": "ec2:CreateInternetGateway",
    "ec2.LaunchTemplate": "ec2:CreateLaunchTemplate",
    "ec2.NatGateway": "ec2:CreateNatGateway",
    "ec2.PlacementGroup": "ec2:CreatePlacementGroup",
    "ec2.Route": "ec2:CreateRoute",
    "ec2.RouteTable": "ec2:CreateRouteTable",
    "ec2.RouteTableAssociation": "ec2:AssociateRouteTable",
    "ec2.SecurityGroup": "ec2:CreateSecurityGroup",
    "ec2.Subnet": "ec2:CreateSubnet",
    "ec2.Vpc": "ec2:CreateVpc",
    "ec2.VpcEndpoint": "ec2:CreateVpcEndpoint",
    "ec2.VpcIpv4CidrBlockAssociation": "ec2:AssociateVpcCidrBlock",
    "ecr.LifecyclePolicy": "ecr:PutLifecyclePolicy",
    "ecr.Repository": "ecr:CreateRepository",
    "eks.Addon": "eks:CreateAddon",
    "eks.NodeGroup": "eks:CreateNodegroup",
    "eks.PodIdentityAssociation": "eks:CreatePodIdentityAssociation",
    "fsx.DataRepositoryAssociation": "fsx:CreateDataRepositoryAssociation",
    "fsx.LustreFileSystem": "fsx:CreateFileSystem",
    "iam.Role": "iam:CreateRole",
    "iam.RolePolicy": "iam:PutRolePolicy",
    "iam.RolePolicyAttachment": "iam:AttachRolePolicy",
    "lambda_.Function": "lambda:CreateFunction",
    "lambda_.FunctionEventInvokeConfig": "lambda:PutFunctionEventInvokeConfig",
    "s3.Bucket": "s3:CreateBucket",
    "s3.BucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "s3.BucketPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "scheduler.Schedule": "scheduler:CreateSchedule",
    "scheduler.ScheduleGroup": "scheduler:CreateScheduleGroup",
    "vpc.SecurityGroupEgressRule": "ec2:AuthorizeSecurityGroupEgress",
    "vpc.SecurityGroupIngressRule": "ec2:AuthorizeSecurityGroupIngress",
}
"""The action that makes a resource of each type of the AWS provider."""
BLOCK = {
    **P5,
    "name": "block",
    "desired": 0,
    "capacity": {
        "kind": "capacity-block",
        "reservation_id": "cr-0123456789abcdef0",
        "starts": (NOW + timedelta(days=1)).isoformat(),
        "ends": (NOW + timedelta(days=3)).isoformat(),
        "scheduled_nodes": 2,
    },
}


def test_every_resource_type_has_its_action_among_those_that_are_asked_about() -> None:
    made = {kind for file in COMPONENTS.glob("**/*.py") for kind in CONSTRUCTED.findall(file.read_text())}
    made = {kind for kind in made if not kind.endswith("Args")}
    assert made == set(CREATES), "a type without an entry above, or an entry that nothing makes"
    everything = settings(
        gpu_nodes=[P5, BLOCK],
        network={"flow_logs": True},
        storage={"mode": "fsx", "data_repository": {"bucket": "some-data"}},
        image={"codebuild": True},
        guard={"expiry": (NOW + timedelta(days=5)).isoformat(), "budget_usd": 1000, "budget_email": "a@b.example"},
    )
    # A p5's network cards have no interfaces to spare for pods in subnets of their own.
    pods = settings(gpu_nodes=[], network={"pod_cidr": "100.64.0.0/16"})
    assert set(CREATES.values()) <= {*needed_actions(everything), *needed_actions(pods)}


def test_actions_come_with_what_takes_them() -> None:
    base = set(needed_actions(settings()))
    assert {"autoscaling:CreateOrUpdateTags", "autoscaling:DeleteTags"} <= base
    assert not {"autoscaling:PutScheduledUpdateGroupAction", "s3:CreateBucket", "ec2:AssociateVpcCidrBlock"} & base
    assert "autoscaling:CreateOrUpdateTags" not in needed_actions(settings(gpu_nodes=[]))
    block = set(needed_actions(settings(gpu_nodes=[BLOCK])))
    assert {"autoscaling:PutScheduledUpdateGroupAction", "autoscaling:DeleteScheduledAction"} <= block


def test_the_driver_of_mounted_buckets_is_an_add_on_like_others() -> None:
    mounts = {"models": {"bucket": "some-models", "path": "/mnt/models"}}
    driver = "aws-mountpoint-s3-csi-driver"
    assert driver in installed_addons(settings(storage={"s3_mounts": mounts}))
    assert driver not in installed_addons(settings())
