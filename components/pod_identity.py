"""Rights in AWS for a service account of the cluster, by EKS Pod Identity: no key is stored anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws


def pod_trust_policy() -> str:
    """JSON of the policy that lets EKS' agent take on a role for pods.

    Without ``sts:TagSession`` EKS refuses the role: it marks each session with cluster, namespace and pod.
    """
    statement = {
        "Effect": "Allow",
        "Action": ["sts:AssumeRole", "sts:TagSession"],
        "Principal": {"Service": "pods.eks.amazonaws.com"},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass(frozen=True, kw_only=True)
class PodIdentityArgs:
    """Inputs of `PodIdentity`."""

    cluster_name: pulumi.Input[str]
    """The EKS cluster. It needs the add-on ``eks-pod-identity-agent`` on the pods' nodes."""
    namespace: pulumi.Input[str]
    """Namespace of the service account. Neither needs to exist yet."""
    service_account: pulumi.Input[str]
    """Name of the service account. Its pods get the rights when they start, so this must be there before them."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    policies: Sequence[pulumi.Input[str]] = ()
    """Policies of the role as JSON, in an order that stays."""
    managed_policy_arns: Sequence[str] = ()
    """Policies of AWS or of the account that the role has too."""
    permissions_boundary: pulumi.Input[str] | None = None
    """ARN of the policy that limits what the role may ever do; None: no limit beside its policies."""
    description: str = "Pods of an EKS cluster"
    """Of the role."""


class PodIdentity(pulumi.ComponentResource):
    """A role with its policies, and the association that gives it to the pods of one service account."""

    role_arn: pulumi.Output[str]
    role_name: pulumi.Output[str]
    association: aws.eks.PodIdentityAssociation
    """What pods with these rights depend on: the role's policies are there before it."""

    def __init__(self, name: str, args: PodIdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:identity:PodIdentity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-role",
            assume_role_policy=pod_trust_policy(),
            permissions_boundary=args.permissions_boundary,
            description=args.description,
            tags=args.tags,
            opts=child,
        )
        rights: list[pulumi.Resource] = [
            aws.iam.RolePolicy(f"{name}-policy-{index}", role=role.name, policy=policy, opts=child)
            for index, policy in enumerate(args.policies)
        ]
        rights += [
            aws.iam.RolePolicyAttachment(f"{name}-{arn.rpartition('/')[2]}", role=role.name, policy_arn=arn, opts=child)
            for arn in args.managed_policy_arns
        ]
        self.association = aws.eks.PodIdentityAssociation(
            f"{name}-association",
            cluster_name=args.cluster_name,
            namespace=args.namespace,
            service_account=args.service_account,
            role_arn=role.arn,
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=rights),
        )
        self.role_arn = role.arn
        self.role_name = role.name
        self.register_outputs({"role_arn": self.role_arn, "role_name": self.role_name})
