"""The jobs' namespaces, and what a team may do in its own: run, read and stop jobs, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from eks_fsdp.spec.names import QUEUED_LABEL, TEAM_LABEL

from .access import team_group
from .objects import Manifest, declare

_RBAC = "rbac.authorization.k8s.io"
READ = ["get", "list", "watch"]


def job_namespace(name: str, *, queued: bool, level: str = "baseline", team: str | None = None) -> Manifest:
    """A namespace for jobs.

    Its pods get no rights on their nodes (Pod Security Standard ``baseline``): no host namespaces, folders or ports.
    Another ``level`` is for pods that need a folder of their node (`job_security.pod_security_level`).
    """
    labels = {"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/audit": "restricted"}
    if queued:
        labels[QUEUED_LABEL] = "true"
    if team:
        labels[TEAM_LABEL] = team
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def quota(namespace: str) -> Manifest:
    """Nothing in a namespace opens a port to the outside."""
    return _quota(namespace, "services", {"services.loadbalancers": "0", "services.nodeports": "0"})


def job_quota(team: str, max_jobs: int) -> Manifest:
    """PyTorchJobs of a team.

    It refuses every job until Kubernetes counts them, which on a new cluster takes it up to five minutes: declare it
    after the jobs.
    """
    return _quota(team, "jobs", {"count/pytorchjobs.kubeflow.org": str(max_jobs)})


def _quota(namespace: str, name: str, hard: dict[str, str]) -> Manifest:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def role(team: str) -> Manifest:
    """Rights of a team's people. They make no pods of their own: these would get past the queue."""
    rules = [
        (["kubeflow.org"], ["pytorchjobs"], [*READ, "create", "update", "patch", "delete"]),
        (["kubeflow.org"], ["pytorchjobs/status"], ["get"]),
        # A job's configuration, which goes with it.
        ([""], ["configmaps"], [*READ, "create", "update", "patch", "delete"]),
        ([""], ["pods", "events", "persistentvolumeclaims", "resourcequotas"], READ),
        ([""], ["pods/log"], ["get"]),
        # get: exec over WebSocket is one.
        ([""], ["pods/exec"], ["create", "get"]),
        (["kueue.x-k8s.io"], ["workloads", "localqueues"], READ),
    ]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "team", "namespace": team},
        "rules": [{"apiGroups": groups, "resources": kinds, "verbs": verbs} for groups, kinds, verbs in rules],
    }


def role_binding(team: str) -> Manifest:
    """Who has these rights: the Kubernetes group that the team's access entries name."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "team", "namespace": team},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "team"},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": team_group(team)}],
    }


@dataclass(frozen=True, kw_only=True)
class TeamArgs:
    """Inputs of `Team`."""

    team: str
    """Name of the team and of its namespace."""
    queued: bool = True
    """Whether its jobs start through a queue only."""
    level: str = "baseline"
    """Pod Security Standard that its pods are held to."""


class Team(pulumi.ComponentResource):
    """A team's namespace with its limits, and the rights of the team's people in it."""

    def __init__(self, name: str, args: TeamArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:teams:Team", name, None, opts)
        place = job_namespace(args.team, queued=args.queued, level=args.level, team=args.team)
        namespace = declare(f"{name}-namespace", place, pulumi.ResourceOptions(parent=self))
        inside = pulumi.ResourceOptions(parent=self, depends_on=[namespace])
        declare(f"{name}-quota", quota(args.team), inside)
        rights = declare(f"{name}-role", role(args.team), inside)
        after = pulumi.ResourceOptions(parent=self, depends_on=[rights])
        declare(f"{name}-binding", role_binding(args.team), after)
        self.register_outputs({})
