"""Rules of GPU node groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.versions import AMI_RELEASES

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings


def names(settings: Settings) -> Iterable[str]:
    """Each group has a name of its own."""
    names = [group.name for group in settings.gpu_nodes]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"gpu_nodes: the name {name!r} is used twice; accepted: one name for each group"


def zones(settings: Settings) -> Iterable[str]:
    """Each group's zone has a private subnet."""
    if settings.cluster.mode == "existing":
        return
    known = settings.network.node_zones
    for index, group in enumerate(settings.gpu_nodes):
        if group.zone not in known:
            yield f"gpu_nodes[{index}].zone: {group.zone!r} has no subnet; accepted: {', '.join(known)}"


def efa(settings: Settings) -> Iterable[str]:
    """A group's instance type takes its layout of EFA interfaces."""
    for index, group in enumerate(settings.gpu_nodes):
        try:
            group.instance.interfaces(group.efa)
        except ValueError as error:
            sizes = [
                t.name
                for t in INSTANCE_TYPES.values()
                if t.efa_interfaces and _family(t.name) == _family(group.instance_type)
            ]
            fits = "auto, efa-only-dense" if group.instance.efa_interfaces else "auto, none"
            others = "" if group.instance.efa_interfaces or not sizes else f", or a type with EFA: {', '.join(sizes)}"
            yield f"gpu_nodes[{index}].efa: {group.efa!r}: {error}; accepted: {fits}{others}"


def _family(instance_type: str) -> str:
    return instance_type.partition(".")[0]


def alternatives(settings: Settings) -> Iterable[str]:
    """All types of a group have one layout of interfaces, and as many GPUs: one template and one job fit all of them."""
    for index, group in enumerate(settings.gpu_nodes):
        for place, name in enumerate(group.alternatives):
            path = f"gpu_nodes[{index}].alternatives[{place}]"
            if name == group.instance_type or name in group.alternatives[:place]:
                yield f"{path}: {name!r} is named twice; accepted: each type once"
                continue
            yield from _alternative(path, group, name)


def _alternative(path: str, group: GpuNodeGroupSettings, name: str) -> Iterable[str]:
    one, other = group.instance, INSTANCE_TYPES[name]
    for what, ours, theirs in (
        ("GPUs", one.gpus, other.gpus),
        ("EFA interfaces", one.efa_interfaces, other.efa_interfaces),
    ):
        if ours != theirs:
            yield (
                f"{path}: {name!r} has {theirs} {what}, and {one.name!r} has {ours}; all types of a group share one launch "
                f"template and its jobs; accepted: types with {ours} {what}"
            )
            return
    if one.network_cards != other.network_cards or one.efa_on_first_card != other.efa_on_first_card:
        yield f"{path}: {name!r} has its EFA interfaces on other network cards than {one.name!r}; accepted: types with the same cards"


def ami(settings: Settings) -> Iterable[str]:
    """The image of EKS' own is one of the cluster's Kubernetes version."""
    version = settings.cluster.kubernetes_version
    if settings.cluster.mode == "existing":
        return
    for index, group in enumerate(settings.gpu_nodes):
        release = group.ami.release
        if release is not None and not release.startswith(f"{version}."):
            yield (
                f"gpu_nodes[{index}].ami.release: {release!r} is not of cluster.kubernetes_version {version!r}; accepted: "
                f"a release that begins with {version}."
            )
        if release is None and group.ami.image_id is None and version not in AMI_RELEASES:
            yield (
                f"gpu_nodes[{index}].ami.release: not set, and the program pins none for Kubernetes {version}; accepted: "
                f"a release of EKS' AL2023 NVIDIA image that begins with {version}., or ami.image_id"
            )
