"""Rules of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

EFA_KUBERNETES_MINOR = 33
"""From 1.33 on, the security group that EKS makes lets its members send to each other by group, as EFA needs."""


def efa_needs_version(settings: Settings) -> Iterable[str]:
    """EFA nodes need a cluster whose own security group lets EFA traffic out."""
    version = settings.cluster.kubernetes_version
    efa = any(group.uses_efa for group in settings.gpu_nodes)
    if settings.cluster.mode == "create" and efa and int(version.partition(".")[2]) < EFA_KUBERNETES_MINOR:
        yield (
            f"cluster.kubernetes_version: {version!r} with EFA nodes; before 1.{EFA_KUBERNETES_MINOR} the cluster's own "
            f"security group does not let EFA traffic out; accepted: 1.{EFA_KUBERNETES_MINOR} or later"
        )
