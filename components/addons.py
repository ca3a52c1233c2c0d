"""EKS add-ons: which ones, in which version, with which configuration and rights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.addons import addon_version
from eks_fsdp.spec.names import TAG_OWNER, TAG_STACK, ZONE_ID_LABEL
from eks_fsdp.spec.rules.addresses import MINIMUM_ADDRESSES, WARM_ADDRESSES, WARM_PREFIXES
from eks_fsdp.spec.settings import AddonSettings
from eks_fsdp.spec.subnets import is_zone_id
from eks_fsdp.spec.versions import (
    CLOUDWATCH,
    COREDNS,
    EBS_CSI,
    FSX_CSI,
    KUBE_PROXY,
    NODE_MONITORING,
    POD_IDENTITY,
    VPC_CNI,
)

from .objects import GPU_TOLERATION
from .pod_identity import PodIdentity, PodIdentityArgs

ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True, kw_only=True)
class ServiceAccountRights:
    """AWS' managed policies for one service account of an add-on."""

    namespace: str
    service_account: str
    policy_arn: str


@dataclass(frozen=True, kw_only=True)
class Addon:
    """One add-on."""

    name: str
    """EKS' name of it."""
    version: str | None
    """Such as ``v1.22.4-eksbuild.3``; None: EKS' default for the cluster."""
    configuration: Mapping[str, Any] | None = None
    """Values of its own schema; they may hold outputs."""
    rights: ServiceAccountRights | None = None
    """What its pods may do in AWS."""


@dataclass(frozen=True, kw_only=True)
class PodNetwork:
    """Subnets of their own for pods."""

    subnet_ids: Mapping[str, pulumi.Input[str]]
    """By zone, all by name or all by id."""
    security_group_ids: Sequence[pulumi.Input[str]]
    """Groups of the pods' interfaces."""


