"""What an existing cluster has already, and the settings that say so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.kube import ApiError, Cluster, Object
from eks_fsdp.launcher.objects import labels_of, name_of
from eks_fsdp.spec.addons import release
from eks_fsdp.spec.names import (
    EFA_PRESENT_LABEL,
    EFA_RESOURCE,
    ETCD_SERVICE,
    GPU_PRESENT_LABEL,
    GPU_RESOURCE,
    SYSTEM_NAMESPACE,
)
from eks_fsdp.spec.rules.cluster import EFA_KUBERNETES_MINOR
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.versions import POD_IDENTITY, VPC_CNI, VPC_CNI_EFA_ONLY

from .check import Check, Context, failed, ok, unchecked, warning

PYTORCHJOBS, PROMETHEUSES, CLUSTER_QUEUES, NODE_POOLS = (
    "pytorchjobs.kubeflow.org",
    "prometheuses.monitoring.coreos.com",
    "clusterqueues.kueue.x-k8s.io",
    "nodepools.karpenter.sh",
)

AWS_NODE, CNI_IMAGE = "kube-system/daemonset/aws-node", "amazon-k8s-cni"
POD_IDENTITY_AGENT = f"kube-system/daemonset/{POD_IDENTITY}"


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
    half: str = ""
    """What of it is there and what is missing, where it is not there whole."""

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
    # Half of it is not monitoring that could be used in place of the program's own.
    monitoring = f"{prometheus} and {dcgm}" if prometheus and dcgm else None
    half = ""
    if prometheus and not dcgm:
        half = f"{prometheus} is there, and no DCGM exporter: GPUs are not measured"
    elif dcgm and not prometheus:
        half = f"{dcgm} is there, and no Prometheus of its operator to read it"
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
        Part(
            name="Monitoring",
            setting="monitoring",
            found=monitoring,
            mode=settings.monitoring.mode,
            needed=False,
            half=half,
        ),
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
        if part.half:
            return warning(part.name, part.half, f"add what is missing, or {do}")
        return failed(part.name, "not there", do) if part.needed else warning(part.name, "not there", do)
    if part.mode == "install" and part.half:
        do = "add what is missing and set monitoring.mode: existing, or let the program install both beside it"
        return warning(part.name, part.half, do)
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
        plugins, looked_for = settings.device_plugins, []
        if plugins.nvidia.mode == "install":
            looked_for.append(GPU_PRESENT_LABEL)
        if plugins.efa.mode == "install" and group.uses_efa:
            looked_for.append(EFA_PRESENT_LABEL)
        lacking = {label: sum(labels_of(node).get(label) != "true" for node in mine) for label in looked_for}
        for label, count in lacking.items():
            if count:
                yield failed(
                    name, f"{count} of {len(mine)} lack {label}=true: the device plugin skips them", "label them"
                )
        if not any(lacking.values()):
            yield ok(name, f"{len(mine)} {'node' if len(mine) == 1 else 'nodes'}")


def version_checks(inventory: Inventory, settings: Settings, git_version: str) -> Iterable[Check]:
    """The server and vpc-cni are new enough for EFA. ``git_version``: such as ``v1.34.4-eksbuild.2``."""
    groups = [group for group in settings.gpu_nodes if group.uses_efa]
    if not groups:
        return
    version = re.match(r"v(\d+)\.(\d+)", git_version)
    name = "Kubernetes version"
    if version is None:
        yield unchecked(name, f"the server's version {git_version!r} cannot be read")
    elif (int(version[1]), int(version[2])) < (1, EFA_KUBERNETES_MINOR):
        yield warning(
            name,
            f"{git_version}: before 1.{EFA_KUBERNETES_MINOR} the cluster's own security group does not let EFA traffic out",
            f"upgrade, or give the EFA nodes a security group that is open to itself both ways ({groups[0].name})",
        )
    else:
        yield ok(name, f"{git_version}, 1.{EFA_KUBERNETES_MINOR} or later")
    yield _cni_check(
        inventory, [g.name for g in groups if any(i.kind == "efa-only" for i in g.instance.interfaces(g.efa))]
    )


def _cni_check(inventory: Inventory, efa_only: Sequence[str]) -> Check:
    """vpc-cni's version, from its image's tag. ``efa_only``: groups that have EFA-only interfaces."""
    image = next((i for i in inventory.images.get(AWS_NODE, "").split() if CNI_IMAGE in i), None)
    if image is None:
        return unchecked(VPC_CNI, f"no image {CNI_IMAGE} in {AWS_NODE}: another CNI, or it may not be read")
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    try:
        too_old = release(tag)[:3] < release(VPC_CNI_EFA_ONLY)[:3]
    except ValueError:
        return unchecked(VPC_CNI, f"{image}: its tag tells no version")
    if not too_old:
        return ok(VPC_CNI, f"{tag}, {VPC_CNI_EFA_ONLY} or later")
    why = f"{tag} gives EFA-only interfaces addresses, and their nodes never become ready"
    do = f"update the add-on {VPC_CNI} to {VPC_CNI_EFA_ONLY} or later"
    if efa_only:
        return failed(VPC_CNI, f"{why} ({', '.join(efa_only)})", do)
    return warning(VPC_CNI, f"{why}; no group here has such", do)


def identity_check(inventory: Inventory, settings: Settings) -> Check:
    """EKS' Pod Identity agent is there, without which jobs get no credentials for their buckets."""
    storage = settings.storage
    buckets = settings.cluster.name is not None and (storage.s3_mounts or storage.checkpoint_bucket)
    if POD_IDENTITY_AGENT in inventory.images:
        return ok(POD_IDENTITY, f"there: {POD_IDENTITY_AGENT}")
    if buckets:
        do = f"aws eks create-addon --cluster-name {settings.cluster.name} --addon-name {POD_IDENTITY}"
        return failed(POD_IDENTITY, f"no {POD_IDENTITY_AGENT}: jobs get no credentials for their buckets", do)
    return ok(POD_IDENTITY, f"no {POD_IDENTITY_AGENT}, and nothing of this stack needs it")


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
    checks += version_checks(inventory, at.settings, str(version.get("gitVersion", "")))
    checks.append(identity_check(inventory, at.settings))
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
