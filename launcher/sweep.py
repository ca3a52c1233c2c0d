"""A sweep: one PyTorchJob for each node count, watched, judged and reported; everything it made goes with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import SWEEP_LABEL
from eks_fsdp.spec.records import RunRecord
from eks_fsdp.spec.settings import JobSettings, Settings

from . import objects, runfolder
from .errors import UserError, WaitError
from .health import HealthWatch, health_beside
from .kube import ApiError, Cluster
from .live import console, live_line, progress_text
from .nodes import enough_nodes
from .runfolder import SweepPlan
from .stack import Engine, Platform, find_checkout, open_platform, with_settings
from .tracker import Asked
from .verdict import Mode, reasons
from .watch import Limits, Watch, wait_until_gone

GONE_SECONDS = 150.0
"""Longer than the pods' termination grace."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for."""

    stack: str
    nodes: Sequence[int]
    job: str | None = None
    mode: Mode = "strong"
    steps: int | None = None
    warmup: int = 5
    out: Path | None = None
    overwrite: bool = False
    limits: Limits = field(default_factory=Limits)


def point_settings(
    template: JobSettings, nodes: int, *, fewest: int, mode: Mode, steps: int | None, run: str, sweep: str
) -> JobSettings:
    """The template at ``nodes`` nodes.

    strong: the global batch stays and accumulation follows; weak: it grows with the nodes from the template's at
    ``fewest`` nodes.
    """
    trainer = template.trainer.model_dump()
    if steps is not None:
        trainer["steps"] = steps
    separate_checkpoints(trainer, f"{run}-n{nodes}")
    if mode == "weak":
        trainer["global_batch_size"] = template.trainer.global_batch_size * nodes // fewest
    return JobSettings.parse(
        {
            **template.model_dump(),
            "nodes": nodes,
            "run": run,
            "labels": {**template.labels, SWEEP_LABEL: sweep},
            "trainer": trainer,
        },
        root=f"nodes={nodes}",
    )


def separate_checkpoints(trainer: dict[str, Any], suffix: str) -> None:
    """Give a trainer configuration checkpoints of its own: it must not resume from another run's."""
    folder = trainer["checkpoint"]["directory"]
    if folder:
        trainer["checkpoint"] = {**trainer["checkpoint"], "directory": f"{folder.rstrip('/')}-{suffix}"}


def plan_jobs(platform: Platform, request: Request, job: str, identity: str) -> dict[int, tuple[str, JobSettings]]:
    """Name and settings of each point's job, by nodes; all are checked before the first starts. Raises `UserError`."""
    nodes = sorted(set(request.nodes))
    if not nodes or nodes[0] < 1:
        raise UserError(f"--nodes: {','.join(map(str, request.nodes))!r}; accepted: node counts from 1, such as 1,2,4")
    template = platform.settings.jobs[job]
    jobs: dict[int, tuple[str, JobSettings]] = {}
    for count in nodes:
        # The job's name stays short enough for its pods' names to be DNS labels.
        name = f"{job[:24]}-n{count}"
        try:
            jobs[count] = (
                name,
                point_settings(
                    template,
                    count,
                    fewest=nodes[0],
                    mode=request.mode,
                    steps=request.steps,
                    run=identity,
                    sweep=identity,
                ),
            )
            platform.with_jobs("kubeconfig", {name: jobs[count][1]})
        except SettingsError as error:
            raise UserError(f"--nodes {count}: {error}") from None
    return jobs


def gpus_of(settings: Settings, job: JobSettings) -> int:
    """GPUs of one node of the group that the job runs on."""
    groups = [group for group in settings.gpu_nodes if job.group in (None, group.name)]
    return groups[0].instance.gpus


