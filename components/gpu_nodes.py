"""GPU nodes: a launch template with the EFA interfaces of the instance type, and a managed node group on it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.names import (
    EFA_PRESENT_LABEL,
    GPU_GROUP_LABEL,
    GPU_PRESENT_LABEL,
    GPU_TAINT_KEY,
    ROLE_LABEL,
    TAG_GPU_GROUP,
    TAG_STACK,
)
from eks_fsdp.spec.rules.capacity import BLOCK_MARGIN
from eks_fsdp.spec.settings import GpuNodeGroupSettings
from eks_fsdp.spec.versions import AMI_RELEASES

from .disruption import DisruptionGuard
from .node_user_data import ClusterAddress, node_config, user_data

CAPACITY_TYPES = {
    "on-demand": "ON_DEMAND",
    "spot": "SPOT",
    # A reservation's instances are ordinary ones to EKS: the launch template alone names it.
    "odcr": "ON_DEMAND",
    "capacity-block": "CAPACITY_BLOCK",
}
"""EKS' spelling of `CapacitySettings.kind`."""
TAINT_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
"""EKS' spelling of Kubernetes' own."""

FIXED_TAGS = frozenset({"Name", TAG_STACK})
"""Tags that cannot change while the group is there. Nodes get the others from the Auto Scaling group."""


def node_labels(group: GpuNodeGroupSettings) -> dict[str, str]:
    """Kubernetes labels of the group's nodes; the program's own win over the user's."""
    efa = {EFA_PRESENT_LABEL: "true"} if group.uses_efa else {}
    return {**group.labels, ROLE_LABEL: "gpu", GPU_GROUP_LABEL: group.name, GPU_PRESENT_LABEL: "true", **efa}


def node_taints(group: GpuNodeGroupSettings) -> list[tuple[str, str, str]]:
    """Key, value and effect (Kubernetes' spelling) of the nodes' taints: the GPU's, and the user's."""
    return [(GPU_TAINT_KEY, "true", "NoSchedule"), *((taint.key, taint.value, taint.effect) for taint in group.taints)]


def pod_limit(group: GpuNodeGroupSettings, prefix_delegation: bool) -> int | None:
    """The kubelet's limit, where it is not the one that EKS computes by itself."""
    if group.max_pods is not None:
        return group.max_pods
    fits = group.instance.max_pods(group.efa, prefix_delegation=prefix_delegation)
    usual = group.instance.max_pods("none", prefix_delegation=prefix_delegation)
    return fits if fits < usual else None


def places_automatically(group: GpuNodeGroupSettings) -> bool:
    """Whether the group gets a placement group of its own: where EFA gains by it, and no reservation says where it is."""
    mode = group.placement_group.mode
    return mode == "auto" or (mode is None and group.uses_efa and not group.capacity.reserved)


def capacity_of(group: GpuNodeGroupSettings) -> dict[str, Any]:
    """The template's parts that say where instances come from, as keyword arguments."""
    wanted = group.capacity
    if not wanted.reserved:
        return {}
    target = aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
        capacity_reservation_id=wanted.reservation_id,
        capacity_reservation_resource_group_arn=wanted.resource_group_arn,
    )
    if wanted.kind == "capacity-block":
        return {
            "capacity_reservation_specification": aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
                capacity_reservation_target=target
            ),
            "instance_market_options": aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block"),
        }
    return {
        "capacity_reservation_specification": aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
            # Without this a full resource group is left for on-demand instances, which are paid for beside it.
            capacity_reservation_preference="capacity-reservations-only",
            capacity_reservation_target=target,
        )
    }


def launch_template(
    group: GpuNodeGroupSettings,
    security_group_ids: Sequence[pulumi.Input[str]],
    tags: Mapping[str, str],
    *,
    description: pulumi.Input[str],
    data: pulumi.Input[str | None] = None,
    placement_group: pulumi.Input[str] | None = None,
) -> aws.ec2.LaunchTemplateArgs:
    """What the template says: no subnet, no public address, no security group but in the interfaces.

    It names no image unless the user's own (the node group's AMI type does), and no instance type where there are several.
    ``data``: base64 of the user data.
    """
    return aws.ec2.LaunchTemplateArgs(
        description=description,
        update_default_version=True,
        instance_type=None if group.alternatives else group.instance_type,
        image_id=group.ami.image_id,
        user_data=data,
        placement=aws.ec2.LaunchTemplatePlacementArgs(group_name=placement_group) if placement_group else None,
        network_interfaces=[
            aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                network_card_index=interface.card,
                device_index=interface.device,
                interface_type=interface.kind,
                security_groups=[*security_group_ids, *group.security_groups],
                delete_on_termination="true",
            )
            for interface in group.instance.interfaces(group.efa)
        ],
        block_device_mappings=[
            aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                device_name="/dev/xvda",
                ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                    volume_type="gp3",
                    volume_size=group.root_volume_gib,
                    encrypted="true",
                    kms_key_id=group.kms_key_arn,
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
        **capacity_of(group),
    )


