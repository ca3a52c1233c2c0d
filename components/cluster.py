"""The EKS control plane with its add-ons, the system nodes, and the provider through which all in the cluster is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks
import pulumi_kubernetes as k8s

from eks_fsdp.spec.names import ROLE_LABEL, TAG_EXPIRY
from eks_fsdp.spec.settings import AddonSettings, SystemNodeSettings
from eks_fsdp.spec.versions import COREDNS, EBS_CSI, FSX_CSI, KUBE_PROXY, POD_IDENTITY, VPC_CNI

from .access import AccessEntry
from .addons import Addon, EksAddons, EksAddonsArgs, PodNetwork, addons_after_nodes, addons_before_nodes
from .kubeconfig import cluster_provider, exec_kubeconfig
from .network import service_trust_policy

NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly")
"""AWS' managed policies of every node: join the cluster, give addresses to pods, pull images."""
SYSTEM_NODES: dict[str, str] = {ROLE_LABEL: "system"}
"""Labels of the system nodes, which select them."""
SYSTEM_VOLUME_GIB = 80
"""Root volume of a system node: images of the whole platform, and Prometheus' data."""


def eks_name(text: str) -> str:
    """``text`` as the name of an EKS cluster: at most 100 letters, digits, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).lstrip("-_")[:100]


def log_group_name(cluster_name: str) -> str:
    """The log group that EKS writes the control plane's logs to, and makes where it is not there."""
    return f"/aws/eks/{cluster_name}/cluster"


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """Inputs of `Cluster`."""

    kubernetes_version: str
    """Minor version, such as ``1.34``."""
    region: str
    """AWS region, for the kubeconfig."""
    vpc_id: pulumi.Input[str]
    """The VPC of the subnets."""
    control_plane_subnet_ids: Sequence[pulumi.Input[str]]
    """For the control plane's interfaces, in two zones at least. They need no way out."""
    node_subnet_ids: Sequence[pulumi.Input[str]]
    """Private subnets of the system nodes, with a way to AWS' services."""
    system_nodes: SystemNodeSettings
    """The nodes for all that is not training."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    changing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the cluster and of its node group alone, such as the expiry."""
    cluster_name: str | None = None
    """Name of the cluster in EKS; None: one that Pulumi makes up, and its logs then stay in a log group of EKS' own."""
    public_endpoint: bool = True
    """Whether the API is reached from outside the VPC too."""
    allowed_cidrs: Sequence[str] = ()
    """Ranges that the public endpoint answers; one at least, as EKS takes none for the whole internet."""
    access: Mapping[str, AccessEntry] = field(default_factory=dict)
    """Who beside the creator may use the cluster, by a name of your own."""
    kms_key_arn: str | None = None
    """Key that encrypts Kubernetes' secrets; None: EKS' own."""
    logs: Sequence[str] = ()
    """Logs of the control plane that are kept."""
    log_retention_days: int = 30
    """Days for which they are kept."""
    addons: AddonSettings = field(default_factory=AddonSettings)
    """EKS add-ons."""
    fsx: bool = False
    """Whether file systems of FSx for Lustre are mounted."""
    pod_subnet_ids: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Subnets of their own for pods by zone; none: pods share the nodes' subnets."""
    addon_aliases: Mapping[str, Sequence[pulumi.Alias]] = field(default_factory=dict)
    """Where an add-on was declared before, by its name."""


