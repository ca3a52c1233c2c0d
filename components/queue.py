"""Kueue, and the queues through which jobs get their nodes: all of them at once, or none yet.

A cluster queue for each of the jobs' namespaces says how many nodes of each GPU group are its own; all are in one cohort,
so that one borrows what others leave idle. Kueue also counts the nodes that are there, ready and free (its topology-aware
scheduling, whose lowest level is the node): quotas alone would admit a job to nodes that were never started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.names import (
    EFA_RESOURCE,
    GPU_GROUP_LABEL,
    GPU_RESOURCE,
    HOSTNAME_LABEL,
    LOCAL_QUEUE,
    NAMESPACE_LABEL,
    NETWORK_LAYER_LABELS,
    QUEUED_LABEL,
)
from eks_fsdp.spec.settings import GpuNodeGroupSettings, QueueSettings
from eks_fsdp.spec.versions import KUEUE_MANIFESTS

from .kustomization import Directory, Kustomization
from .objects import Manifest, digest

KUEUE_NAMESPACE = "kueue-system"
COHORT = "training"
"""Name of the cohort of all cluster queues."""
_API = "kueue.x-k8s.io/v1beta2"
_LEVELS: dict[str, tuple[str, ...]] = {"nodes": (HOSTNAME_LABEL,), "network": (*NETWORK_LAYER_LABELS, HOSTNAME_LABEL)}


def configuration(settings: QueueSettings) -> dict[str, Any]:
    """Of Kueue's manager."""
    timeout = f"{settings.wait_for_pods_minutes}m"
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": KUEUE_NAMESPACE,
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "clientConnection": {"qps": 50, "burst": 100},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": "kueue-webhook-service",
            "webhookSecretName": "kueue-webhook-server-cert",
        },
        "waitForPodsReady": {
            "timeout": timeout,
            "recoveryTimeout": timeout,
            "blockAdmission": False,
            "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800},
        },
        # In the program's own namespaces alone: there a job without a queue would get past everybody's quota.
        "manageJobsWithoutQueueName": True,
        "managedJobsNamespaceSelector": {"matchLabels": {QUEUED_LABEL: "true"}},
        "integrations": {"frameworks": ["kubeflow.org/pytorchjob"]},
        # What a node has enough of, whoever asks for it.
        "resources": {"excludeResourcePrefixes": ["ephemeral-storage", "hugepages-"]},
        "featureGates": {"MultiKueue": False, "VisibilityOnDemand": False},
    }


def manager_patch(settings: QueueSettings, node_selector: Mapping[str, str]) -> str:
    """What of Kueue's manifests depends on settings: its configuration, and where it runs. JSON is YAML."""
    text = json.dumps(configuration(settings), indent=2) + "\n"
    place = {"namespace": KUEUE_NAMESPACE}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", **place},
        "data": {"controller_manager_config.yaml": text},
    }
    template = {
        # The file is read once: a new one needs a new pod.
        "metadata": {"annotations": {"eksfsdp/configuration": digest(text)}},
        "spec": {"nodeSelector": dict(node_selector)},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", **place},
        "spec": {"template": template},
    }
    return f"{json.dumps(config, indent=2)}\n---\n{json.dumps(deployment, indent=2)}\n"


def kustomization(settings: QueueSettings, node_selector: Mapping[str, str]) -> Kustomization:
    """Of Kueue."""
    return Kustomization(
        folder=Path(__file__).parent / "kueue",
        pinned=KUEUE_MANIFESTS,
        setting="queue.manifests",
        meant="Kueue's folder config/default",
        files={"settings.yaml": manager_patch(settings, node_selector)},
    )


def topologies(groups: Sequence[GpuNodeGroupSettings], settings: QueueSettings) -> list[Manifest]:
    """How far nodes are from each other, as their labels say it. A node that lacks one of them gets no job."""
    used = sorted({settings.topology_of(efa=group.uses_efa) for group in groups})
    levels = {name: [{"nodeLabel": label} for label in _LEVELS[name]] for name in used}
    return [{**_named("Topology", name), "spec": {"levels": levels[name]}} for name in used]


def flavor_name(group: GpuNodeGroupSettings, settings: QueueSettings) -> str:
    """Of a GPU group. A flavor's topology cannot be changed, so another one makes another flavor."""
    return group.name if settings.topology_of(efa=group.uses_efa) == "nodes" else f"{group.name}-network"


def flavor(group: GpuNodeGroupSettings, settings: QueueSettings) -> Manifest:
    """The nodes of one GPU group. Jobs bring their tolerations along."""
    spec = {"nodeLabels": {GPU_GROUP_LABEL: group.name}, "topologyName": settings.topology_of(efa=group.uses_efa)}
    return {**_named("ResourceFlavor", flavor_name(group, settings)), "spec": spec}