def describe(group: GpuNodeGroupSettings, placed: Sequence[str]) -> str:
    """The template's description: what the nodes are, and a digest of all for which EKS makes a new group.

    ``placed``: ids that belong to the latter. So whatever replaces the group changes the template first, and that can
    be refused before the old group is deleted.
    """
    replaces = [
        *placed,
        group.zone,
        group.capacity.kind,
        group.ami.type,
        bool(group.ami.image_id),
        *group.instance_types,
    ]
    digest = hashlib.sha256(json.dumps(replaces).encode()).hexdigest()[:8]
    return (
        f"GPU nodes {group.name}: {', '.join(group.instance_types)} in {group.zone}, {group.capacity.kind} ({digest})"
    )


@dataclass(frozen=True, kw_only=True)
class ScheduledSize:
    """A change of the Auto Scaling group's size at a point in time."""

    action: str
    """What it does: ``start`` or ``stop``."""
    at: datetime
    nodes: int


def schedule(group: GpuNodeGroupSettings, now: datetime) -> list[ScheduledSize]:
    """When a capacity block's nodes start and stop, as far as that is to come: AWS takes no time in the past."""
    wanted = group.capacity
    if not wanted.scheduled_nodes or wanted.starts is None or wanted.ends is None:
        return []
    sizes = [
        ScheduledSize(action="start", at=wanted.starts, nodes=wanted.scheduled_nodes),
        ScheduledSize(action="stop", at=wanted.ends - BLOCK_MARGIN, nodes=0),
    ]
    return [size for size in sizes if size.at > now]


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
    """Tags of every AWS resource, instances and volumes included."""
    changing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the node group alone, and of instances that it starts, such as the expiry: they change while nodes stay."""
    now: datetime
    """When the program runs, with its zone: what is scheduled for later is declared, what is over is not."""
    prefix_delegation: bool = False
    """Whether vpc-cni gives nodes /28 prefixes: part of how many pods fit."""
    kubeconfig: pulumi.Input[str] | None = None
    """JSON of the cluster's kubeconfig, to ask for running jobs before nodes are replaced; None: that is not asked."""
    endpoint: pulumi.Input[str] | None = None
    """URL of the Kubernetes API; needed with an image of your own, as are the two below."""
    certificate_authority: pulumi.Input[str] | None = None
    """Base64 of its CA certificate."""
    service_cidr: pulumi.Input[str] | None = None
    """IPv4 range of the cluster's Services."""


