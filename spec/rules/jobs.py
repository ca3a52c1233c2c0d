"""Rules of jobs and teams."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from eks_fsdp.spec.checkpoints import checkpoint_bytes
from eks_fsdp.spec.models import MODEL_PRESETS
from eks_fsdp.spec.names import CHECKPOINT_MOUNT, RENDEZVOUS_ETCD_V3, SCRATCH_MOUNT, TRAINER_CONFIG_PATH

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import JobSettings, Settings

LUSTRE_BURST_MBPS_PER_TIB = 500
"""What an FSx for Lustre file system of the lowest throughput writes for a while; none of the levels is slower."""
_OPERATORS_PREFIX = "PET_"
_PLAIN_SECRETS = re.compile(
    r"(^|_)(HF_TOKEN|HUGGING_?FACE_\w*TOKEN|HF_HUB_TOKEN|AWS_SECRET_ACCESS_KEY|AWS_SESSION_TOKEN|WANDB_API_KEY)$"
)
_TOKEN = re.compile(r"^hf_[A-Za-z0-9]{16,}$")
_OTHERS_LABELS = re.compile(r"^(eksfsdp/(job|run|team)$|(training\.kubeflow\.org|([-a-z0-9]+\.)*kueue\.x-k8s\.io)/)")
_TAKEN_PATHS = (CHECKPOINT_MOUNT, SCRATCH_MOUNT, TRAINER_CONFIG_PATH.rpartition("/")[0], "/dev", "/proc", "/sys")


def fit(settings: Settings) -> Iterable[str]:
    """Each job fits its group, its batch divides over the ranks, and what it uses is there."""
    for name, job in settings.jobs.items():
        yield from _job(settings, name, job)


def _job(settings: Settings, name: str, job: JobSettings) -> Iterable[str]:
    try:
        group = settings.group_of(name)
    except ValueError as error:
        yield str(error)
        return
    if job.nodes > group.max:
        yield f"jobs.{name}.nodes: {job.nodes} is more than group {group.name!r} may have (max {group.max})"
    per_node = job.processes_per_node or group.instance.gpus
    try:
        job.trainer.accumulation(job.nodes * per_node)
    except ValueError as error:
        yield f"jobs.{name}.trainer.{error}"
    try:
        job.trainer.shards(job.nodes * per_node, per_node)
    except ValueError as error:
        yield f"jobs.{name}.trainer.{error}"
    if job.rendezvous == RENDEZVOUS_ETCD_V3 and settings.etcd.mode == "none":
        yield f"jobs.{name}.rendezvous: 'etcd-v3' needs etcd, and etcd.mode is 'none'; accepted: c10d"
    if job.transport == "efa" and not group.uses_efa:
        yield f"jobs.{name}.transport: 'efa', and group {group.name!r} ({group.instance_type}) has no EFA; accepted: tcp"
    if job.transport != "gloo" and (job.processes_per_node or 0) > group.instance.gpus:
        yield (
            f"jobs.{name}.processes_per_node: {job.processes_per_node} is more than the {group.instance.gpus} GPUs of "
            f"{group.instance_type}, and NCCL takes one rank for each; accepted: 1 to {group.instance.gpus}"
        )
    directory = job.trainer.checkpoint.directory
    if directory and not directory.startswith("s3://") and settings.storage.mode == "none":
        yield (
            f"jobs.{name}.trainer.checkpoint.directory: {directory!r} needs storage, and storage.mode is 'none'; "
            "accepted: fsx, existing"
        )


def teams(settings: Settings) -> Iterable[str]:
    """A job's team exists, and several namespaces share GPU nodes through a queue only."""
    for name, job in settings.jobs.items():
        if job.team is not None and job.team not in settings.teams:
            known = ", ".join(settings.teams) or "none is declared"
            yield f"jobs.{name}.team: {job.team!r} does not exist; accepted: {known}"
    for team in settings.teams:
        if team == settings.namespace_name:
            yield f"teams.{team}: is the name of the stack's own namespace (namespace_name); accepted: another name"
    if settings.teams and settings.queue.mode == "none":
        yield (
            f"queue.mode: 'none' with teams {', '.join(settings.teams)}: two half-placed jobs would hold each other up "
            "for ever; accepted: install, existing"
        )
    for group in settings.gpu_nodes:
        own = {team: wanted.nodes[group.name] for team, wanted in settings.teams.items() if group.name in wanted.nodes}
        if sum(own.values()) > group.max:
            told = " + ".join(f"{count} ({team})" for team, count in own.items())
            yield (
                f"teams: {told} nodes of group {group.name!r} are more than it may have (max {group.max}); "
                f"accepted: at most {group.max} in all"
            )
    for team, wanted in settings.teams.items():
        for name in wanted.nodes:
            if name not in {g.name for g in settings.gpu_nodes}:
                known = ", ".join(g.name for g in settings.gpu_nodes) or "none is declared"
                yield f"teams.{team}.nodes.{name}: no such group of gpu_nodes; accepted: {known}"


