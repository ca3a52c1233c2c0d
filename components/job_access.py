"""What jobs of one namespace have beside their code: a service account, rights in AWS, the Hugging Face token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from eks_fsdp.spec.names import JOB_SERVICE_ACCOUNT

from .hugging_face import token_secret
from .objects import Manifest, declare
from .pod_identity import PodIdentity, PodIdentityArgs


def service_account(namespace: str) -> Manifest:
    """The jobs' service account. Its pods get no token for the Kubernetes API unless they ask for one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": JOB_SERVICE_ACCOUNT, "namespace": namespace},
        "automountServiceAccountToken": False,
    }


@dataclass(frozen=True, kw_only=True)
class JobAccessArgs:
    """Inputs of `JobAccess`."""

    namespace: str
    """The jobs' namespace, which is there already."""
    make_service_account: bool = True
    """Whether the service account is made; else it is there already."""
    token: pulumi.Input[str] | None = None
    """Hugging Face token, a secret; None: no Secret is made."""
    cluster_name: pulumi.Input[str] | None = None
    """The EKS cluster, with the Pod Identity agent; None: no rights in AWS are given."""
    policies: Sequence[str] = ()
    """Policies as JSON: what the pods may do in AWS."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    deleted_with: pulumi.Resource | None = None
    """The cluster, which what is in it ends with. The role in AWS does not."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the namespace."""


class JobAccess(pulumi.ComponentResource):
    """Service account, its role in AWS, and the Secret with the token, in one namespace of jobs.

    Jobs depend on it: pods get rights and variables when they start, and not later.
    """

    def __init__(self, name: str, args: JobAccessArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:access:JobAccess", name, None, opts)
        inside = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on), deleted_with=args.deleted_with)
        if args.make_service_account:
            declare(f"{name}-account", service_account(args.namespace), inside)
        if args.token is not None:
            declare(f"{name}-token", token_secret(args.namespace, args.token), inside)
        if args.policies and args.cluster_name is not None:
            PodIdentity(
                f"{name}-identity",
                PodIdentityArgs(
                    cluster_name=args.cluster_name,
                    namespace=args.namespace,
                    service_account=JOB_SERVICE_ACCOUNT,
                    policies=args.policies,
                    description="Pods of training jobs",
                    tags=args.tags,
                ),
                pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})
