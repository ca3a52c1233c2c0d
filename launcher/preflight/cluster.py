"""What an existing cluster has already, and the settings that say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.kube import ApiError, Cluster, Object
from eks_fsdp.launcher.objects import labels_of, name_of
from eks_fsdp.spec.names import (
    EFA_PRESENT_LABEL,
    EFA_RESOURCE,
    ETCD_SERVICE,
    GPU_PRESENT_LABEL,
    GPU_RESOURCE,
    SYSTEM_NAMESPACE,
)
from eks_fsdp.spec.settings import Settings

from .check import Check, Context, failed, ok, unchecked, warning

PYTORCHJOBS, PROMETHEUSES, CLUSTER_QUEUES, NODE_POOLS = (
    "pytorchjobs.kubeflow.org",
    "prometheuses.monitoring.coreos.com",
    "clusterqueues.kueue.x-k8s.io",
    "nodepools.karpenter.sh",
)


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What was read of a cluster."""

    kinds: frozenset[str] = frozenset()
    """Names of its CustomResourceDefinitions."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Image of each container of Deployments, DaemonSets and StatefulSets, by ``namespace/kind/name``."""
    services: frozenset[str] = frozenset()
    """``namespace/name``."""
    namespaces: frozenset[str] = frozenset()
    nodes: tuple[Object, ...] = ()

    def workload(self, *parts: str) -> str | None:
        """The workload, one of whose images has one of these parts in its repository's last name."""
        for where, images in self.images.items():
            for image in images.split():
                last = image.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]
                if any(part in last for part in parts):
                    return where
        return None

    def allocatable(self, resource: str) -> int:
        """Of all nodes together."""
        found = [node.get("status", {}).get("allocatable", {}).get(resource, 0) for node in self.nodes]
        return sum(int(value) for value in found)


