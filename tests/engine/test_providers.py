"""The real engine against the stand-in `aws` and `eks` providers, with inline programs and through our language host."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi import _types, automation

from eks_fsdp.components.pod_identity import PodIdentity, PodIdentityArgs
from eks_fsdp.sandbox.account import account_client

from .conftest import Inline, Stand

with warnings.catch_warnings():
    # The SDKs load their modules on first use, not safely from several threads, and with warnings of their own.
    warnings.simplefilter("ignore")
    import pulumi_aws as aws
    import pulumi_eks as eks

    _ = (
        aws.ec2.Vpc,
        aws.eks.NodeGroup,
        aws.iam.Role,
        aws.vpc.SecurityGroupIngressRule,
        aws.ecr.Repository,
        aws.fsx,
        aws.sqs,
    )

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # A program whose run fails leaves the SDK's own tasks and channels behind.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
ZONES = ("us-west-2a", "us-west-2b")


_RULE = {
    "rulePriority": 1,
    "selection": {"tagStatus": "untagged", "countType": "imageCountMoreThan", "countNumber": 5},
    "action": {"type": "expire"},
}
_EXPIRY = json.dumps({"rules": [_RULE]})


class Settings:
    """What the program below changes between runs."""

    desired = 1
    volume = 100
    owner = "first"
    device_index = 1
    zone = ZONES[0]


def _platform(settings: Settings) -> None:
    tags = {"owner": settings.owner}
    vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", enable_dns_hostnames=True, tags=tags)
    gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id)
    subnets = {
        zone: aws.ec2.Subnet(f"subnet-{zone}", vpc_id=vpc.id, cidr_block=f"10.0.{i}.0/24", availability_zone=zone)
        for i, zone in enumerate(ZONES)
    }
    address = aws.ec2.Eip("address", domain="vpc")
    nat = aws.ec2.NatGateway("nat", allocation_id=address.id, subnet_id=subnets[ZONES[0]].id)
    table = aws.ec2.RouteTable("table", vpc_id=vpc.id, routes=[{"cidr_block": "0.0.0.0/0", "gateway_id": gateway.id}])
    aws.ec2.Route("route", route_table_id=table.id, destination_cidr_block="10.9.0.0/16", nat_gateway_id=nat.id)
    for zone, subnet in subnets.items():
        aws.ec2.RouteTableAssociation(f"of-{zone}", route_table_id=table.id, subnet_id=subnet.id)
    aws.ec2.VpcEndpoint("s3", vpc_id=vpc.id, service_name="com.amazonaws.us-west-2.s3", route_table_ids=[table.id])
    everything = [{"protocol": "-1", "from_port": 0, "to_port": 0, "cidr_blocks": ["0.0.0.0/0"]}]
    group = aws.ec2.SecurityGroup("group", vpc_id=vpc.id, egress=everything, tags=tags)
    aws.vpc.SecurityGroupIngressRule(
        "itself", security_group_id=group.id, ip_protocol="-1", referenced_security_group_id=group.id
    )
    aws.ec2.SecurityGroupRule(
        "tls",
        type="ingress",
        protocol="tcp",
        from_port=443,
        to_port=443,
        cidr_blocks=["10.0.0.0/16"],
        security_group_id=group.id,
    )
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = aws.iam.Role("nodes", assume_role_policy=trust, tags=tags)
    attached = aws.iam.RolePolicyAttachment(
        "worker", role=role.name, policy_arn="arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
    )
    aws.iam.InstanceProfile("profile", role=role.name)
    reads = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [reads]})
    aws.iam.RolePolicy("inline", role=role.name, policy=document)
    placement = aws.ec2.PlacementGroup("placement", strategy="cluster")
    cluster = eks.Cluster(
        "control",
        version="1.34",
        vpc_id=vpc.id,
        subnet_ids=[subnet.id for subnet in subnets.values()],
        authentication_mode=eks.AuthenticationMode.API,
        skip_default_node_group=True,
        create_oidc_provider=True,
        access_entries={
            "admin": {
                "principal_arn": role.arn,
                "access_policies": {
                    "all": {
                        "policy_arn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
                        "access_scope": {"type": "cluster"},
                    }
                },
            }
        },
        tags=tags,
    )
    PodIdentity(
        "pods",
        PodIdentityArgs(
            cluster_name=cluster.eks_cluster.name,
            namespace="training",
            service_account="training",
            policies=[document],
            managed_policy_arns=["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"],
            tags=tags,
        ),
    )
    eks.ManagedNodeGroup(
        "system",
        cluster=cluster,
        node_role_arn=role.arn,
        instance_types=["m6i.xlarge"],
        labels={"role": "system"},
        opts=pulumi.ResourceOptions(depends_on=[attached]),
    )
    template = aws.ec2.LaunchTemplate(
        "gpu",
        instance_type="p5.48xlarge",
        update_default_version=True,
        placement={"group_name": placement.name},
        network_interfaces=[
            {
                "network_card_index": card,
                "device_index": settings.device_index if card else 0,
                "interface_type": "efa-only" if card else "efa",
                "security_groups": [group.id],
                "delete_on_termination": "true",
            }
            for card in range(32)
        ],
        block_device_mappings=[{"device_name": "/dev/xvda", "ebs": {"volume_size": settings.volume}}],
        tag_specifications=[{"resource_type": "instance", "tags": tags}],
    )
    gpus = aws.eks.NodeGroup(
        "gpus",
        cluster_name=cluster.eks_cluster.name,
        node_role_arn=role.arn,
        subnet_ids=[subnets[settings.zone].id],
        launch_template={"id": template.id, "version": template.latest_version.apply(str)},
        scaling_config={"min_size": 0, "max_size": 4, "desired_size": settings.desired},
        taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
        labels={"role": "gpu"},
    )
    repository = aws.ecr.Repository("image", name="eks-fsdp/test", image_tag_mutability="IMMUTABLE", force_delete=True)
    aws.ecr.LifecyclePolicy("expire", repository=repository.name, policy=_EXPIRY)
    system = aws.fsx.LustreFileSystem(
        "lustre",
        storage_capacity=1200,
        subnet_ids=subnets[ZONES[0]].id,
        deployment_type="PERSISTENT_2",
        per_unit_storage_throughput=125,
    )
    pulumi.export("vpc", vpc.id)
    pulumi.export("kubeconfig", cluster.kubeconfig)
    pulumi.export("group", gpus.node_group_name)
    pulumi.export("dns", system.dns_name)
    pulumi.export("image", repository.repository_url)
    pulumi.export("account", aws.get_caller_identity().account_id)
    pulumi.export("zones", aws.get_availability_zones(state="available").names)


def test_the_life_of_a_platform(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    stack = Inline(stand, lambda: _platform(settings), monkeypatch)
    try:
        previewed = stack.preview()
        assert set(previewed) == {"create"}
        made = stack.up()
        assert made == previewed, "a preview promises what up does"
        total = made["create"]
        outputs = stack.outputs()
        assert outputs["account"] == "123456789012"
        assert outputs["zones"][:2] == list(ZONES)
        assert outputs["kubeconfig"]["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
        groups = stand.groups()
        assert groups[outputs["group"]]["efa_interfaces"] == 32
        assert groups[outputs["group"]]["desired"] == 1
        _types_fit(stack)

        assert stack.up() == {"same": total}
        assert stack.refresh() == {"same": total}
        assert stack.up() == {"same": total}

        settings.desired = 3
        assert stack.preview() == {"same": total - 1, "update": 1}
        assert stack.up() == {"same": total - 1, "update": 1}
        assert stand.groups()[outputs["group"]]["desired"] == 3

        # A new version of the template reaches its node group in the same run.
        settings.volume = 200
        assert stack.preview() == {"same": total - 2, "update": 2}
        assert stack.up() == {"same": total - 2, "update": 2}

        settings.owner = "second"
        assert "replace" not in stack.preview()
        changed = stack.up()
        assert changed["update"] >= 4
        assert stack.up() == {"same": total}

        _drift(stand, stack, outputs, total)

        settings.zone = ZONES[1]
        assert stack.preview() == {"same": total - 1, "replace": 1}

        settings.zone, settings.device_index = ZONES[0], 2
        with pytest.raises(automation.CommandError, match="over the limit of network card 1"):
            stack.preview()
    finally:
        stack.stack.destroy()
    assert stand.left() == []


def _drift(stand: Stand, stack: Inline, outputs: dict[str, Any], total: int) -> None:
    """What somebody changes by hand is seen by a refresh, and put right by the next up."""
    client: Any = account_client(stand.ports["account_url"], "eks")
    cluster = client.list_clusters()["clusters"][0]
    wrong = {"minSize": 0, "maxSize": 4, "desiredSize": 0}
    client.update_nodegroup_config(clusterName=cluster, nodegroupName=outputs["group"], scalingConfig=wrong)
    assert stack.refresh() == {"same": total - 1, "update": 1}
    assert stack.up() == {"same": total - 1, "update": 1}
    assert stand.groups()[outputs["group"]]["desired"] == 3


def _types_fit(stack: Inline) -> None:
    """Every output is of the type that the SDK says: a list where a list is, a text where a text is."""
    exported = stack.stack.export_stack().deployment
    assert exported is not None
    for resource in exported["resources"]:
        package, module, name = [*resource["type"].split(":"), "", ""][:3]
        if package != "aws":
            continue
        types = _types.resource_types(getattr(getattr(aws, module.split("/")[0]), name))
        for key, value in (resource.get("outputs") or {}).items():
            if key in types and isinstance(value, (list, str)):
                is_list = "Sequence" in str(types[key])
                assert is_list is isinstance(value, list), f"{resource['urn']}: {key} is {value!r}"


def test_types_that_are_not_covered_are_named(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Inline(stand, lambda: aws.sqs.Queue("q") and None, monkeypatch)
    with pytest.raises(automation.CommandError, match="does not cover the resource type aws:sqs/queue:Queue"):
        stack.preview()


def test_a_failed_creation_leaves_nothing(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        aws.ec2.SecurityGroup(
            "g", ingress=[{"protocol": "tcp", "from_port": 1, "to_port": 1, "security_groups": ["sg-0"]}]
        )

    stack = Inline(stand, program, monkeypatch)
    with pytest.raises(automation.CommandError, match="creating aws:ec2/securityGroup:SecurityGroup"):
        stack.up()
    stack.stack.destroy()
    assert stand.left() == []


def _project(folder: Path, program: str) -> Path:
    folder.mkdir()
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (folder / "Pulumi.yaml").write_text(json.dumps({"name": "hosted", "runtime": runtime}))
    (folder / "__main__.py").write_text(program)
    return folder


PROGRAM = """
import pulumi, pulumi_aws as aws
config = pulumi.Config()
print("hello from the program")
vpc = aws.ec2.Vpc("vpc", cidr_block=config.require("cidr"))
pulumi.export("cidr", vpc.cidr_block)
pulumi.export("password", config.require_secret("password"))
"""


def test_a_program_through_our_language_host(stand: Stand, tmp_path: Path) -> None:
    folder = _project(tmp_path / "program", PROGRAM)
    stand.pulumi(folder, "stack", "init", "dev")
    stand.pulumi(folder, "config", "set", "cidr", "10.1.0.0/16")
    stand.pulumi(folder, "config", "set", "--secret", "password", "swordfish")
    shown = stand.pulumi(folder, "up", "--yes")
    assert "hello from the program" in shown
    assert "swordfish" not in shown
    assert "warning" not in shown
    told = json.loads(stand.pulumi(folder, "stack", "output", "--json", "--show-secrets"))
    assert told == {"cidr": "10.1.0.0/16", "password": "swordfish"}
    assert "2 unchanged" in stand.pulumi(folder, "up", "--yes")

    (folder / "__main__.py").write_text("def f():\n    raise ValueError('wrong on purpose')\nf()\n")
    failed = stand.pulumi(folder, "preview", fails=True)
    assert "ValueError: wrong on purpose" in failed
    assert "program_runner" not in failed, "the traceback begins in the user's program"
    (folder / "__main__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert "was ended by SIGKILL" in stand.pulumi(folder, "preview", fails=True)
    stand.pulumi(folder, "destroy", "--yes")
    assert stand.left() == []


PACK = """
from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy

def check(args, report):
    if args.resource_type == "aws:ec2/vpc:Vpc":
        report("no networks on a Monday")

PolicyPack(
    name="calm",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[ResourceValidationPolicy(name="no-vpc", description="No networks.", validate=check)],
)
"""


def test_a_policy_pack_through_our_language_host(stand: Stand, tmp_path: Path) -> None:
    folder = _project(tmp_path / "program", "import pulumi_aws as aws\naws.ec2.Vpc('vpc', cidr_block='10.1.0.0/16')\n")
    pack = tmp_path / "pack"
    pack.mkdir()
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (pack / "PulumiPolicy.yaml").write_text(json.dumps({"runtime": runtime}))
    (pack / "__main__.py").write_text(PACK)
    stand.pulumi(folder, "stack", "init", "dev")
    shown = stand.pulumi(folder, "preview", "--policy-pack", str(pack), fails=True)
    assert "no networks on a Monday" in shown
