"""GPU nodes: a launch template with the EFA interfaces of the instance type, and a managed node group on it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import (
    EFA_PRESENT_LABEL,
    GPU_GROUP_LABEL,
    GPU_PRESENT_LABEL,
    GPU_TAINT_KEY,
    ROLE_LABEL,
    TAG_GPU_GROUP,
)
from eks_fsdp.spec.settings import GpuNodeGroupSettings

AMI_TYPE = "AL2023_x86_64_NVIDIA"
"""Amazon Linux 2023 with NVIDIA driver, container toolkit and EFA's kernel module."""
_BOUNDARY = "eks-fsdp-boundary"


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of an instance."""

    card: int
    device: int
    kind: Literal["interface", "efa", "efa-only"]
    """``efa``: EFA and an IP address; ``efa-only``: takes no address of the subnet."""


def network_interfaces(instance: InstanceType) -> list[Interface]:
    """The interfaces that give ``instance`` all its EFA bandwidth.

    The first is the node's own address. A card knows few device indices (p5: two), so every further card's interface is
    at 1, never at the card's number; at 0 where the first card has no EFA (p6-b300), as nothing else is on those cards.
    """
    if not instance.efa_interfaces:
        return [Interface(card=0, device=0, kind="interface")]
    if instance.efa_on_first_card:
        device = min(1, instance.interfaces_per_card - 1)
        rest = [Interface(card=card, device=device, kind="efa-only") for card in range(1, instance.efa_interfaces)]
        return [Interface(card=0, device=0, kind="efa"), *rest]
    rest = [Interface(card=card, device=0, kind="efa-only") for card in range(1, instance.efa_interfaces + 1)]
    return [Interface(card=0, device=0, kind="interface"), *rest]


def user_data(instance: InstanceType) -> str | None:
    """MIME document that makes one RAID 0 of the local NVMe disks, for kubelet, images and emptyDirs; None without disks.

    It holds this part of nodeadm's NodeConfig alone: EKS merges in the rest as long as the template names no image.
    """
    if not instance.nvme_gb:
        return None
    return "\n".join(
        [
            "MIME-Version: 1.0",
            f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"',
            "",
            f"--{_BOUNDARY}",
            "Content-Type: application/node.eks.aws",
            "",
            "apiVersion: node.eks.aws/v1alpha1",
            "kind: NodeConfig",
            "spec:",
            "  instance:",
            "    localStorage:",
            "      strategy: RAID0",
            "",
            f"--{_BOUNDARY}--",
            "",
        ]
    )


def node_labels(group: GpuNodeGroupSettings) -> dict[str, str]:
    """Kubernetes labels of the group's nodes; the program's own win over the user's."""
    efa = {EFA_PRESENT_LABEL: "true"} if group.instance.efa_interfaces else {}
    return {**group.labels, ROLE_LABEL: "gpu", GPU_GROUP_LABEL: group.name, GPU_PRESENT_LABEL: "true", **efa}


def launch_template(
    group: GpuNodeGroupSettings, security_group_ids: Sequence[pulumi.Input[str]], tags: Mapping[str, str]
) -> aws.ec2.LaunchTemplateArgs:
    """What the template says. No image (the node group's AMI type names it), no subnet, no group outside interfaces."""
    data = user_data(group.instance)
    return aws.ec2.LaunchTemplateArgs(
        description=f"GPU nodes {group.name}: {group.instance_type}",
        update_default_version=True,
        instance_type=group.instance_type,
        user_data=base64.b64encode(data.encode()).decode() if data else None,
        network_interfaces=[
            aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                network_card_index=interface.card,
                device_index=interface.device,
                interface_type=interface.kind,
                security_groups=security_group_ids,
                delete_on_termination="true",
            )
            for interface in network_interfaces(group.instance)
        ],
        block_device_mappings=[
            aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                device_name="/dev/xvda",
                ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                    volume_type="gp3",
                    volume_size=group.root_volume_gib,
                    encrypted="true",
                    delete_on_termination="true",
                ),
            )
        ],
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled",
            http_tokens="required",
            # A pod is one hop further away than the node itself.
            http_put_response_hop_limit=2,
        ),
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=tags)
            for kind in ("instance", "volume", "network-interface")
        ],
        tags=tags,
    )


@dataclass(frozen=True, kw_only=True)
class GpuNodeGroupArgs:
    """Inputs of `GpuNodeGroup`."""

    group: GpuNodeGroupSettings
    """Type, size and labels."""
    cluster_name: pulumi.Input[str]
    """The EKS cluster that the nodes join."""
    kubernetes_version: str
    """Minor version of the nodes, at most the control plane's."""
    node_role_arn: pulumi.Input[str]
    """IAM role of the nodes."""
    subnet_id: pulumi.Input[str]
    """A private subnet in the group's zone."""
    security_group_ids: Sequence[pulumi.Input[str]]
    """On every interface: the cluster's own group, and one that is open to itself for EFA."""
    tags: Mapping[str, str]
    """Tags of every AWS resource, instances and volumes included: another one here is another instance."""
    changing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the node group alone, such as the expiry: they change while its nodes stay."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before a node starts: what ends it."""


class GpuNodeGroup(pulumi.ComponentResource):
    """GPU nodes of one type in one zone, tainted so that only what asks for GPUs runs on them."""

    node_group_name: pulumi.Output[str]
    node_group_arn: pulumi.Output[str]

    def __init__(self, name: str, args: GpuNodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:gpu:GpuNodeGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = args.group
        tags = {**args.tags, "Name": name}
        template = aws.ec2.LaunchTemplate(
            f"{name}-template", launch_template(group, args.security_group_ids, tags), opts=child
        )
        nodes = aws.eks.NodeGroup(
            f"{name}-nodes",
            cluster_name=args.cluster_name,
            version=args.kubernetes_version,
            node_role_arn=args.node_role_arn,
            subnet_ids=[args.subnet_id],
            ami_type=AMI_TYPE,
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config={"min_size": group.min, "desired_size": group.desired, "max_size": group.max},
            labels=node_labels(group),
            taints=[{"key": GPU_TAINT_KEY, "value": "true", "effect": "NO_SCHEDULE"}],
            # A new template or AMI: by default EKS starts nodes beyond these first, and takes one after the other, though
            # a job is over with the first of its nodes.
            update_config={"update_strategy": "MINIMAL", "max_unavailable_percentage": 100},
            tags={**tags, **args.changing_tags, TAG_GPU_GROUP: group.name},
            # A new group beside the old one would be twice the nodes, at twice the price where there are that many.
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True, depends_on=list(args.depends_on)),
        )
        self.node_group_name = nodes.node_group_name
        self.node_group_arn = nodes.arn
        self.register_outputs({"node_group_name": self.node_group_name})