def own_nodes(
    groups: Sequence[GpuNodeGroupSettings], teams: Mapping[str, Mapping[str, int]], namespace: str
) -> dict[str, dict[str, int]]:
    """Nodes of each group that are each namespace's own: a team's as it says, and the rest ``namespace``'s."""
    given = {group.name: sum(nodes.get(group.name, 0) for nodes in teams.values()) for group in groups}
    rest = {group.name: group.max - given[group.name] for group in groups}
    return {namespace: rest, **{t: {g.name: nodes.get(g.name, 0) for g in groups} for t, nodes in teams.items()}}


def quantity(count: int, units: Sequence[str] = ("", "k", "M"), step: int = 1000) -> str:
    """``count`` of the first unit as the API server writes it, so that what it keeps is what was declared: 2000 as ``2k``."""
    power = 0
    while count and count % step == 0 and power < len(units) - 1:
        count, power = count // step, power + 1
    return f"{count}{units[power]}" if count else "0"


def cluster_queue(
    namespace: str, nodes: Mapping[str, int], groups: Sequence[GpuNodeGroupSettings], settings: QueueSettings
) -> Manifest:
    """The queue of one namespace, which owns ``nodes`` of each group.

    A node counts with all that it has: a job takes whole nodes, and GPUs are what it runs out of first.
    """
    efa = any(group.uses_efa for group in groups)
    covered = ["cpu", "memory", GPU_RESOURCE, *([EFA_RESOURCE] if efa else [])]
    flavors = []
    for group in groups:
        instance, count = group.instance, nodes[group.name]
        quotas = {
            "cpu": quantity(count * instance.vcpus),
            "memory": quantity(count * instance.memory_mib, ("Mi", "Gi", "Ti", "Pi"), 1024),
            GPU_RESOURCE: quantity(count * instance.gpus),
            EFA_RESOURCE: quantity(count * instance.efa_interfaces if group.uses_efa else 0),
        }
        resources = [{"name": name, "nominalQuota": quotas[name]} for name in covered]
        flavors.append({"name": flavor_name(group, settings), "resources": resources})
    spec: Manifest = {
        "cohortName": COHORT,
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: namespace}},
        "queueingStrategy": "StrictFIFO" if settings.order == "strict" else "BestEffortFIFO",
        "preemption": {
            "reclaimWithinCohort": "Any" if settings.reclaim else "Never",
            "withinClusterQueue": "Never",
        },
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}] if flavors else [],
    }
    return {**_named("ClusterQueue", namespace), "spec": spec}


def local_queue(namespace: str) -> Manifest:
    """What jobs of a namespace name: its way to the namespace's cluster queue."""
    named = _named("LocalQueue", LOCAL_QUEUE)
    return {**named, "metadata": {**named["metadata"], "namespace": namespace}, "spec": {"clusterQueue": namespace}}


def _named(kind: str, name: str) -> Manifest:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}}


@dataclass(frozen=True, kw_only=True)
class QueueArgs:
    """Inputs of `Queue`."""

    settings: QueueSettings
    """What the stack file says of it."""
    groups: Sequence[GpuNodeGroupSettings]
    """The GPU groups."""
    nodes: Mapping[str, Mapping[str, int]]
    """Nodes of each group that are each namespace's own: ``{"training": {"p5": 14}, "research": {"p5": 2}}``."""
    node_selector: Mapping[str, str]
    """Labels of the nodes that Kueue runs on."""
    work_dir: Path = Path()
    """What a folder of manifests is relative to; the program's own by default."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: nodes to run on, and the training operator, whose jobs Kueue watches."""
    namespaces: Sequence[pulumi.Resource] = ()
    """The jobs' namespaces."""


class Queue(pulumi.ComponentResource):
    """Kueue and its queues. What depends on it is declared once jobs can be queued."""

    def __init__(self, name: str, args: QueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:queue:Queue", name, None, opts)
        settings, groups = args.settings, args.groups
        source = kustomization(settings, args.node_selector)
        manager = Directory(
            f"{name}-manifests",
            directory=str(source.built_from(settings.manifests or KUEUE_MANIFESTS, args.work_dir)),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on)),
        )
        distances = [
            self._declare(f"{name}-topology-{manifest['metadata']['name']}", manifest, [manager])
            for manifest in topologies(groups, settings)
        ]
        flavors = [self._declare(f"{name}-flavor-{g.name}", flavor(g, settings), [manager, *distances]) for g in groups]
        for namespace, nodes in args.nodes.items():
            queue = cluster_queue(namespace, nodes, groups, settings)
            shared = self._declare(f"{name}-cluster-queue-{namespace}", queue, [manager, *flavors])
            self._declare(f"{name}-local-queue-{namespace}", local_queue(namespace), [shared, *args.namespaces])
        self.register_outputs({})

    def _declare(self, name: str, manifest: Manifest, after: Sequence[pulumi.Resource]) -> pulumi.Resource:
        return k8s.apiextensions.CustomResource(
            name,
            api_version=manifest["apiVersion"],
            kind=manifest["kind"],
            metadata=manifest["metadata"],
            spec=manifest["spec"],
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )
