"""How many nodes a GPU group has, whoever changed that last: the idle guard and the expiry do so behind Pulumi's back."""

from __future__ import annotations

from datetime import UTC, datetime

from eks_fsdp.spec.names import GPU_GROUP_LABEL
from eks_fsdp.spec.rules.guard import has_expired
from eks_fsdp.spec.settings import GpuNodeGroupSettings

from .errors import UserError
from .kube import ApiError
from .stack import Engine, Platform


def enough_nodes(engine: Engine, platform: Platform, group: GpuNodeGroupSettings, needed: int) -> bool:
    """Whether the group has ``needed`` nodes, or is about to. Raises `UserError` where it may not have any more.

    The cluster is asked first, which needs no rights in AWS. Where it has too few, the stack's state is brought up to
    what AWS has: an update from a state that has missed a change would change nothing.
    """
    if _in_cluster(platform, group) >= needed:
        return True
    if has_expired(platform.settings, datetime.now(UTC)):
        raise UserError(
            f"guard.expiry: {platform.settings.guard.expiry} of stack {platform.stack!r} has passed, and its GPU groups "
            f"stay at 0; {needed} x {group.instance_type} are needed: renew it in the stack's file"
        )
    return engine.refreshed_nodes(platform.stack, group.name) >= needed


def _in_cluster(platform: Platform, group: GpuNodeGroupSettings) -> int:
    """Nodes that are there; those that were last deployed where the cluster does not tell."""
    try:
        nodes = platform.cluster().nodes()
    except (UserError, ApiError):
        deployed = platform.deployed_nodes(group.name)
        return group.desired if deployed is None else deployed
    return sum((node["metadata"].get("labels") or {}).get(GPU_GROUP_LABEL) == group.name for node in nodes)
