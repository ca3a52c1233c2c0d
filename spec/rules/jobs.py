"""Rules of jobs and teams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eks_fsdp.spec.names import RENDEZVOUS_ETCD_V3

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import JobSettings, Settings


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
    try:
        job.trainer.accumulation(job.nodes * (job.processes_per_node or group.instance.gpus))
    except ValueError as error:
        yield f"jobs.{name}.trainer.{error}"
    if job.rendezvous == RENDEZVOUS_ETCD_V3 and settings.etcd.mode == "none":
        yield f"jobs.{name}.rendezvous: 'etcd-v3' needs etcd, and etcd.mode is 'none'; accepted: c10d"
    if job.transport == "efa" and not group.uses_efa:
        yield f"jobs.{name}.transport: 'efa', and group {group.name!r} ({group.instance_type}) has no EFA; accepted: tcp"
    directory = job.trainer.checkpoint.directory
    if directory and settings.storage.mode == "none":
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
        for group in wanted.nodes:
            if group not in {g.name for g in settings.gpu_nodes}:
                known = ", ".join(g.name for g in settings.gpu_nodes) or "none is declared"
                yield f"teams.{team}.nodes.{group}: no such group of gpu_nodes; accepted: {known}"


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