def read_inventory(cluster: Cluster) -> Inventory:
    """Read a cluster; lists that the user may not read are left empty. Raises `ApiError` where it does not answer."""

    def items(path: str) -> list[Object]:
        try:
            return cluster.items(path)
        except ApiError as error:
            if error.status in (403, 404):
                return []
            raise

    images: dict[str, str] = {}
    for kind in ("deployments", "daemonsets", "statefulsets"):
        for item in items(f"/apis/apps/v1/{kind}"):
            containers = item["spec"]["template"]["spec"].get("containers") or []
            where = f"{item['metadata']['namespace']}/{kind.removesuffix('s')}/{name_of(item)}"
            images[where] = " ".join(str(container.get("image", "")) for container in containers)
    return Inventory(
        kinds=frozenset(name_of(item) for item in items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")),
        images=images,
        services=frozenset(f"{item['metadata']['namespace']}/{name_of(item)}" for item in items("/api/v1/services")),
        namespaces=frozenset(name_of(item) for item in items("/api/v1/namespaces")),
        nodes=tuple(items("/api/v1/nodes")),
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part that the program installs or finds."""

    name: str
    setting: str
    """Dotted name of the setting that holds its ``mode``."""
    found: str | None
    """Where it is; None: it is not there."""
    mode: str
    """What the settings say."""
    needed: bool = True
    """Whether jobs cannot run without it."""

    @property
    def right_mode(self) -> str:
        """The mode that fits what was found."""
        return "existing" if self.found else ("install" if self.mode == "existing" else self.mode)


def detect(inventory: Inventory, settings: Settings) -> list[Part]:
    """What of the program's parts a cluster has already. Pure."""
    operator = inventory.workload("training-operator")
    crd = PYTORCHJOBS in inventory.kinds
    gpus, efas = inventory.allocatable(GPU_RESOURCE), inventory.allocatable(EFA_RESOURCE)
    nvidia = inventory.workload("k8s-device-plugin") if not gpus else None
    efa = inventory.workload("aws-efa-k8s-device-plugin") if not efas else None
    efa_images = {w: i for w, i in inventory.images.items() if "aws-efa-k8s-device-plugin" in i}
    if nvidia in efa_images:
        # The EFA plugin's image ends in the NVIDIA plugin's name.
        rest = {w: i for w, i in inventory.images.items() if w not in efa_images}
        nvidia = Inventory(images=rest).workload("k8s-device-plugin")
    prometheus = PROMETHEUSES in inventory.kinds and (
        inventory.workload("prometheus-operator") or f"kind {PROMETHEUSES}"
    )
    dcgm = inventory.workload("dcgm-exporter")
    monitoring = " and ".join(str(found) for found in (prometheus, dcgm) if found) or None
    queue = CLUSTER_QUEUES in inventory.kinds and (inventory.workload("kueue") or f"kind {CLUSTER_QUEUES}")
    etcd = f"{SYSTEM_NAMESPACE}/{ETCD_SERVICE}"
    namespace = settings.namespace_name
    return [
        Part(
            name="Training operator",
            setting="training_operator",
            found=f"{operator or 'no deployment of it'}, kind {PYTORCHJOBS}" if crd else None,
            mode=settings.training_operator.mode,
        ),
        Part(
            name="NVIDIA device plugin",
            setting="device_plugins.nvidia",
            found=f"{gpus} GPUs are allocatable" if gpus else nvidia,
            mode=settings.device_plugins.nvidia.mode,
        ),
        Part(
            name="EFA device plugin",
            setting="device_plugins.efa",
            found=f"{efas} EFA interfaces are allocatable" if efas else efa,
            mode=settings.device_plugins.efa.mode,
        ),
        Part(
            name="etcd for rendezvous",
            setting="etcd",
            found=f"service {etcd}" if etcd in inventory.services else None,
            mode=settings.etcd.mode,
        ),
        Part(name="Kueue", setting="queue", found=queue or None, mode=settings.queue.mode, needed=False),
        Part(name="Monitoring", setting="monitoring", found=monitoring, mode=settings.monitoring.mode, needed=False),
        Part(
            name=f"Namespace {namespace}",
            setting="namespace",
            found=namespace if namespace in inventory.namespaces else None,
            mode=settings.namespace.mode,
        ),
    ]


def part_check(part: Part) -> Check:
    """Whether a part's mode fits what the cluster has."""
    if part.mode == "install" and part.found:
        if part.setting in ("monitoring", "queue"):
            return warning(part.name, f"there already: {part.found}", f"set {part.setting}.mode: existing")
        return failed(
            part.name,
            f"there already: {part.found}; a second one would take its objects over",
            f"set {part.setting}.mode: existing",
        )
    if part.mode == "existing" and not part.found:
        do = f"set {part.setting}.mode: install"
        return failed(part.name, "not there", do) if part.needed else warning(part.name, "not there", do)
    if part.mode == "none":
        return ok(part.name, f"not used ({part.setting}.mode: none)" + (f"; there: {part.found}" if part.found else ""))
    return ok(part.name, f"there: {part.found}" if part.found else "not there; it will be installed")


def settings_lines(parts: Iterable[Part]) -> list[str]:
    """The lines of the stack file that make each part's mode fit, where one does not."""
    tree: dict[str, Any] = {}
    for part in parts:
        if part.mode != "none" and part.right_mode != part.mode:
            top, _, below = part.setting.partition(".")
            at = tree.setdefault(top, {})
            at = at.setdefault(below, {}) if below else at
            at["mode"] = part.right_mode
    lines: list[str] = []
    for top, value in tree.items():
        lines.append(f"eks-fsdp:{top}:")
        for key, inner in value.items():
            lines += [f"  {key}: {inner}"] if isinstance(inner, str) else [f"  {key}:", f"    mode: {inner['mode']}"]
    return lines


def group_checks(inventory: Inventory, settings: Settings) -> Iterable[Check]:
    """The nodes of each declared GPU group are there, and have the labels that the program's plugins look for."""
    from eks_fsdp.spec.names import GPU_GROUP_LABEL

    for group in settings.gpu_nodes:
        mine = [node for node in inventory.nodes if labels_of(node).get(GPU_GROUP_LABEL) == group.name]
        name = f"Nodes of {group.name}"
        if not mine:
            yield warning(
                name,
                f"no node has the label {GPU_GROUP_LABEL}={group.name}",
                f"label the group's nodes {GPU_GROUP_LABEL}={group.name} and {GPU_PRESENT_LABEL}=true"
                + (f" and {EFA_PRESENT_LABEL}=true" if group.uses_efa else ""),
            )
            continue
        wrong = [node for node in mine if labels_of(node).get(GPU_PRESENT_LABEL) != "true"]
        if wrong and settings.device_plugins.nvidia.mode == "install":
            yield failed(name, f"{len(wrong)} of {len(mine)} lack {GPU_PRESENT_LABEL}=true", "label them")
        else:
            yield ok(name, f"{len(mine)} {'node' if len(mine) == 1 else 'nodes'}")


def cluster_checks(at: Context, cluster: Cluster) -> tuple[list[Check], list[str]]:
    """Checks of an existing cluster, and the settings' lines that would fit it."""
    name = "Kubernetes API"
    try:
        version = cluster.request("GET", "/version")
        inventory = read_inventory(cluster)
    except (ApiError, UserError) as error:
        return [failed(name, str(error), "check cluster.kubeconfig, your network and your access entry")], []
    checks = [ok(name, f"{cluster.source}: {version.get('gitVersion', 'answers')}, {len(inventory.nodes)} nodes")]
    if not inventory.kinds:
        checks.append(unchecked("Installed parts", "the CustomResourceDefinitions may not be read"))
    parts = detect(inventory, at.settings)
    checks += [part_check(part) for part in parts]
    karpenter = NODE_POOLS in inventory.kinds
    if karpenter:
        checks.append(
            warning(
                "Karpenter",
                f"kind {NODE_POOLS} is there: it may consolidate nodes under a running job",
                "give jobs the annotation karpenter.sh/do-not-disrupt, or keep GPU nodes out of its pools",
            )
        )
    checks += group_checks(inventory, at.settings)
    return checks, settings_lines(parts)