def queue(settings: Settings) -> Iterable[str]:
    """What is promised of a job's place, the queue can keep, and what runs the queue is there."""
    if settings.queue.mode == "none":
        return
    efa = {group.name for group in settings.gpu_nodes if group.uses_efa}
    for name, job in settings.jobs.items():
        used = {job.group} if job.group else {group.name for group in settings.gpu_nodes}
        near = settings.queue.topology_of(efa=bool(used & efa))
        if job.topology == "required" and near != "network":
            yield (
                f"jobs.{name}.topology: 'required', and the queue chooses its nodes without regard to the network "
                f"(queue.topology {settings.queue.topology!r}); accepted: preferred, none, or queue.topology 'network' "
                "with EFA nodes"
            )
    if settings.queue.mode == "install" and settings.training_operator.mode == "none":
        yield (
            "queue.mode: 'install' with training_operator.mode 'none': there would be no jobs to queue; accepted: none"
        )


def grace(settings: Settings) -> Iterable[str]:
    """A checkpoint can be saved between SIGTERM and SIGKILL, as far as a new file system's speed tells."""
    storage = settings.storage
    if storage.mode != "fsx" or storage.file_system_id is not None:
        return
    for name, job in settings.jobs.items():
        if not (job.trainer.checkpoint.directory or "").startswith(CHECKPOINT_MOUNT):
            continue
        needed = checkpoint_seconds(job.trainer.model, storage.capacity_gib, storage.throughput)
        if needed >= job.grace_seconds:
            size = checkpoint_bytes(MODEL_PRESETS[job.trainer.model].num_parameters) / 1e9
            yield (
                f"jobs.{name}.grace_seconds: {job.grace_seconds} is too short to save {size:.0f} GB of {job.trainer.model} "
                f"to {storage.capacity_gib} GiB of FSx for Lustre, which takes {needed:.0f} s at its very best; accepted: "
                f"more than {needed:.0f} (3600 at most), more storage.capacity_gib or storage.throughput"
            )


def checkpoint_seconds(model: str, capacity_gib: int, throughput: int) -> float:
    """Seconds in which a checkpoint of ``model`` is written at best.

    ``throughput``: MB/s for each TiB of an FSx for Lustre file system of ``capacity_gib``.
    """
    size = checkpoint_bytes(MODEL_PRESETS[model].num_parameters)
    return size / (max(throughput, LUSTRE_BURST_MBPS_PER_TIB) * 1e6 * capacity_gib / 1024)


def environment(settings: Settings) -> Iterable[str]:
    """No job's environment holds a secret, or a variable by which the operator tells torchrun what to do."""
    for name, job in settings.jobs.items():
        for variable, value in job.env.items():
            if _PLAIN_SECRETS.search(variable) or _TOKEN.match(value):
                yield (
                    f"jobs.{name}.env.{variable}: would stand in the job's object for everybody to read (its value is not "
                    "shown here); accepted: hugging_face.token or hugging_face.secret_arn for Hugging Face, rights of the "
                    "service account 'training' for AWS"
                )
            elif variable.startswith(_OPERATORS_PREFIX):
                yield (
                    f"jobs.{name}.env.{variable}: {value!r}; variables {_OPERATORS_PREFIX}* are set by the training operator, "
                    "from nodes, processes_per_node, rendezvous and max_restarts; accepted: these settings"
                )


def labels(settings: Settings) -> Iterable[str]:
    """No label of a job speaks for the platform: one of Kueue's would lead past the team's quota."""
    for name, job in settings.jobs.items():
        for label in job.labels:
            if _OTHERS_LABELS.match(label):
                yield f"jobs.{name}.labels: {label!r} is the platform's own; accepted: a domain of your own"


def mounts(settings: Settings) -> Iterable[str]:
    """No bucket is mounted over what a pod has anyway."""
    for name, mount in settings.storage.s3_mounts.items():
        path = mount.path.rstrip("/") + "/"
        for taken in _TAKEN_PATHS:
            if path.startswith(f"{taken}/") or f"{taken}/".startswith(path):
                yield (
                    f"storage.s3_mounts.{name}.path: {mount.path!r} would cover {taken}, which jobs need; accepted: another "
                    "path, such as /mnt/models"
                )
