"""The EKS control plane, the system nodes, and the provider through which everything in the cluster is declared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks
import pulumi_kubernetes as k8s

from eks_fsdp.spec.names import ROLE_LABEL
from eks_fsdp.spec.settings import SystemNodeSettings

NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly")
"""AWS' managed policies of every node: join the cluster, give addresses to pods, pull images."""
SYSTEM_NODES: dict[str, str] = {ROLE_LABEL: "system"}
"""Labels of the system nodes, which select them."""


def node_trust_policy() -> str:
    """JSON of the policy that lets EC2 instances take on the nodes' role."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """Inputs of `Cluster`."""

    kubernetes_version: str
    """Minor version, such as ``1.34``."""
    vpc_id: pulumi.Input[str]
    """The VPC of the subnets."""
    public_subnet_ids: Sequence[pulumi.Input[str]]
    """For load balancers that face the internet."""
    private_subnet_ids: Sequence[pulumi.Input[str]]
    """For the control plane's interfaces and the system nodes, in two zones at least."""
    system_nodes: SystemNodeSettings
    """The nodes for all that is not training."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    changing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the cluster and of its node group alone, such as the expiry."""


class Cluster(pulumi.ComponentResource):
    """A control plane in API authentication mode, private nodes, and a Kubernetes provider."""

    cluster_name: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    """JSON; a secret."""
    security_group_id: pulumi.Output[str]
    """The group that EKS makes: control plane and nodes reach each other through it."""
    node_role_arn: pulumi.Output[str]
    """Role of the system nodes, good for GPU nodes too."""
    control_plane: eks.Cluster
    """What everything in the cluster ends with."""
    system_nodes: eks.ManagedNodeGroup
    """What everything in the cluster but daemons needs first."""
    provider: k8s.Provider

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:cluster:Cluster", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-node",
            assume_role_policy=node_trust_policy(),
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
        self.control_plane = eks.Cluster(
            f"{name}-eks",
            version=args.kubernetes_version,
            vpc_id=args.vpc_id,
            public_subnet_ids=args.public_subnet_ids,
            private_subnet_ids=args.private_subnet_ids,
            node_associate_public_ip_address=False,
            authentication_mode=eks.AuthenticationMode.API,
            endpoint_private_access=True,
            endpoint_public_access=True,
            skip_default_node_group=True,
            # EKS makes a group of its own for control plane and nodes; a second one would have to be kept in step.
            skip_default_security_groups=True,
            tags={**args.tags, **args.changing_tags},
            opts=child,
        )
        self.system_nodes = eks.ManagedNodeGroup(
            f"{name}-system",
            cluster=self.control_plane,
            node_role_arn=role.arn,
            subnet_ids=args.private_subnet_ids,
            instance_types=[args.system_nodes.instance_type],
            ami_type="AL2023_x86_64_STANDARD",
            scaling_config={
                "min_size": args.system_nodes.desired,
                "desired_size": args.system_nodes.desired,
                "max_size": args.system_nodes.desired + 1,
            },
            labels={**args.system_nodes.labels, **SYSTEM_NODES},
            tags={**args.tags, **args.changing_tags},
            # A node without these rights never joins; taken from under a live one, its pods lose their addresses.
            opts=pulumi.ResourceOptions(parent=self, depends_on=attachments),
        )
        control_plane = self.control_plane.eks_cluster
        self.cluster_name = control_plane.name
        self.security_group_id = control_plane.vpc_config.cluster_security_group_id
        self.node_role_arn = pulumi.Output.all(role.arn, *(a.id for a in attachments)).apply(lambda all_: str(all_[0]))
        self.kubeconfig = pulumi.Output.secret(self.control_plane.kubeconfig_json)
        self.provider = k8s.Provider(
            f"{name}-kubernetes",
            kubeconfig=self.kubeconfig,
            # With an identifier, a new endpoint or token is an update; without one it would replace all in the cluster.
            cluster_identifier=control_plane.arn,
            enable_server_side_apply=True,
            enable_config_map_mutable=True,
            enable_secret_mutable=True,
            opts=child,
        )
        self.register_outputs({"cluster_name": self.cluster_name, "kubeconfig": self.kubeconfig})
