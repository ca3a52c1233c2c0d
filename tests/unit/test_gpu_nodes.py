"""GPU groups as they are declared: golden launch templates, and a test for each known way in which such nodes fail.

The issue that shows the failure stands beside the test that would catch it.
"""

from __future__ import annotations

import base64
import email
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_fsdp.components.gpu_nodes import GpuNodeGroup, GpuNodeGroupArgs, schedule
from eks_fsdp.sandbox.account_ec2 import instance_type
from eks_fsdp.sandbox.cloud.compute import LAUNCH_TEMPLATE
from eks_fsdp.sandbox.cloud.kinds import Context
from eks_fsdp.sandbox.refusals import launch_template_problems
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings
from eks_fsdp.spec.versions import AMI_RELEASES

from .conftest import Declare, Declared
from .test_cloud_mapping import client

Golden = Callable[[str, str], None]
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
BLOCK: dict[str, Any] = {
    "kind": "capacity-block",
    "reservation_id": "cr-0123456789abcdef0",
    "starts": "2027-01-02T11:30:00Z",
    "ends": "2027-01-04T11:30:00Z",
}
ODCR = {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0"}
GROUP_ARN = "arn:aws:resource-groups:us-west-2:123456789012:group/p5"


def group(instance_type: str = "p5.48xlarge", **values: Any) -> GpuNodeGroupSettings:
    return GpuNodeGroupSettings.parse(
        {"name": "gpu", "instance_type": instance_type, "zone": "us-west-2a", **values}, root="gpu_nodes[0]"
    )


def inputs(declare: Declare, settings: GpuNodeGroupSettings, **more: Any) -> dict[str, Declared]:
    """Template and node group as the engine gets them, by the last part of their names."""

    def program() -> None:
        args: dict[str, Any] = {
            "group": settings,
            "cluster_name": "cluster-1",
            "kubernetes_version": "1.34",
            "node_role_arn": "arn:aws:iam::123456789012:role/node",
            "subnet_id": "subnet-0a",
            "security_group_ids": ["sg-cluster", "sg-efa"],
            "tags": {"eksfsdp:owner": "me", "eksfsdp:stack": "unit"},
            "now": NOW,
            **more,
        }
        GpuNodeGroup("g", GpuNodeGroupArgs(**args))

    return {resource.name.removeprefix("g-"): resource for resource in declare(program)}


def request(template: dict[str, Any]) -> dict[str, Any]:
    """LaunchTemplateData as EC2 gets it, by botocore's own model."""
    context = Context(
        clients=client, service="ec2", region="us-west-2", account="1", inputs={**template, "name": "t"}, tags={}
    )
    return dict(LAUNCH_TEMPLATE.create.request(context, LAUNCH_TEMPLATE.names)["LaunchTemplateData"])


def user_data(template: dict[str, Any]) -> list[tuple[str, str]]:
    message = email.message_from_string(base64.b64decode(template["userData"]).decode())
    return [(part.get_content_type(), str(part.get_payload())) for part in message.walk() if not part.is_multipart()]


def node_config(template: dict[str, Any]) -> Any:
    return yaml.safe_load(dict(user_data(template))["application/node.eks.aws"])["spec"]


CASES: dict[str, tuple[dict[str, Any], int]] = {
    # name: settings, EFA interfaces
    "p4de": ({"instance_type": "p4de.24xlarge"}, 4),
    "p5": ({"instance_type": "p5.48xlarge"}, 32),
    "p5en": ({"instance_type": "p5en.48xlarge"}, 16),
    "p6-b200": ({"instance_type": "p6-b200.48xlarge"}, 8),
    "p6-b300": ({"instance_type": "p6-b300.48xlarge"}, 16),
    "g5-8xlarge": ({"instance_type": "g5.8xlarge"}, 1),
    "g5-xlarge": ({"instance_type": "g5.xlarge"}, 0),
    "p5-without-efa": ({"efa": "none"}, 0),
    "p5-dense": ({"efa": "efa-only-dense"}, 32),
    "p4de-dense": ({"instance_type": "p4de.24xlarge", "efa": "efa-only-dense"}, 4),
    "p5-odcr": ({"capacity": ODCR}, 32),
    "p5-odcr-group": ({"capacity": {"kind": "odcr", "resource_group_arn": GROUP_ARN}}, 32),
    "p5-capacity-block": ({"capacity": BLOCK}, 32),
    "p5-spot-types": ({"alternatives": ["p5e.48xlarge"], "capacity": {"kind": "spot"}}, 32),
    "p5-settings": (
        {
            "nvme": "mount",
            "hugepages": 10240,
            "max_pods": 60,
            "root_volume_gib": 1000,
            "kms_key_arn": "arn:aws:kms:us-west-2:123456789012:key/k",
            "security_groups": ["sg-0123456789abcdef0"],
            "placement_group": {"mode": "existing", "name": "mine"},
            "tags": {"team": "a"},
        },
        32,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_launch_template(case: str, declare_program: Declare, golden: Golden) -> None:
    settings, efa = CASES[case]
    declared = inputs(declare_program, group(**settings))
    data = request(declared["template"].inputs)
    interfaces = [
        f"card {i['NetworkCardIndex']} device {i['DeviceIndex']} {i['InterfaceType']} {','.join(i['Groups'])}"
        for i in data.pop("NetworkInterfaces")
    ]
    encoded = data.pop("UserData", None)
    for kind in data["TagSpecifications"]:
        kind["Tags"].sort(key=lambda tag: tag["Key"])
    text = yaml.safe_dump({"NetworkInterfaces": interfaces, **data}, width=120)
    if encoded:
        text += f"--- # user data\n{base64.b64decode(encoded).decode()}"
    golden(f"template-{case}.yaml", text)
    assert sum("efa" in line.split()[4] for line in interfaces) == efa


@pytest.mark.parametrize("name", INSTANCE_TYPES)
@pytest.mark.parametrize("layout", ["auto", "classic", "efa-only-dense", "none"])
def test_interfaces_keep_to_the_rules_of_ec2(name: str, layout: Any) -> None:
    # eksctl#7520 (p5: device index over its limit), terraform-aws-eks#2654 and #2182 (no card index),
    # parallelcluster PR#7262 (the dense layout), parallelcluster#7143 (p6-b300: card 0 has no EFA).
    instance = INSTANCE_TYPES[name]
    try:
        interfaces = instance.interfaces(layout)
    except ValueError:
        assert layout != "auto"
        assert not instance.efa_interfaces or (layout == "classic" and not instance.efa_on_first_card)
        return
    assert (interfaces[0].card, interfaces[0].device) == (0, 0)
    assert interfaces[0].kind != "efa-only", "the first interface has the node's address"
    wanted = 0 if layout == "none" else instance.efa_interfaces
    assert sum(i.kind != "interface" for i in interfaces) == wanted
    assert max(Counter((i.card, i.device) for i in interfaces).values()) == 1
    # skypilot and dstack#1804: an "efa" interface takes an address, 32 on a p5. All but the first do without.
    assert instance.addresses(layout) == 1
    data = {
        "NetworkInterfaces": [
            {"NetworkCardIndex": i.card, "DeviceIndex": i.device, "InterfaceType": i.kind} for i in interfaces
        ]
    }
    assert launch_template_problems(data, instance_type(name)) == []
    assert all(i.device in (0, 1) for i in interfaces)


@pytest.mark.parametrize(
    ("name", "layout", "pods"),
    # misc/eni-max-pods.txt of amazon-eks-ami says 100, 198 and 737 (of which EKS lets a node have 250).
    [
        ("p5.48xlarge", "classic", 100),
        ("p5.48xlarge", "efa-only-dense", 51),
        ("p5en.48xlarge", "classic", 198),
        ("p4de.24xlarge", "classic", 250),
        ("p6-b300.48xlarge", "efa-only-dense", 198),
        ("g5.xlarge", "none", 58),
    ],
)
def test_pods_that_a_node_has_addresses_for(name: str, layout: Any, pods: int) -> None:
    # vpc-cni#3189: an EFA-only interface on a p5's first card takes the only other one that pods could use.
    instance = INSTANCE_TYPES[name]
    assert instance.max_pods(layout) == pods
    assert instance.max_pods(layout, prefix_delegation=True) == (250 if instance.vcpus > 30 else 110)


def test_the_kubelet_is_told_where_the_layout_leaves_fewer_pods_than_eks_thinks(declare_program: Declare) -> None:
    dense = group(efa="efa-only-dense")
    assert node_config(inputs(declare_program, dense)["template"].inputs)["kubelet"] == {
        "config": {"maxPods": 51},
        "flags": ["--max-pods=51"],
    }
    prefixes = inputs(declare_program, dense, prefix_delegation=True)["template"].inputs
    assert "kubelet" not in node_config(prefixes)


def test_every_group_is_on_every_interface_and_nowhere_else(declare_program: Declare) -> None:
    # eksctl#3465 (the EFA group on no interface), awsome-distributed-ai PR#259 (several groups),
    # terraform-aws-eks#1880 (both lists), aws-efa-eks#19 (a subnet in the template), terraform-aws-eks#3533 (public).
    template = inputs(declare_program, group(security_groups=["sg-0123456789abcdef0"]))["template"].inputs
    for interface in template["networkInterfaces"]:
        assert interface["securityGroups"] == ["sg-cluster", "sg-efa", "sg-0123456789abcdef0"]
        assert interface["deleteOnTermination"] == "true"
        assert "networkCardIndex" in interface
        assert not {"associatePublicIpAddress", "subnetId"} & set(interface)
    assert not {"vpcSecurityGroupIds", "securityGroupNames"} & set(template)


def test_efa_is_counted_by_the_types_efa_interfaces_and_not_by_its_cards(declare_program: Declare) -> None:
    # eksctl#8685: p6-b300 has 17 cards and 16 EFA interfaces. awsome-distributed-ai PR#302: derived from the type.
    kinds = [
        i["interfaceType"]
        for i in inputs(declare_program, group("p6-b300.48xlarge"))["template"].inputs["networkInterfaces"]
    ]
    assert Counter(kinds) == {"interface": 1, "efa-only": 16}


@pytest.mark.parametrize(
    ("values", "placed"),
    [
        ({}, "g-placement"),
        ({"placement_group": {"mode": "none"}}, None),
        ({"placement_group": {"mode": "existing", "name": "mine"}}, "mine"),
        ({"placement_group": {"mode": "existing", "name": "mine"}, "capacity": ODCR}, "mine"),
        ({"capacity": ODCR}, None),
        ({"capacity": BLOCK}, None),
        ({"instance_type": "g5.xlarge"}, None),
        ({"instance_type": "g5.xlarge", "placement_group": {"mode": "auto"}}, "g-placement"),
    ],
)
def test_a_placement_group_is_never_made_with_a_reservation(
    values: dict[str, Any], placed: str | None, declare_program: Declare
) -> None:
    # eksctl#7949 (11 of 16 nodes started), terraform-aws-eks#3661 (one of the user's own is not overridden).
    declared = inputs(declare_program, group(**values))
    said = declared["template"].inputs.get("placement", {}).get("groupName")
    assert said == placed
    assert ("placement" in declared) == (placed == "g-placement")


def test_a_reservation_reaches_the_template_and_the_node_group_together(declare_program: Declare) -> None:
    # eksctl#8320 and #8542 (the field was dropped in silence), terraform-provider-aws#40876 (one without the other).
    def both(**values: Any) -> tuple[Any, Any, str, bool]:
        declared = inputs(declare_program, group(**values))
        template, nodes = declared["template"].inputs, declared["nodes"]
        return (
            template.get("capacityReservationSpecification"),
            template.get("instanceMarketOptions"),
            nodes.inputs["capacityType"],
            nodes.deleted_before_replaced,
        )

    target = {"capacityReservationId": "cr-0123456789abcdef0"}
    assert both() == (None, None, "ON_DEMAND", False)
    assert both(capacity={"kind": "spot"}) == (None, None, "SPOT", False)
    only = {"capacityReservationPreference": "capacity-reservations-only"}
    assert both(capacity=ODCR) == ({**only, "capacityReservationTarget": target}, None, "ON_DEMAND", True)
    by_group = {"capacityReservationResourceGroupArn": GROUP_ARN}
    of_group = both(capacity={"kind": "odcr", "resource_group_arn": GROUP_ARN})
    assert of_group == ({**only, "capacityReservationTarget": by_group}, None, "ON_DEMAND", True)
    market = {"marketType": "capacity-block"}
    assert both(capacity=BLOCK) == ({"capacityReservationTarget": target}, market, "CAPACITY_BLOCK", True)


def test_a_misspelt_reservation_is_refused_and_not_dropped() -> None:
    # eksctl#7906: capacityReservationId for capacityReservationID started nodes outside the reservation.
    with pytest.raises(SettingsError, match=r"gpu_nodes\[0\].capacity.reservation_ID: unknown key. did you mean"):
        group(capacity={"kind": "odcr", "reservation_ID": "cr-0123456789abcdef0"})


def test_the_node_group(declare_program: Declare) -> None:
    wanted = group(
        desired=2,
        labels={"team": "a"},
        taints=[{"key": "team", "value": "a", "effect": "NoExecute"}],
        node_repair=False,
        max_unavailable_percentage=50,
        tags={"project": "x"},
        capacity=ODCR,
    )
    nodes = inputs(declare_program, wanted)["nodes"].inputs
    assert nodes["labels"] == {
        "team": "a",
        "eksfsdp/role": "gpu",
        "eksfsdp/gpu-group": "gpu",
        "nvidia.com/gpu.present": "true",
        "vpc.amazonaws.com/efa.present": "true",
    }
    assert nodes["taints"] == [
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"},
        {"key": "team", "value": "a", "effect": "NO_EXECUTE"},
    ]
    assert nodes["nodeRepairConfig"] == {"enabled": False}
    assert nodes["updateConfig"] == {"updateStrategy": "MINIMAL", "maxUnavailablePercentage": 50}
    assert nodes["tags"] == {
        "project": "x",
        "eksfsdp:owner": "me",
        "eksfsdp:stack": "unit",
        "eksfsdp:gpu-group": "gpu",
        "Name": "g",
    }
    assert (nodes["amiType"], nodes["version"], nodes["releaseVersion"]) == (
        "AL2023_x86_64_NVIDIA",
        "1.34",
        AMI_RELEASES["1.34"],
    )
    assert "nodeGroupName" not in nodes, "two of one name cannot be: an on-demand group is made before the old one goes"
    assert "instanceTypes" not in nodes, "EKS refuses it in both places"
    open_market = inputs(declare_program, group())["nodes"].inputs
    assert open_market["updateConfig"]["updateStrategy"] == "DEFAULT"


def test_several_types_are_named_by_the_node_group_alone(declare_program: Declare) -> None:
    declared = inputs(declare_program, group(alternatives=["p5e.48xlarge"]))
    assert "instanceType" not in declared["template"].inputs
    assert declared["nodes"].inputs["instanceTypes"] == ["p5.48xlarge", "p5e.48xlarge"]


def test_an_image_of_your_own_gets_the_whole_of_nodeadms_configuration(declare_program: Declare) -> None:
    # pulumi-eks#1550, #1578, #1526, #1463: image, type and release that contradict each other.
    own = group(ami={"image_id": "ami-0123456789abcdef0"}, labels={"team": "a"})
    where = {"endpoint": "https://k8s", "certificate_authority": "Q0E=", "service_cidr": "172.20.0.0/16"}
    declared = inputs(declare_program, own, **where)
    assert declared["template"].inputs["imageId"] == "ami-0123456789abcdef0"
    assert not {"amiType", "version", "releaseVersion"} & set(declared["nodes"].inputs)
    assert node_config(declared["template"].inputs) == {
        "cluster": {
            "name": "cluster-1",
            "apiServerEndpoint": "https://k8s",
            "certificateAuthority": "Q0E=",
            "cidr": "172.20.0.0/16",
        },
        "kubelet": {
            "flags": [
                "--node-labels=team=a,eksfsdp/role=gpu,eksfsdp/gpu-group=gpu,nvidia.com/gpu.present=true,"
                "vpc.amazonaws.com/efa.present=true",
                "--register-with-taints=nvidia.com/gpu=true:NoSchedule",
            ]
        },
        "instance": {"localStorage": {"strategy": "RAID0"}},
    }
    with pytest.raises(SettingsError, match=r"ami\.release.*accepted: one of them"):
        group(ami={"image_id": "ami-0123456789abcdef0", "release": "1.34.9-20260801"})


def test_eks_own_image_gets_nothing_that_eks_says_itself(declare_program: Declare) -> None:
    template = inputs(declare_program, group())["template"].inputs
    # With an image of its own EKS would neither merge the user data nor keep the AMI type.
    assert "imageId" not in template
    assert node_config(template) == {"instance": {"localStorage": {"strategy": "RAID0"}}}
    assert "userData" not in inputs(declare_program, group(nvme="none"))["template"].inputs


def test_huge_pages_are_set_before_the_kubelet_counts_them(declare_program: Declare) -> None:
    kinds = [kind for kind, _ in user_data(inputs(declare_program, group(hugepages=512))["template"].inputs)]
    assert kinds == ["text/x-shellscript", "application/node.eks.aws"]


def test_a_tag_that_changes_makes_no_version_of_the_template(declare_program: Declare) -> None:
    declared = inputs(declare_program, group(tags={"project": "x"}))
    assert declared["template"].ignored_changes == ("tagSpecifications",)
    tags = {name: resource.inputs["tag"] for name, resource in declared.items() if name.startswith("tag-")}
    assert tags == {
        "tag-project": {"key": "project", "value": "x", "propagateAtLaunch": True},
        "tag-eksfsdp-owner": {"key": "eksfsdp:owner", "value": "me", "propagateAtLaunch": True},
    }


def test_what_makes_a_new_group_changes_the_template_too(declare_program: Declare) -> None:
    def description(settings: GpuNodeGroupSettings, **more: Any) -> str:
        return str(inputs(declare_program, settings, **more)["template"].inputs["description"])

    said = [
        description(group()),
        description(group(zone="us-west-2b")),
        description(group(capacity={"kind": "spot"})),
        description(group(alternatives=["p5e.48xlarge"])),
        description(group(), subnet_id="subnet-0b"),
        description(group(), node_role_arn="arn:aws:iam::123456789012:role/other"),
    ]
    assert len(set(said)) == len(said)
    assert description(group(desired=3, labels={"a": "b"})) == said[0]


# A capacity block that is still to come


def test_a_block_is_started_and_stopped_by_schedule_as_far_as_that_is_to_come(declare_program: Declare) -> None:
    block = group(capacity={**BLOCK, "scheduled_nodes": 4})
    declared = inputs(declare_program, block)
    start, stop = declared["start"].inputs, declared["stop"].inputs
    assert (start["startTime"], start["desiredCapacity"], start["maxSize"]) == ("2027-01-02T11:30:00Z", 4, 16)
    # EKS drains the nodes 40 minutes before the end.
    assert (stop["startTime"], stop["desiredCapacity"]) == ("2027-01-04T10:30:00Z", 0)
    assert start["autoscalingGroupName"] == "eks-g-nodes"
    assert declared["nodes"].ignored_changes == ("scalingConfig.desiredSize",)
    assert [size.action for size in schedule(block, NOW + timedelta(days=1))] == ["stop"]
    assert schedule(block, NOW + timedelta(days=4)) == []
    begun = group(desired=4, capacity={**BLOCK, "scheduled_nodes": 4})
    assert inputs(declare_program, begun)["nodes"].ignored_changes == ()
    assert not {"start", "stop"} & set(inputs(declare_program, group(capacity=BLOCK)))


# Refusals


def settings(jobs: dict[str, Any] | None = None, **values: Any) -> Settings:
    one = {"name": "gpu", "instance_type": "p5.48xlarge", "zone": "us-west-2a", **values}
    return Settings.parse({"gpu_nodes": [one], "jobs": jobs or {}})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"instance_type": "g5.xlarge", "efa": "classic"}, ["gpu_nodes[0].efa", "g5.xlarge has no EFA", "g5.8xlarge"]),
        ({"instance_type": "p6-b300.48xlarge", "efa": "classic"}, ["gpu_nodes[0].efa", "card 0", "efa-only-dense"]),
        ({"alternatives": ["p5en.48xlarge"]}, ["gpu_nodes[0].alternatives[0]", "'p5en.48xlarge' has 16 EFA", "32"]),
        (
            {"instance_type": "g5.8xlarge", "alternatives": ["g5.12xlarge"]},
            ["gpu_nodes[0].alternatives[0]", "4 GPUs", "has 1"],
        ),
        (
            {"alternatives": ["p5e.48xlarge", "p5e.48xlarge"]},
            ["gpu_nodes[0].alternatives[1]", "'p5e.48xlarge' is named twice"],
        ),
        (
            {"alternatives": ["p5e.48xlarge"], "capacity": ODCR},
            ["gpu_nodes[0].alternatives", "odcr", "one instance type"],
        ),
        (
            {"placement_group": {"mode": "auto"}, "capacity": ODCR},
            ["gpu_nodes[0].placement_group.mode", "odcr", "none"],
        ),
        ({"ami": {"release": "1.33.1-20260801"}}, ["gpu_nodes[0].ami.release", "'1.34'", "begins with 1.34."]),
        (
            {"max": 2, "capacity": {**BLOCK, "scheduled_nodes": 4}},
            ["gpu_nodes[0].capacity.scheduled_nodes", "4", "max 2"],
        ),
        (
            {"capacity": {**BLOCK, "starts": None, "scheduled_nodes": 4}},
            ["gpu_nodes[0].capacity.scheduled_nodes", "capacity.starts is not set"],
        ),
        ({"capacity": {"kind": "capacity-block"}}, ["gpu_nodes[0].capacity.reservation_id", "cr-..."]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_declared(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        settings(**values)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "accepted:" in str(error.value) or "accepted with one:" in str(error.value)


def test_a_kubernetes_version_without_a_pinned_image_needs_one() -> None:
    with pytest.raises(
        SettingsError, match=r"gpu_nodes\[0\]\.ami\.release: not set, and the program pins none for Kubernetes 1\.35"
    ):
        Settings.parse(
            {
                "gpu_nodes": [{"name": "gpu", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}],
                "cluster": {"kubernetes_version": "1.35"},
            }
        )


# The guide


def test_the_guides_settings_are_accepted() -> None:
    text = (Path(__file__).parents[2] / "docs/capacity.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "gpu_nodes" in block]
    kinds = set()
    for block in blocks:
        groups = yaml.safe_load(block)["eks-fsdp:gpu_nodes"]
        zone = groups[0]["zone"]
        region = "us-west-2" if zone.startswith("usw2-") else zone[:-1]
        # Another zone in the same spelling; none of the guide's groups is in it.
        zones = [zone, "usw2-az4" if zone.startswith("usw2-") else f"{region}c"]
        parsed = Settings.parse({"region": region, "gpu_nodes": groups, "network": {"zones": zones}})
        kinds |= {one.capacity.kind for one in parsed.gpu_nodes}
    assert kinds == {"on-demand", "spot", "odcr", "capacity-block"}
