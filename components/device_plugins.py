"""The daemons that make GPUs and EFA interfaces schedulable resources. The NVIDIA AMI has the drivers but not these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from eks_fsdp.spec.settings import TaintSettings
from eks_fsdp.spec.versions import EFA_DEVICE_PLUGIN_IMAGE, NVIDIA_DEVICE_PLUGIN_IMAGE

from .job_placement import tolerations
from .objects import (
    EFA_NODES,
    GPU_NODES,
    LOCKED_DOWN,
    Manifest,
    declare,
    host_path,
    resources,
    workload,
)

_PLUGIN_SOCKETS = "/var/lib/kubelet/device-plugins"


def nvidia_device_plugin(taints: Sequence[TaintSettings] = ()) -> Manifest:
    """The DaemonSet that offers ``nvidia.com/gpu``, also on nodes with ``taints``."""
    container = {
        "name": "nvidia-device-plugin",
        "image": NVIDIA_DEVICE_PLUGIN_IMAGE,
        # A node whose driver fails is worth an error that is seen, not a node that silently has no GPUs.
        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "true"}],
        "securityContext": LOCKED_DOWN,
        "resources": resources("50m", "256Mi"),
        "volumeMounts": [{"name": "plugins", "mountPath": _PLUGIN_SOCKETS}],
    }
    volumes = [host_path("plugins", _PLUGIN_SOCKETS)]
    return _daemon_set("nvidia-device-plugin", GPU_NODES, taints, container, volumes)


def efa_device_plugin(taints: Sequence[TaintSettings] = ()) -> Manifest:
    """The DaemonSet that offers ``vpc.amazonaws.com/efa``, also on nodes with ``taints``."""
    container = {
        "name": "aws-efa-k8s-device-plugin",
        "image": EFA_DEVICE_PLUGIN_IMAGE,
        "securityContext": {**LOCKED_DOWN, "runAsNonRoot": False},
        "resources": resources("10m", "64Mi"),
        "volumeMounts": [
            {"name": "plugins", "mountPath": _PLUGIN_SOCKETS},
            {"name": "infiniband", "mountPath": "/dev/infiniband"},
        ],
    }
    volumes = [host_path("plugins", _PLUGIN_SOCKETS), host_path("infiniband", "/dev/infiniband")]
    return _daemon_set("aws-efa-device-plugin", EFA_NODES, taints, container, volumes, host_network=True)


def _daemon_set(
    name: str,
    nodes: dict[str, str],
    taints: Sequence[TaintSettings],
    container: Manifest,
    volumes: list[Manifest],
    *,
    host_network: bool = False,
) -> Manifest:
    pod: Manifest = {
        # Before all else on a node: without it no job is placed there.
        "priorityClassName": "system-node-critical",
        "nodeSelector": nodes,
        "tolerations": [*tolerations(taints), {"key": "CriticalAddonsOnly", "operator": "Exists"}],
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": volumes,
    }
    if host_network:
        pod["hostNetwork"] = True
    manifest = workload("DaemonSet", name, pod)
    # A few nodes at a time: a plugin that does not start takes the devices of these alone from new jobs.
    manifest["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    return manifest


@dataclass(frozen=True, kw_only=True)
class DevicePluginsArgs:
    """Inputs of `DevicePlugins`."""

    nvidia: bool = True
    """Whether to install the NVIDIA plugin."""
    efa: bool = True
    """Whether to install the EFA plugin."""
    taints: Sequence[TaintSettings] = ()
    """Taints of the GPU nodes beside ``nvidia.com/gpu``, of all groups together."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the system namespace."""


class DevicePlugins(pulumi.ComponentResource):
    """NVIDIA's and EFA's device plugins on the nodes that are labelled as having the devices."""

    def __init__(self, name: str, args: DevicePluginsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:devices:DevicePlugins", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on))
        if args.nvidia:
            declare(f"{name}-nvidia", nvidia_device_plugin(args.taints), child)
        if args.efa:
            declare(f"{name}-efa", efa_device_plugin(args.taints), child)
        self.register_outputs({})
