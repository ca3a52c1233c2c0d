"""Rules of GPU node groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings


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