class Sweep:
    """One sweep, from plan to records."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.id = f"s{secrets.token_hex(3)}"
        self.out = request.out or runfolder.default_folder("sweep", request.stack)
        self.stack = f"{request.stack}-sweep-{self.id}"
        self.namespace = ""
        """Of the jobs, once the platform is known."""
        self.records: list[RunRecord] = []
        self._health: HealthWatch | None = None

    @property
    def nodes_text(self) -> str:
        """Which groups lack nodes."""
        return self._health.text if self._health else ""

    def run(self) -> Path:
        """Sweep; returns the folder with the records. A point that fails does not end the sweep. Raises `UserError`."""
        checkout = find_checkout()
        engine = Engine(checkout, (self.out / "pulumi").resolve())
        with runfolder.gone_if_refused(self.out), live_line(f"Stack {self.request.stack}"):
            runfolder.open_folder(self.out, overwrite=self.request.overwrite)
            platform = open_platform(self.request.stack, engine)
            job, template = platform.template(self.request.job)
            self.namespace = platform.namespace_of(template)
            jobs = plan_jobs(platform, self.request, job, self.id)
            cluster = platform.cluster()
        nodes = sorted(jobs)
        runfolder.write_plan(
            self.out,
            SweepPlan(
                name=self.out.name,
                id=self.id,
                stack=self.request.stack,
                job=job,
                mode=self.request.mode,
                nodes=nodes,
                warmup=self.request.warmup,
                created=time.time(),
            ),
        )
        console.print(
            f"Sweep [bold]{self.out.name}[/]: job {job} on {', '.join(map(str, nodes))} nodes, "
            f"{jobs[nodes[0]][1].trainer.steps} steps, {self.request.mode} scaling"
        )
        with (
            health_beside(platform, cluster) as self._health,
            scaled_group(engine, platform, jobs[nodes[-1]][1], nodes[-1], self._health),
            self._own_stack(engine, cluster),
        ):
            self._points(engine, platform, cluster, jobs)
        return self.out

    def _points(
        self, engine: Engine, platform: Platform, cluster: Cluster, jobs: dict[int, tuple[str, JobSettings]]
    ) -> None:
        kubeconfig = engine.folder / "kubeconfig"
        runfolder.write_kubeconfig(kubeconfig, platform.kubeconfig)
        submitted: dict[str, JobSettings] = {}
        for number, (count, (name, settings)) in enumerate(sorted(jobs.items()), start=1):
            wanted = {**submitted, name: settings}
            content = with_settings(platform.content, platform.with_jobs(str(kubeconfig), wanted))
            asked = Asked(
                job=f"{name}-{self.id}",
                run=self.id,
                nodes=count,
                gpus_per_node=gpus_of(platform.settings, settings),
                settings=settings,
            )
            title = f"[{number}/{len(jobs)}] {count} node{'s' if count > 1 else ''}"
            try:
                with live_line(title) as show:
                    show("submitting")
                    engine.on_step = lambda text, show=show: show(f"submitting  {text}")  # type: ignore[misc]
                    outputs = engine.up(self.stack, content, create=True)
                    submitted = wanted
                    record = watch_job(cluster, platform, asked, outputs, name, self, show)
            except (UserError, ApiError) as error:
                record = failed_record(asked, str(error))
            self.records.append(record)
            runfolder.write_record(self.out, number, record)
            _tell(title, record, self.request.warmup)

    @contextmanager
    def _own_stack(self, engine: Engine, cluster: Cluster) -> Iterator[None]:
        try:
            yield
        finally:
            engine.on_step = lambda text: None
            try:
                self._clean_up(engine, cluster)
            except KeyboardInterrupt:
                _left_behind(f"stack {self.stack}, and jobs with the label {SWEEP_LABEL}={self.id}: interrupted again")
                raise

    def _clean_up(self, engine: Engine, cluster: Cluster) -> None:
        with live_line("Cleaning up") as show:
            show("jobs")
            try:
                delete_jobs(cluster, self.namespace, f"{SWEEP_LABEL}={self.id}")
            except (ApiError, WaitError) as error:
                _left_behind(f"jobs with the label {SWEEP_LABEL}={self.id}: {error}")
            show(f"stack {self.stack}")
            try:
                engine.down(self.stack)
            except UserError as error:
                _left_behind(f"stack {self.stack}: {error}")


def watch_job(
    cluster: Cluster, platform: Platform, asked: Asked, outputs: dict[str, Any], name: str, sweep: Sweep, show: Any
) -> RunRecord:
    """Watch a job that was just submitted, by the resource name in the stack's outputs."""
    resource = resource_of(outputs, name)
    return Watch(
        cluster,
        sweep.namespace,
        replace(asked, job=resource),
        limits=sweep.request.limits,
        on_progress=lambda progress: show(progress_text(progress, sweep.nodes_text)),
        log_folder=sweep.out / "logs" / resource,
    ).run()


