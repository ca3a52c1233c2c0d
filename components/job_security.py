"""Who a job's containers run as, and what they may do: PodSecurity's level ``baseline`` at least."""

from __future__ import annotations

from eks_fsdp.spec.settings import Settings

from .objects import LOCKED_DOWN, Manifest

TRAINER_USER = 10001
"""User and group of the trainer's image (trainer/Dockerfile)."""


def pod_security_context(*, own_image: bool) -> Manifest:
    """Of the pod. An image of the user's own keeps its user: nobody here knows which one it needs."""
    profile: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if own_image:
        return profile
    user = {"runAsNonRoot": True, "runAsUser": TRAINER_USER, "runAsGroup": TRAINER_USER}
    # Without OnRootMismatch the kubelet walks through all files of a volume at each start.
    return {**user, "fsGroup": TRAINER_USER, "fsGroupChangePolicy": "OnRootMismatch", **profile}


def container_security_context(*, own_image: bool) -> Manifest:
    """Of the container."""
    return {"allowPrivilegeEscalation": False} if own_image else dict(LOCKED_DOWN)


def pod_security_level(settings: Settings) -> str:
    """Pod Security Standard that the API server holds all pods of the jobs' namespaces to.

    ``baseline`` forbids folders of the node, and a group whose disks are mounted one by one needs one.
    """
    return "privileged" if any(group.nvme == "mount" for group in settings.gpu_nodes) else "baseline"