def cni_configuration(
    settings: AddonSettings, tags: Mapping[str, str], region: str, pods: PodNetwork | None
) -> dict[str, Any]:
    """Configuration of vpc-cni: how many addresses a node holds for pods, and in which subnets.

    What it holds is what `spec.rules.addresses` counts. Its interfaces carry the stack's tags: one that outlives its node
    holds subnet and security group, and is then found.
    """
    owners = {key: tags[key] for key in (TAG_OWNER, TAG_STACK) if key in tags}
    env = {"ADDITIONAL_ENI_TAGS": json.dumps(owners, sort_keys=True)}
    if settings.prefix_delegation:
        env |= {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": str(WARM_PREFIXES)}
    else:
        env |= {
            "ENABLE_PREFIX_DELEGATION": "false",
            "MINIMUM_IP_TARGET": str(MINIMUM_ADDRESSES),
            "WARM_IP_TARGET": str(WARM_ADDRESSES),
        }
    if pods is None:
        return {"env": env}
    by_id = any(is_zone_id(zone) for zone in pods.subnet_ids)
    env |= {
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true",
        "ENI_CONFIG_LABEL_DEF": ZONE_ID_LABEL if by_id else ZONE_LABEL,
    }
    subnets = {
        zone: {"id": subnet, "securityGroups": list(pods.security_group_ids)}
        for zone, subnet in pods.subnet_ids.items()
    }
    # The add-on's own ENIConfigs, named after the zones: they are there before the first node.
    return {"env": env, "eniConfig": {"create": True, "region": region, "subnets": subnets}}


def addons_before_nodes(
    settings: AddonSettings,
    kubernetes_version: str,
    *,
    tags: Mapping[str, str],
    region: str,
    pods: PodNetwork | None = None,
) -> list[Addon]:
    """What nodes need to become ready: network, Services, and rights of pods. All of them tolerate every taint."""
    network = cni_configuration(settings, tags, region, pods)
    return [
        Addon(name=name, version=addon_version(name, kubernetes_version, settings.versions), configuration=values)
        for name, values in ((VPC_CNI, network), (KUBE_PROXY, None), (POD_IDENTITY, None))
    ]


def addons_after_nodes(
    settings: AddonSettings,
    kubernetes_version: str,
    *,
    tags: Mapping[str, str],
    node_selector: Mapping[str, str],
    fsx: bool = False,
) -> list[Addon]:
    """What needs nodes to become active. ``node_selector``: labels of the nodes for all that is not training."""
    owners = {key: tags[key] for key in (TAG_OWNER, TAG_STACK) if key in tags}
    chosen: list[tuple[str, Mapping[str, Any] | None, ServiceAccountRights | None]] = [
        (COREDNS, {"nodeSelector": dict(node_selector)}, None),
        (
            EBS_CSI,
            {"controller": {"extraVolumeTags": owners}},
            ServiceAccountRights(
                namespace="kube-system",
                service_account="ebs-csi-controller-sa",
                policy_arn="arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy",
            ),
        ),
    ]
    if fsx:
        # It mounts what is there and makes nothing: no rights.
        chosen.append((FSX_CSI, None, None))
    if settings.node_monitoring:
        # Its agent tolerates all, the DCGM server beside it nothing: GPUs' failures would not be seen.
        chosen.append((NODE_MONITORING, {"dcgmAgent": {"tolerations": [GPU_TOLERATION]}}, None))
    if settings.cloudwatch:
        # Its own DCGM exporter stays out: two of them disturb each other.
        seen = {"kubernetes": {"enhanced_container_insights": True, "accelerated_compute_metrics": False}}
        chosen.append(
            (
                CLOUDWATCH,
                {"agent": {"config": {"logs": {"metrics_collected": seen}}}},
                ServiceAccountRights(
                    namespace="amazon-cloudwatch",
                    service_account="cloudwatch-agent",
                    policy_arn="arn:aws:iam::aws:policy/CloudWatchAgentServerPolicy",
                ),
            )
        )
    return [
        Addon(
            name=name,
            version=addon_version(name, kubernetes_version, settings.versions),
            configuration=configuration,
            rights=rights,
        )
        for name, configuration, rights in chosen
    ]


@dataclass(frozen=True, kw_only=True)
class EksAddonsArgs:
    """Inputs of `EksAddons`."""

    cluster_name: pulumi.Input[str]
    """The EKS cluster."""
    addons: Sequence[Addon]
    """What it gets."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: nodes, for those that need them."""
    deleted_with: pulumi.Resource | None = None
    """The cluster: add-ons end with it, and so outlive all that needs them."""
    aliases: Mapping[str, Sequence[pulumi.Alias]] = field(default_factory=dict)
    """Where an add-on was declared before, by its name."""


class EksAddons(pulumi.ComponentResource):
    """Add-ons of a cluster, with the rights of their service accounts."""

    resources: dict[str, aws.eks.Addon]
    """By the add-on's name."""

    def __init__(self, name: str, args: EksAddonsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:addons:EksAddons", name, None, opts)
        self.resources = {addon.name: self._declare(f"{name}-{addon.name}", addon, args) for addon in args.addons}
        self.register_outputs({"versions": {key: addon.addon_version for key, addon in self.resources.items()}})

    def _declare(self, name: str, addon: Addon, args: EksAddonsArgs) -> aws.eks.Addon:
        before = list(args.depends_on)
        if addon.rights is not None:
            identity = PodIdentity(
                name,
                PodIdentityArgs(
                    cluster_name=args.cluster_name,
                    namespace=addon.rights.namespace,
                    service_account=addon.rights.service_account,
                    managed_policy_arns=[addon.rights.policy_arn],
                    description=f"EKS add-on {addon.name}",
                    tags=args.tags,
                ),
                pulumi.ResourceOptions(parent=self),
            )
            before.append(identity.association)
        configuration = None
        if addon.configuration is not None:
            configuration = pulumi.Output.json_dumps(addon.configuration, sort_keys=True)
        return aws.eks.Addon(
            name,
            cluster_name=args.cluster_name,
            addon_name=addon.name,
            addon_version=addon.version,
            configuration_values=configuration,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            tags=args.tags,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=before,
                deleted_with=args.deleted_with,
                aliases=list(args.aliases.get(addon.name, ())),
            ),
        )