def resource_of(outputs: Mapping[str, Any], name: str) -> str:
    """Name of the PyTorchJob behind a stack's job. Raises `UserError`."""
    try:
        return str(outputs["jobs"][name]["resource"])
    except (KeyError, TypeError):
        raise UserError(f"the stack's output 'jobs' does not name {name!r}") from None


def failed_record(asked: Asked, message: str) -> RunRecord:
    """The record of a point that never became a job."""
    return RunRecord(
        job=asked.job,
        run=asked.run,
        nodes_asked=asked.nodes,
        gpus_per_node=asked.gpus_per_node,
        processes_per_node=asked.processes_per_node,
        transport=asked.settings.transport if asked.settings else "unknown",
        condition="Failed",
        message=message,
        settings=asked.settings,
    )


def delete_jobs(cluster: Cluster, namespace: str, selector: str) -> list[str]:
    """Delete the PyTorchJobs that ``selector`` finds, and wait for their pods to go. Returns their names."""
    names = [objects.name_of(job) for job in cluster.jobs(namespace, selector)]
    for name in names:
        cluster.delete_job(namespace, name)
    for name in names:
        wait_until_gone(cluster, namespace, name, GONE_SECONDS)
    return names


@contextmanager
def scaled_group(
    engine: Engine, platform: Platform, job: JobSettings, needed: int, health: HealthWatch | None = None
) -> Iterator[None]:
    """Within the block the job's GPU group has at least ``needed`` nodes; after it, one that was raised is at `idle`.

    ``health`` is told of the change, and says meanwhile how many nodes are Ready.
    """
    settings = platform.settings
    groups = [group for group in settings.gpu_nodes if job.group in (None, group.name)]
    if len(groups) != 1 or settings.cluster.mode == "existing":
        # Somebody else's cluster: its nodes are not ours to count.
        yield
        return
    group = groups[0]
    if enough_nodes(engine, platform, group, needed):
        yield
        return

    def content(desired: int) -> dict[str, Any]:
        changed = group.model_copy(update={"desired": desired})
        others = [changed if g.name == group.name else g for g in settings.gpu_nodes]
        return with_settings(platform.content, settings.model_copy(update={"gpu_nodes": others}))

    def scale(desired: int) -> None:
        with live_line(f"{group.name}: {desired} x {group.instance_type}") as show:
            if health is not None:
                health.expect(group.name, desired)
            engine.on_step = lambda text: show("  ".join(filter(None, (text, health.text if health else ""))))
            engine.up(platform.stack, content(desired))

    try:
        scale(needed)
        yield
    finally:
        idle = max(group.idle, group.min)
        try:
            scale(idle)
        except BaseException:
            # These nodes cost money until somebody reads this.
            _left_behind(
                f"up to {needed} x {group.instance_type} in group {group.name}, which should be at {idle}: "
                f"`pulumi up -s {platform.stack}` sets it to what the stack's file says ({group.desired})"
            )
            raise


def _left_behind(what: str) -> None:
    from rich.text import Text

    console.print(Text.assemble(("left behind: ", "yellow"), what), soft_wrap=True)


def _tell(title: str, record: RunRecord, warmup: int) -> None:
    from rich.text import Text

    why = reasons(record, warmup)
    if not why:
        last = record.steps[-1]
        text = Text.assemble(
            (f"{title}  ", "bold"), ("accepted", "green"), f"  loss {last.loss:.4f} at step {last.step}"
        )
    else:
        text = Text.assemble((f"{title}  ", "bold"), ("refused", "yellow"), f"  {'; '.join(why)}")
    console.print(text, soft_wrap=True)