class GpuNodeGroup(pulumi.ComponentResource):
    """GPU nodes of one kind in one zone, tainted so that only what asks for GPUs runs on them."""

    node_group_name: pulumi.Output[str]
    node_group_arn: pulumi.Output[str]

    def __init__(self, name: str, args: GpuNodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:gpu:GpuNodeGroup", name, None, opts)
        self._child = pulumi.ResourceOptions(parent=self)
        group = args.group
        tags = {**group.tags, **args.tags, "Name": name}
        guard = pulumi.ResourceOptions()
        if args.kubeconfig is not None and not group.allow_disruption:
            watch = DisruptionGuard(name=name, group=group.name, kubeconfig=pulumi.Output.from_input(args.kubeconfig))
            guard = pulumi.ResourceOptions(hooks=watch.hooks())
        template = aws.ec2.LaunchTemplate(
            f"{name}-template",
            launch_template(
                group,
                args.security_group_ids,
                tags,
                description=pulumi.Output.all(args.subnet_id, args.node_role_arn).apply(
                    lambda ids: describe(group, [str(part) for part in ids])
                ),
                data=self._user_data(args),
                placement_group=self._placement_group(name, group, tags),
            ),
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(
                    parent=self,
                    # A new owner or expiry would be a new version of the template, and EKS would replace every node for
                    # it. New nodes get those tags from the Auto Scaling group, whose tags win over the template's.
                    ignore_changes=["tagSpecifications"],
                ),
                guard,
            ),
        )
        own_image = group.ami.image_id is not None
        nodes = aws.eks.NodeGroup(
            f"{name}-nodes",
            cluster_name=args.cluster_name,
            version=None if own_image else args.kubernetes_version,
            release_version=None if own_image else group.ami.release or AMI_RELEASES[args.kubernetes_version],
            ami_type=None if own_image else group.ami.type,
            node_role_arn=args.node_role_arn,
            subnet_ids=[args.subnet_id],
            instance_types=group.instance_types if group.alternatives else None,
            capacity_type=CAPACITY_TYPES[group.capacity.kind],
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config={"min_size": group.min, "desired_size": group.desired, "max_size": group.max},
            labels=node_labels(group),
            taints=[
                {"key": key, "value": value, "effect": TAINT_EFFECTS[effect]}
                for key, value, effect in node_taints(group)
            ],
            update_config={
                # A reservation has no instance to spare: the old ones must go before new ones can come.
                "update_strategy": "MINIMAL" if group.capacity.reserved else "DEFAULT",
                "max_unavailable_percentage": group.max_unavailable_percentage,
            },
            node_repair_config={"enabled": group.node_repair},
            tags={**tags, **args.changing_tags, TAG_GPU_GROUP: group.name},
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(
                    parent=self,
                    # Both at once would need twice the reservation.
                    delete_before_replace=group.capacity.reserved,
                    # While a block's schedule sets the size, no update takes it back.
                    ignore_changes=["scalingConfig.desiredSize"] if self._scheduled(group) else None,
                ),
                guard,
            ),
        )
        scaling_group = nodes.resources[0].autoscaling_groups[0].name
        # The Auto Scaling group ends with the node group, whoever deletes that: its parts are then no longer there to delete.
        part = pulumi.ResourceOptions(parent=self, deleted_with=nodes)
        for key, value in {**tags, **args.changing_tags}.items():
            if key not in FIXED_TAGS:
                aws.autoscaling.Tag(
                    f"{name}-tag-{re.sub('[^A-Za-z0-9]+', '-', key)}",
                    autoscaling_group_name=scaling_group,
                    tag={"key": key, "value": value, "propagate_at_launch": True},
                    opts=part,
                )
        self._schedule(name, args, scaling_group, part)
        self.node_group_name = nodes.node_group_name
        self.node_group_arn = nodes.arn
        self.register_outputs({"node_group_name": self.node_group_name})

    @staticmethod
    def _scheduled(group: GpuNodeGroupSettings) -> bool:
        return group.capacity.scheduled_nodes > 0 and group.desired == 0

    def _placement_group(
        self, name: str, group: GpuNodeGroupSettings, tags: Mapping[str, str]
    ) -> pulumi.Input[str] | None:
        if group.placement_group.mode == "existing":
            return group.placement_group.name
        if not places_automatically(group):
            return None
        made = aws.ec2.PlacementGroup(f"{name}-placement", strategy="cluster", tags=tags, opts=self._child)
        return made.name

    @staticmethod
    def _user_data(args: GpuNodeGroupArgs) -> pulumi.Input[str | None]:
        group = args.group
        limit = pod_limit(group, args.prefix_delegation)

        def document(cluster: ClusterAddress | None) -> str | None:
            config = node_config(
                group,
                max_pods=limit,
                cluster=cluster,
                labels=node_labels(group),
                taints=[f"{key}={value}:{effect}" for key, value, effect in node_taints(group)],
            )
            data = user_data(config, group.hugepages)
            return base64.b64encode(data.encode()).decode() if data else None

        if group.ami.image_id is None:
            return document(None)
        if args.endpoint is None or args.certificate_authority is None or args.service_cidr is None:
            raise ValueError(
                f"group {group.name!r} has an image of its own: endpoint, certificate_authority and service_cidr are needed"
            )
        return pulumi.Output.all(args.cluster_name, args.endpoint, args.certificate_authority, args.service_cidr).apply(
            lambda all_: document(
                ClusterAddress(name=all_[0], endpoint=all_[1], certificate_authority=all_[2], service_cidr=all_[3])
            )
        )

    @staticmethod
    def _schedule(
        name: str, args: GpuNodeGroupArgs, scaling_group: pulumi.Output[str], opts: pulumi.ResourceOptions
    ) -> None:
        for size in schedule(args.group, args.now):
            aws.autoscaling.Schedule(
                f"{name}-{size.action}",
                autoscaling_group_name=scaling_group,
                scheduled_action_name=f"{name}-{size.action}",
                start_time=size.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                min_size=0,
                max_size=args.group.max,
                desired_capacity=size.nodes,
                opts=opts,
            )
