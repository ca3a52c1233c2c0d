"""Kubernetes objects as plain manifests, and the typed resource that declares each.

A manifest is what ``kubectl`` would take: tests compare it with golden files and dry-run it on a real API server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.names import EFA_PRESENT_LABEL, GPU_PRESENT_LABEL, GPU_TAINT_KEY, PROGRAM_NAME, SYSTEM_NAMESPACE

Manifest = dict[str, Any]
"""One Kubernetes object in the API's spelling. Values may be outputs where AWS alone knows them."""

# Looked up on use: pulumi_kubernetes loads its groups lazily, and all of them take seconds.
_RESOURCES: dict[tuple[str, str], Callable[[], Callable[..., pulumi.CustomResource]]] = {
    ("v1", "ConfigMap"): lambda: k8s.core.v1.ConfigMap,
    ("v1", "Namespace"): lambda: k8s.core.v1.Namespace,
    ("v1", "PersistentVolume"): lambda: k8s.core.v1.PersistentVolume,
    ("v1", "PersistentVolumeClaim"): lambda: k8s.core.v1.PersistentVolumeClaim,
    ("v1", "ResourceQuota"): lambda: k8s.core.v1.ResourceQuota,
    ("v1", "Secret"): lambda: k8s.core.v1.Secret,
    ("v1", "Service"): lambda: k8s.core.v1.Service,
    ("v1", "ServiceAccount"): lambda: k8s.core.v1.ServiceAccount,
    ("apps/v1", "DaemonSet"): lambda: k8s.apps.v1.DaemonSet,
    ("apps/v1", "Deployment"): lambda: k8s.apps.v1.Deployment,
    ("apps/v1", "StatefulSet"): lambda: k8s.apps.v1.StatefulSet,
    ("batch/v1", "Job"): lambda: k8s.batch.v1.Job,
    ("policy/v1", "PodDisruptionBudget"): lambda: k8s.policy.v1.PodDisruptionBudget,
    ("storage.k8s.io/v1", "StorageClass"): lambda: k8s.storage.v1.StorageClass,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): lambda: k8s.rbac.v1.ClusterRole,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): lambda: k8s.rbac.v1.ClusterRoleBinding,
    ("rbac.authorization.k8s.io/v1", "Role"): lambda: k8s.rbac.v1.Role,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): lambda: k8s.rbac.v1.RoleBinding,
}


def declare(name: str, manifest: Manifest, opts: pulumi.ResourceOptions) -> pulumi.CustomResource:
    """The typed resource of ``manifest``. Raises `KeyError` for a kind that the platform does not use."""
    resource = _RESOURCES[manifest["apiVersion"], manifest["kind"]]()
    fields = {_snake_case(key): value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    return resource(name, opts=opts, **fields)


def _snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), key)


def digest(*texts: str) -> str:
    """Eight hexadecimal digits that change with ``texts``."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def labels(app: str) -> dict[str, str]:
    """The labels of everything that belongs to ``app``; they select its pods."""
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": PROGRAM_NAME}


def metadata(name: str, app: str | None = None, *, namespaced: bool = True, **more: Any) -> Manifest:
    """Metadata of an object of ``app`` (default: ``name``) in the system namespace."""
    place = {"namespace": SYSTEM_NAMESPACE} if namespaced else {}
    return {"name": name, **place, "labels": labels(app or name), **more}


def config_map(name: str, app: str, data: Mapping[str, str]) -> Manifest:
    """A ConfigMap of text files."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(name, app), "data": dict(data)}


def service(name: str, ports: Mapping[str, int]) -> Manifest:
    """A Service inside the cluster, with the same ports as the pods.

    Nobody waits for it: the workload behind it is waited for, and the provider would add ten seconds to be sure.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, annotations={"pulumi.com/skipAwait": "true"}),
        "spec": {
            "type": "ClusterIP",
            "selector": labels(name),
            "ports": [{"name": port, "port": number, "targetPort": number} for port, number in ports.items()],
        },
    }


def workload(kind: str, name: str, pod: Manifest, *, annotations: Mapping[str, str] | None = None) -> Manifest:
    """A Deployment, StatefulSet (both of one replica) or DaemonSet whose pods have the spec ``pod``."""
    spec: Manifest = {
        "selector": {"matchLabels": labels(name)},
        "template": {
            "metadata": {"labels": labels(name), **({"annotations": dict(annotations)} if annotations else {})},
            "spec": pod,
        },
    }
    if kind != "DaemonSet":
        spec["replicas"] = 1
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata(name), "spec": spec}


def resources(cpu: str, memory: str) -> Manifest:
    """Requests, and a limit on memory alone: a limit on CPU throttles also where the node is idle."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


def quantity(count: int, units: Sequence[str] = ("", "k", "M"), step: int = 1000) -> str:
    """``count`` of the first unit as Kubernetes itself writes it, 2000 as ``2k``.

    Whatever is read into typed objects and written back, as Kueue does with a job, comes back in this form: any other one
    would be a change to undo at the next update.
    """
    power = 0
    while count and count % step == 0 and power < len(units) - 1:
        count, power = count // step, power + 1
    return f"{count}{units[power]}" if count else "0"


def mebibytes(count: int) -> str:
    """``count`` MiB as Kubernetes itself writes it: 2048 as ``2Gi``."""
    return quantity(count, ("Mi", "Gi", "Ti", "Pi"), 1024)


def http_probe(path: str, port: int | str, *, period: int = 10) -> Manifest:
    """A probe by HTTP GET every ``period`` seconds."""
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period, "timeoutSeconds": 3}


def static_volume(
    name: str, capacity_gib: int, access_mode: str, mount_options: Sequence[str], csi: Mapping[str, Any]
) -> Manifest:
    """A PersistentVolume that stands for what is there already, and is kept when its claim goes."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": f"{capacity_gib}Gi"},
            "volumeMode": "Filesystem",
            "accessModes": [access_mode],
            "persistentVolumeReclaimPolicy": "Retain",
            # Empty, not absent: absent is the default class, which would make a disk of its own.
            "storageClassName": "",
            "mountOptions": list(mount_options),
            "csi": dict(csi),
        },
    }


def host_path(name: str, path: str) -> Manifest:
    """A volume that is a folder of the node."""
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


GPU_TOLERATION: Manifest = {"key": GPU_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}
GPU_NODES: dict[str, str] = {GPU_PRESENT_LABEL: "true"}
EFA_NODES: dict[str, str] = {EFA_PRESENT_LABEL: "true"}
LOCKED_DOWN: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of a container that needs no rights of the kernel."""