class Cluster(pulumi.ComponentResource):
    """A control plane in API authentication mode, its add-ons, private nodes, and a Kubernetes provider."""

    cluster_name: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    """JSON, without a secret: the AWS CLI signs in."""
    security_group_id: pulumi.Output[str]
    """The group that EKS makes: control plane and nodes reach each other through it."""
    node_role_arn: pulumi.Output[str]
    """Role of the system nodes, good for GPU nodes too."""
    node_role_name: pulumi.Output[str]
    control_plane: eks.Cluster
    """What everything in the cluster ends with."""
    before_nodes: list[pulumi.Resource]
    """Add-ons without which a node never becomes ready: node groups depend on them."""
    pod_identity: pulumi.Resource
    """The agent that gives pods their rights in AWS: what needs such rights depends on it."""
    ebs_csi: pulumi.Resource
    """The driver of EBS volumes: what claims one depends on it, and goes before it."""
    fsx_csi: pulumi.Resource | None
    """The driver of FSx for Lustre, where asked for."""
    system_nodes: eks.ManagedNodeGroup
    """What everything in the cluster but daemons needs first."""
    provider: k8s.Provider

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:cluster:Cluster", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-node",
            assume_role_policy=service_trust_policy("ec2.amazonaws.com"),
            description="EC2 instances that are nodes of the cluster",
            tags=args.tags,
            opts=child,
        )
        attachments = [
            aws.iam.RolePolicyAttachment(
                f"{name}-node-{policy}", role=role.name, policy_arn=f"arn:aws:iam::aws:policy/{policy}", opts=child
            )
            for policy in NODE_POLICIES
        ]
        self._eks = f"{name}-eks"
        self.control_plane = self._control_plane(name, args)
        control_plane = self.control_plane.eks_cluster
        self.cluster_name = control_plane.name
        self.security_group_id = control_plane.vpc_config.cluster_security_group_id
        early = self._addons_before_nodes(name, args)
        self.before_nodes = list(early.resources.values())
        self.system_nodes = self._system_nodes(name, args, role, [*attachments, *self.before_nodes])
        late = self._addons_after_nodes(name, args)
        self.pod_identity = early.resources[POD_IDENTITY]
        self.ebs_csi = late.resources[EBS_CSI]
        self.fsx_csi = late.resources.get(FSX_CSI)
        self.node_role_arn = pulumi.Output.all(role.arn, *(a.id for a in attachments)).apply(lambda all_: str(all_[0]))
        self.node_role_name = role.name
        # The component's own kubeconfig comes once the API answers.
        parts = pulumi.Output.all(
            self.cluster_name,
            control_plane.endpoint,
            control_plane.certificate_authority.data,
            self.control_plane.kubeconfig_json,
        )
        self.kubeconfig = pulumi.Output.unsecret(
            parts.apply(lambda all_: exec_kubeconfig(all_[0], all_[1], all_[2], args.region))
        )
        self.provider = cluster_provider(f"{name}-kubernetes", self.kubeconfig, child, control_plane.arn)
        self.register_outputs({"cluster_name": self.cluster_name, "kubeconfig": self.kubeconfig})

    def _control_plane(self, name: str, args: ClusterArgs) -> eks.Cluster:
        if args.public_endpoint and not args.allowed_cidrs:
            raise ValueError("allowed_cidrs: empty with a public endpoint, which EKS takes for the whole internet")
        before: list[pulumi.Resource] = []
        if args.logs and args.cluster_name is not None:
            # Made before EKS would make it, as that one nobody would delete.
            before.append(
                aws.cloudwatch.LogGroup(
                    f"{name}-logs",
                    name=log_group_name(args.cluster_name),
                    retention_in_days=args.log_retention_days,
                    tags=args.tags,
                    opts=pulumi.ResourceOptions(parent=self),
                )
            )
        return eks.Cluster(
            self._eks,
            name=args.cluster_name,
            version=args.kubernetes_version,
            vpc_id=args.vpc_id,
            subnet_ids=args.control_plane_subnet_ids,
            node_associate_public_ip_address=False,
            authentication_mode=eks.AuthenticationMode.API,
            access_entries={key: _access_entry(entry, args.tags) for key, entry in args.access.items()} or None,
            endpoint_private_access=True,
            endpoint_public_access=args.public_endpoint,
            public_access_cidrs=list(args.allowed_cidrs) if args.public_endpoint else None,
            encryption_config_key_arn=args.kms_key_arn,
            enabled_cluster_log_types=list(args.logs) or None,
            skip_default_node_group=True,
            # EKS makes a group of its own for control plane and nodes; a second one would have to be kept in step.
            skip_default_security_groups=True,
            # All add-ons are ours: pinned, and in the order that nodes need.
            bootstrap_self_managed_addons=False,
            use_default_vpc_cni=True,
            kube_proxy_addon_options={"enabled": False},
            coredns_addon_options={"enabled": False},
            tags={**args.tags, **args.changing_tags},
            opts=pulumi.ResourceOptions(parent=self, depends_on=before, transforms=[_keep_name]),
        )

    def _addons_before_nodes(self, name: str, args: ClusterArgs) -> EksAddons:
        pods = None
        if args.pod_subnet_ids:
            pods = PodNetwork(subnet_ids=args.pod_subnet_ids, security_group_ids=[self.security_group_id])
        chosen = addons_before_nodes(
            args.addons, args.kubernetes_version, tags=args.tags, region=args.region, pods=pods
        )
        return self._addons(f"{name}-node-addons", chosen, args, [])

    def _addons_after_nodes(self, name: str, args: ClusterArgs) -> EksAddons:
        chosen = addons_after_nodes(
            args.addons, args.kubernetes_version, tags=args.tags, node_selector=SYSTEM_NODES, fsx=args.fsx
        )
        return self._addons(f"{name}-addons", chosen, args, [self.system_nodes])

    def _addons(
        self, name: str, chosen: Sequence[Addon], args: ClusterArgs, depends_on: Sequence[pulumi.Resource]
    ) -> EksAddons:
        return EksAddons(
            name,
            EksAddonsArgs(
                cluster_name=self.cluster_name,
                addons=chosen,
                tags=args.tags,
                depends_on=depends_on,
                deleted_with=self.control_plane,
                aliases={**args.addon_aliases, **self._earlier_addons()},
            ),
            pulumi.ResourceOptions(parent=self),
        )

    def _earlier_addons(self) -> dict[str, list[pulumi.Alias]]:
        """Where pulumi-eks declares the add-ons that release 0.1 left to it: a second one of a name EKS would refuse."""
        plane, prefix = self.control_plane, self._eks
        inside = pulumi.create_urn(f"{prefix}-{VPC_CNI}", "eks:index:VpcCniAddon", parent=plane)
        return {
            VPC_CNI: [pulumi.Alias(name=f"{prefix}-{VPC_CNI}", parent=parent) for parent in (plane, inside)],
            **{addon: [pulumi.Alias(name=f"{prefix}-{addon}", parent=plane)] for addon in (KUBE_PROXY, COREDNS)},
        }

    def _system_nodes(
        self, name: str, args: ClusterArgs, role: aws.iam.Role, depends_on: Sequence[pulumi.Resource]
    ) -> eks.ManagedNodeGroup:
        # Without the expiry: renewing it would be a new version of the template, and new nodes.
        tags = {key: value for key, value in args.tags.items() if key != TAG_EXPIRY} | {"Name": f"{name}-system"}
        template = aws.ec2.LaunchTemplate(
            f"{name}-system",
            description="System nodes",
            # Two hops: from a pod's own network, through the node, to the metadata service.
            metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 2},
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_size": SYSTEM_VOLUME_GIB,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "delete_on_termination": "true",
                    },
                }
            ],
            # A node group's tags end at the Auto Scaling group: without these, instances and volumes have no owner.
            tag_specifications=[
                {"resource_type": kind, "tags": tags} for kind in ("instance", "volume", "network-interface")
            ],
            update_default_version=True,
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        return eks.ManagedNodeGroup(
            f"{name}-system",
            cluster=self.control_plane,
            node_role_arn=role.arn,
            subnet_ids=args.node_subnet_ids,
            instance_types=[args.system_nodes.instance_type],
            ami_type="AL2023_x86_64_STANDARD",
            # With a template of our own the version does not follow the control plane by itself.
            version=args.kubernetes_version,
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config={
                "min_size": args.system_nodes.desired,
                "desired_size": args.system_nodes.desired,
                "max_size": args.system_nodes.desired + 1,
            },
            labels={**args.system_nodes.labels, **SYSTEM_NODES},
            tags={**args.tags, **args.changing_tags},
            # A node without its role's rights never joins; taken from under a live one, its pods lose their addresses.
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(depends_on)),
        )


def _keep_name(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
    """Leave a live cluster its name: another one would be another cluster, and all in it would be gone."""
    if args.type_ != "aws:eks/cluster:Cluster":
        return None
    kept = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(ignore_changes=["name"]))
    return pulumi.ResourceTransformResult(props=args.props, opts=kept)


def _access_entry(entry: AccessEntry, tags: Mapping[str, str]) -> eks.AccessEntryArgs:
    return eks.AccessEntryArgs(
        principal_arn=entry.principal_arn,
        kubernetes_groups=list(entry.groups) or None,
        access_policies={
            name: eks.AccessPolicyAssociationArgs(
                policy_arn=grant.policy_arn,
                access_scope=aws.eks.AccessPolicyAssociationAccessScopeArgs(
                    type="namespace" if grant.namespaces else "cluster", namespaces=list(grant.namespaces) or None
                ),
            )
            for name, grant in entry.grants.items()
        }
        or None,
        tags=dict(tags),
    )
