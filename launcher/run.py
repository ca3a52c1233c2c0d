"""One job: submitted in a stack of its own beside the platform's, watched, recorded."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import RUN_LABEL
from eks_fsdp.spec.records import RunRecord
from eks_fsdp.spec.settings import JobSettings

from . import runfolder
from .aws import Aws
from .errors import UserError, WaitError
from .health import health_beside, too_few_nodes
from .kube import ApiError, Cluster
from .live import console, live_line, progress_text, restarts_text
from .stack import Engine, find_checkout, open_platform, with_settings
from .sweep import delete_jobs, gpus_of, resource_of, separate_checkpoints
from .tracker import Asked
from .watch import Limits, Watch


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What the user asked for."""

    stack: str
    job: str | None = None
    nodes: int | None = None
    steps: int | None = None
    changes: Sequence[str] = ()
    """``KEY=VALUE``, the key dotted from the job's settings down."""
    out: Path | None = None
    detach: bool = False
    limits: Limits = field(default_factory=Limits)


def run_stack(platform: str, identity: str) -> str:
    """Name of the stack of one run."""
    return f"{platform}-run-{identity}"


def is_own_run(identity: str) -> bool:
    """Whether a run was made by `run`, so that there is a stack of its name."""
    return re.fullmatch(r"r[0-9a-f]{6}", identity) is not None


def changed_job(template: JobSettings, request: RunRequest, identity: str) -> JobSettings:
    """The template with the request's changes. Raises `UserError`."""
    value: dict[str, Any] = {**template.model_dump(), "run": identity}
    separate_checkpoints(value["trainer"], identity)
    pairs = [split_change(change) for change in request.changes]
    if request.nodes is not None:
        pairs.append(("nodes", request.nodes))
    if request.steps is not None:
        pairs.append(("trainer.steps", request.steps))
    for key, new in pairs:
        *path, last = key.split(".")
        at = value
        for part in path:
            nested = at.setdefault(part, {})
            if not isinstance(nested, dict):
                raise UserError(f"--set {key}: {part!r} has no settings below it")
            at = nested
        at[last] = new
    try:
        return JobSettings.parse(value, root="job")
    except SettingsError as error:
        raise UserError(str(error)) from None


def split_change(text: str) -> tuple[str, object]:
    """``trainer.seed=1`` as its key and value (JSON, else text). Raises `UserError`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--set {text!r}: accepted: KEY=VALUE, such as trainer.seed=1")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def run_job(request: RunRequest) -> RunRecord | None:
    """Submit, watch, record, clean up. None where the run was left to itself. Raises `UserError`."""
    identity = f"r{secrets.token_hex(3)}"
    out = request.out or runfolder.default_folder("run", request.stack)
    engine = Engine(find_checkout(), (out / "pulumi").resolve())
    stack = run_stack(request.stack, identity)
    with runfolder.gone_if_refused(out), live_line(f"Stack {request.stack}"):
        out.mkdir(parents=True, exist_ok=True)
        platform = open_platform(request.stack, engine)
        name, template = platform.template(request.job)
        settings = changed_job(template, request, identity)
        kubeconfig = engine.folder / "kubeconfig"
        try:
            whole = platform.with_jobs(str(kubeconfig), {name: settings})
        except SettingsError as error:
            raise UserError(str(error)) from None
        runfolder.write_kubeconfig(kubeconfig, platform.kubeconfig)
        cluster, namespace = platform.cluster(), platform.namespace_of(settings)
        # A job that names no group where there are several was refused above.
        group = next((group for group in platform.settings.gpu_nodes if settings.group in (None, group.name)), None)
        aws = Aws(platform.settings.region, attempts=1)
        lacking = too_few_nodes(platform, cluster, group, settings.nodes, aws, datetime.now(UTC)) if group else None
    if lacking:
        console.print(Text(lacking, "yellow"), soft_wrap=True)
    resource = None
    try:
        title = f"{name} on {settings.nodes} node{'s' if settings.nodes > 1 else ''}"
        with health_beside(platform, cluster) as health, live_line(title) as show:
            if lacking and group:
                # It was said already why these are not there; the line that lives counts them.
                health.expect(group.name, settings.nodes)
            engine.on_step = lambda text: show(f"submitting  {text}")
            outputs = engine.up(stack, with_settings(platform.content, whole), create=True)
            resource = resource_of(outputs, name)
            if request.detach:
                # Without the stack's name `stop` would have to leave the run's own stack behind.
                console.print(f"Submitted [bold]{resource}[/]. Go on with:", soft_wrap=True)
                console.print(f"  eks-fsdp logs -f {resource} -s {request.stack}", soft_wrap=True)
                console.print(f"  eks-fsdp stop {resource} -s {request.stack}", soft_wrap=True)
                return None
            asked = Asked(
                job=resource,
                run=identity,
                nodes=settings.nodes,
                gpus_per_node=gpus_of(platform.settings, settings),
                settings=settings,
            )
            record = Watch(
                cluster,
                namespace,
                asked,
                limits=request.limits,
                on_progress=lambda progress: show(progress_text(progress, health.text)),
                log_folder=out / "logs",
            ).run()
        runfolder.write_text(out / "record.json", json.dumps(record.model_dump(), indent=1) + "\n")
    finally:
        if not (request.detach and resource):
            with live_line("Cleaning up") as show:
                engine.on_step = show
                try:
                    _end_job(cluster, namespace, identity)
                    engine.down(stack)
                except UserError as error:
                    _left_behind(stack, engine, str(error))
                except KeyboardInterrupt:
                    _left_behind(stack, engine, "interrupted again")
                    raise
    told = restarts_text(record.restarts)
    style = "green" if record.condition == "Succeeded" else "red"
    tail = "; ".join(filter(None, (record.message, f"restarts: {told}" if told else "")))
    console.print(Text.assemble((record.condition, style), f"  {tail}" if tail else ""), soft_wrap=True)
    console.print(f"Record and logs: {out}")
    return record


def _end_job(cluster: Cluster, namespace: str, identity: str) -> None:
    """Delete the run's job. Where that fails or its pods stay, say so: the stack can go all the same.

    Found by its label: a submission that was broken off has made the job and not told its name, and the stack's end
    does not delete it.
    """
    selector = f"{RUN_LABEL}={identity}"
    try:
        delete_jobs(cluster, namespace, selector)
    except (ApiError, WaitError) as error:
        console.print(Text.assemble(("left behind: ", "yellow"), f"jobs with {selector}: {error}"), soft_wrap=True)


def _left_behind(stack: str, engine: Engine, why: str) -> None:
    console.print(Text.assemble(("left behind: ", "yellow"), f"stack {stack}: {why}"), soft_wrap=True)
    console.print(Text(f"  pulumi -C {shlex.quote(str(engine.folder))} destroy -s {stack} --remove"), soft_wrap=True)
