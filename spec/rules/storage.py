"""Rules of storage."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from eks_fsdp.spec.checkpoints import USABLE, capacity_for, checkpoint_gib, needed_gib
from eks_fsdp.spec.names import CHECKPOINT_MOUNT

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

S3 = "s3://"


def needs_network(settings: Settings) -> Iterable[str]:
    """A new file system stands in the program's own network."""
    storage = settings.storage
    if settings.cluster.mode == "existing" and storage.mode == "fsx" and storage.file_system_id is None:
        yield (
            "storage.mode: 'fsx' makes a file system in the program's own network, and cluster.mode is 'existing'; "
            "accepted: existing, none, or storage.file_system_id"
        )


def retention(settings: Settings) -> Iterable[str]:
    """Nothing of an ephemeral stack is kept."""
    if settings.ephemeral and settings.storage.retain:
        yield "storage.retain: true, and ephemeral is true: nothing of an ephemeral stack is kept; accepted: false"


def mount_paths(settings: Settings) -> Iterable[str]:
    """Each bucket has a folder of its own in the pods."""
    seen: dict[PurePosixPath, str] = {}
    for name, mount in settings.storage.s3_mounts.items():
        path = PurePosixPath(mount.path)
        for other, whose in seen.items():
            if path == other or path in other.parents or other in path.parents:
                yield (
                    f"storage.s3_mounts.{name}.path: {mount.path!r} and {str(other)!r} ({whose}) lie in each other; "
                    "accepted: a folder of its own, such as /mnt/models"
                )
        seen[path] = f"storage.s3_mounts.{name}"


def checkpoint_places(settings: Settings) -> Iterable[str]:
    """Checkpoints go to the file system's mount, or to the checkpoint bucket, below the job's own namespace."""
    bucket = settings.storage.checkpoint_bucket
    for name, job in settings.jobs.items():
        directory = job.trainer.checkpoint.directory
        if directory is None:
            continue
        where = f"jobs.{name}.trainer.checkpoint.directory: {directory!r}"
        if directory.startswith(S3):
            below = f"{S3}{bucket}/{job.team or settings.namespace_name}/"
            if bucket is None:
                yield f"{where} needs storage.checkpoint_bucket, and that is not set; accepted: the bucket's name there"
            elif not directory.startswith(below) or directory == below:
                yield f"{where} is not a place that the job may write to; accepted: {below}..."
        elif PurePosixPath(CHECKPOINT_MOUNT) not in PurePosixPath(directory).parents or ".." in directory.split("/"):
            kept = f"a folder below {CHECKPOINT_MOUNT}, or {S3}BUCKET/NAMESPACE/..."
            yield f"{where} is not on storage that outlives the pod and that all ranks share; accepted: {kept}"


def checkpoints_fit(settings: Settings) -> Iterable[str]:
    """What all jobs keep fits a new file system: a full one ends a run at its next save."""
    storage = settings.storage
    if storage.mode != "fsx" or storage.file_system_id is not None:
        return
    needs: dict[str, tuple[float, str]] = {}
    for name, job in settings.jobs.items():
        checkpoint = job.trainer.checkpoint
        if checkpoint.directory and not checkpoint.directory.startswith(S3):
            # Jobs that resume from each other share a folder, and what is kept in it.
            needs[checkpoint.directory] = max(
                needs.get(checkpoint.directory, (0.0, "")), (needed_gib(job.trainer.model, checkpoint.keep), name)
            )
    total = sum(gib for gib, _ in needs.values())
    if total <= storage.capacity_gib * USABLE:
        return
    gib, name = max(needs.values())
    trainer = settings.jobs[name].trainer
    others = f", and the other jobs {total - gib:,.0f} GiB" if len(needs) > 1 else ""
    room = storage.capacity_gib * USABLE - (total - gib)
    keep = int(room // checkpoint_gib(trainer.model)) - 1
    fewer = f"keep {keep} at most, or " if keep >= 1 else ""
    yield (
        f"jobs.{name}.trainer.checkpoint.keep: {trainer.checkpoint.keep} checkpoints of {trainer.model}, "
        f"{checkpoint_gib(trainer.model):,.0f} GiB each, and the one that is being written take {gib:,.0f} GiB{others}; "
        f"storage.capacity_gib {storage.capacity_gib} holds {storage.capacity_gib * USABLE:,.0f}; "
        f"accepted: {fewer}storage.capacity_gib: {capacity_for(total)}"
    )


def build_project(settings: Settings) -> Iterable[str]:
    """The build project pushes to the stack's own repository."""
    if settings.image.codebuild and settings.cluster.mode == "existing":
        yield (
            "image.codebuild: true, and cluster.mode 'existing' makes neither repository nor build project; accepted: false"
        )
