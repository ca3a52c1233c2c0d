"""The idle guard's pod on the system nodes, with the rights to read pods and to change the GPU node groups' size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

from eks_fsdp.spec.names import SYSTEM_NAMESPACE
from eks_fsdp.spec.settings import GpuNodeGroupSettings
from eks_fsdp.spec.versions import GUARD_IMAGE

from .objects import LOCKED_DOWN, Manifest, config_map, declare, digest, metadata, resources, workload
from .pod_identity import PodIdentity, PodIdentityArgs

NAME = "idle-guard"
STATE = "idle-guard-state"
"""ConfigMap in which the program keeps since when each group is idle."""
PERIOD_SECONDS = 60
SOURCE = Path(__file__).parent / "guards" / "idle.py"
_FOLDER = "/etc/idle-guard"
_RBAC = "rbac.authorization.k8s.io"


def configuration(
    cluster: str, region: str, groups: Sequence[tuple[str, str, int]], idle_minutes: int
) -> dict[str, Any]:
    """What the program reads. ``groups``: name in the settings, name of the node group, idle count."""
    return {
        "cluster": cluster,
        "region": region,
        "namespace": SYSTEM_NAMESPACE,
        "state": STATE,
        "idle_seconds": idle_minutes * 60,
        "period_seconds": PERIOD_SECONDS,
        "groups": [{"name": name, "node_group": made, "idle": idle} for name, made, idle in groups],
    }


def rights(node_group_arns: Sequence[str]) -> str:
    """JSON of the pod's rights in AWS: to read and change these node groups."""
    statement = {
        "Effect": "Allow",
        "Action": ["eks:DescribeNodegroup", "eks:UpdateNodegroupConfig"],
        "Resource": list(node_group_arns),
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def access() -> list[Manifest]:
    """Service account and rights in the cluster: to list what uses GPUs, and to keep its own ConfigMap."""
    everywhere = metadata(f"eks-fsdp-{NAME}", NAME, namespaced=False)
    subject = [{"kind": "ServiceAccount", "name": NAME, "namespace": SYSTEM_NAMESPACE}]
    rules = [
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list"]},
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list"]},
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["list"]},
    ]
    own = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [STATE], "verbs": ["get", "patch"]}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME)},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": everywhere, "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": everywhere,
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": everywhere["name"]},
            "subjects": subject,
        },
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata(NAME), "rules": own},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(NAME),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": NAME},
            "subjects": subject,
        },
        # Empty: what is in it is the program's.
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(STATE, NAME)},
    ]


def deployment(node_selector: Mapping[str, str], source: str) -> Manifest:
    """One pod that runs ``source``. A new configuration reaches it in its volume; new source makes a new pod."""
    container = {
        "name": NAME,
        "image": GUARD_IMAGE,
        "command": ["python3", f"{_FOLDER}/{SOURCE.name}", f"{_FOLDER}/config.json"],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "securityContext": {**LOCKED_DOWN, "runAsNonRoot": True, "runAsUser": 65532, "readOnlyRootFilesystem": True},
        "resources": resources("20m", "256Mi"),
        "volumeMounts": [{"name": "program", "mountPath": _FOLDER, "readOnly": True}],
    }
    pod: Manifest = {
        "serviceAccountName": NAME,
        "containers": [container],
        "volumes": [{"name": "program", "configMap": {"name": NAME}}],
    }
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    made = workload("Deployment", NAME, pod, annotations={"eksfsdp/config": digest(source)})
    # Two at a time would write over each other's notes.
    made["spec"]["strategy"] = {"type": "Recreate"}
    return made


def idle_nodes(group: GpuNodeGroupSettings) -> int:
    """Nodes that the guard leaves to ``group``. A Capacity Block is paid for whole: it keeps all of its nodes until its own
    schedule ends them."""
    least = max(group.idle, group.min)
    if group.capacity.kind == "capacity-block":
        return max(least, group.desired, group.capacity.scheduled_nodes)
    return least


@dataclass(frozen=True, kw_only=True)
class GuardedGroup:
    """A GPU node group that is brought back to its idle count."""

    group: str
    """Value of the node label ``eksfsdp/gpu-group``."""
    node_group: pulumi.Input[str]
    """Name of the node group in EKS."""
    node_group_arn: pulumi.Input[str]
    """Its ARN."""
    idle: int
    """Nodes without a job."""


@dataclass(frozen=True, kw_only=True)
class IdleGuardArgs:
    """Inputs of `IdleGuard`."""

    cluster_name: pulumi.Input[str]
    """The EKS cluster. It needs the add-on ``eks-pod-identity-agent``."""
    region: str
    """AWS region of the cluster."""
    groups: Sequence[GuardedGroup]
    """What is guarded."""
    idle_minutes: int
    """Minutes without a job after which a group goes to its idle count."""
    node_selector: Mapping[str, str]
    """Labels of the nodes that it may run on; empty: any without a taint. Never on nodes that it takes away."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    deleted_with: pulumi.Resource | None = None
    """The cluster: what is in it ends with it."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the system namespace, nodes to run on, the pod identity agent."""


class IdleGuard(pulumi.ComponentResource):
    """A pod that scales GPU node groups down once no job has used them for a while."""

    role_arn: pulumi.Output[str]

    def __init__(self, name: str, args: IdleGuardArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:guard:IdleGuard", name, None, opts)
        arns = pulumi.Output.all(*(group.node_group_arn for group in args.groups))
        identity = PodIdentity(
            f"{name}-identity",
            PodIdentityArgs(
                cluster_name=args.cluster_name,
                namespace=SYSTEM_NAMESPACE,
                service_account=NAME,
                policies=[arns.apply(rights)],
                tags=args.tags,
                description="Changes the size of GPU node groups",
            ),
            pulumi.ResourceOptions(parent=self),
        )
        source = SOURCE.read_text()
        known = [(group.group, group.idle) for group in args.groups]
        config = pulumi.Output.all(args.cluster_name, *(group.node_group for group in args.groups)).apply(
            lambda all_: json.dumps(
                configuration(
                    all_[0],
                    args.region,
                    [(group, made, idle) for (group, idle), made in zip(known, all_[1:], strict=True)],
                    args.idle_minutes,
                )
            )
        )
        inside = pulumi.ResourceOptions(
            parent=self, depends_on=[*args.depends_on, identity.association], deleted_with=args.deleted_with
        )
        before: list[pulumi.Resource] = [
            declare(f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}", manifest, inside)
            for manifest in access()
        ]
        files = config_map(NAME, NAME, {SOURCE.name: source})
        files["data"]["config.json"] = config
        before.append(declare(f"{name}-program", files, inside))
        declare(
            f"{name}-deployment",
            deployment(args.node_selector, source),
            pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=before)),
        )
        self.role_arn = identity.role_arn
        self.register_outputs({"role_arn": self.role_arn})
