"""Volumes of a job's pods, each with its mount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from eks_fsdp.spec.names import CHECKPOINT_MOUNT, SCRATCH_MOUNT, TRAINER_CONFIG_PATH

from .objects import LOCKED_DOWN, Manifest, mebibytes

Scratch = Literal["empty-dir", "first-disk"]
FIRST_DISK = "/mnt/k8s-disks/1"
"""Where nodeadm mounts the first local disk where it mounts each by itself; ``/0`` is the array (amazon-eks-ami, setup-local-disks)."""
Volume = tuple[Manifest, Manifest]
"""A pod's volume and the container's mount of it."""


def config(config_map: str) -> Volume:
    """The trainer's configuration."""
    folder, _, file = TRAINER_CONFIG_PATH.rpartition("/")
    source = {"name": config_map, "items": [{"key": file, "path": file}]}
    return {"name": "config", "configMap": source}, {"name": "config", "mountPath": folder}


def shared_memory(size_mib: int) -> Volume:
    """``/dev/shm``. Data loaders, and NCCL within a node, share memory; a container has 64 MiB by default."""
    source = {"medium": "Memory", "sizeLimit": mebibytes(size_mib)}
    return {"name": "shm", "emptyDir": source}, {"name": "shm", "mountPath": "/dev/shm"}


def checkpoints(claim: str) -> Volume:
    """The file system that all ranks share."""
    source = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}
    return source, {"name": "checkpoints", "mountPath": CHECKPOINT_MOUNT}


def scratch(kind: Scratch) -> Volume:
    """The node's local disks. One array of them is under the kubelet's own folder, and so under every ``emptyDir``."""
    source = {"emptyDir": {}} if kind == "empty-dir" else {"hostPath": {"path": FIRST_DISK, "type": "Directory"}}
    return {"name": "scratch", **source}, {"name": "scratch", "mountPath": SCRATCH_MOUNT}


def open_scratch(image: object) -> Manifest:
    """Init container that lets the trainer, which is no root, write to a disk that nodeadm has mounted for root."""
    _, mount = scratch("first-disk")
    return {
        "name": "open-scratch",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["chmod", "1777", SCRATCH_MOUNT],
        "securityContext": {**LOCKED_DOWN, "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "volumeMounts": [mount],
    }


def s3_mounts(paths: Mapping[str, str]) -> list[Volume]:
    """Buckets, read-only: by name of the mount, the path; the claim is called ``s3-<name>``."""
    return [
        (
            {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            {"name": claim, "mountPath": path, "readOnly": True},
        )
        for claim, path in ((f"s3-{name}", path) for name, path in sorted(paths.items()))
    ]
