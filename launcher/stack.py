"""Stacks: what a platform's stack file says and has made, and stacks of the launcher's own beside it.

Everything that Pulumi would write goes into a run folder: a copy of the project file that points at the checkout's
program, and copies of the stack files. So no tracked file is changed, the user's selected stack stays selected, and
several runs go side by side. State is in the user's own backend, under the same project.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import PROGRAM_NAME
from eks_fsdp.spec.settings import ImageSettings, JobSettings, Settings

from .errors import UserError, WaitError
from .image import Address
from .kube import Cluster, kubeconfig_from_environment, load_kubeconfig, parse_kubeconfig

if TYPE_CHECKING:
    from pulumi.automation import LocalWorkspace, Stack
    from pulumi.automation.events import EngineEvent

QUERY_SECONDS = 60.0
UP_SECONDS = 3600.0
GRACE_SECONDS = 20.0
"""For an interrupted engine to finish what is under way."""
MASK = "**********"
"""What pydantic shows of a secret."""
KEEP_SECRETS = ("encryptionsalt", "encryptedkey", "secretsprovider")


def find_checkout(start: Path | None = None) -> Path:
    """The folder with this project's Pulumi.yaml, at or above ``start``. Raises `UserError`."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        file = folder / "Pulumi.yaml"
        if file.is_file() and _yaml(file).get("name") == PROGRAM_NAME:
            return folder
    raise UserError(f"{here}: no Pulumi.yaml of project {PROGRAM_NAME!r} here or above; run this inside the checkout")


def stack_file(checkout: Path, stack: str) -> Path:
    """The stack's file. Raises `UserError` where there is none."""
    folder = checkout / str(_yaml(checkout / "Pulumi.yaml").get("stackConfigDir") or ".")
    file = folder / f"Pulumi.{stack}.yaml"
    if not file.is_file():
        known = sorted(f.name.removeprefix("Pulumi.").removesuffix(".yaml") for f in folder.glob("Pulumi.*.yaml"))
        raise UserError(f"stack {stack!r}: {file} does not exist; there is: {', '.join(known) or 'none'}")
    return file


def settings_of(content: Mapping[str, Any], source: str) -> Settings:
    """A stack file's settings. Raises `UserError`, one line for each problem."""
    config: dict[str, str] = {}
    secret: list[str] = []
    for key, value in (content.get("config") or {}).items():
        if isinstance(value, dict) and set(value) == {"secure"}:
            if key.startswith(f"{PROGRAM_NAME}:"):
                raise UserError(
                    f"{source}: {key} is encrypted as a whole, and the launcher decrypts nothing; accepted: the secret part "
                    "of it alone, by `pulumi config set --secret --path`"
                )
            continue
        shown = _without_secrets(value)
        config[key] = shown if isinstance(shown, str) else json.dumps(shown)
        if shown != value:
            secret.append(key)
    try:
        return Settings.from_config(config, secret)
    except SettingsError as error:
        raise UserError(f"{source}: {error}") from None


def read_settings(file: Path) -> Settings:
    """The settings of a stack file, without Pulumi. Raises `UserError`."""
    return settings_of(_yaml(file), str(file))


def with_settings(content: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A stack file's content with these settings in place of its own; other namespaces' keys stay."""
    before = content.get("config") or {}
    config = {k: v for k, v in before.items() if not k.startswith(f"{PROGRAM_NAME}:")}
    for key, value in settings.model_dump(mode="json", exclude_defaults=True).items():
        name = f"{PROGRAM_NAME}:{key}"
        # What is encrypted goes on as it is: nobody here knows what it says.
        config[name] = before[name] if MASK in json.dumps(value) and name in before else value
    return {**{k: content[k] for k in KEEP_SECRETS if k in content}, "config": config}


def _without_secrets(value: Any) -> Any:
    """A configuration value with `MASK` in place of what is encrypted in it."""
    if isinstance(value, dict):
        return MASK if set(value) == {"secure"} else {key: _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value


def _yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{file}: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: not a mapping")
    return content


@dataclass
class Engine:
    """Pulumi for one run: every stack that it touches has its file in ``folder``."""

    checkout: Path
    folder: Path
    on_step: Callable[[str], None] = lambda text: None
    """Told of each resource that the engine begins or ends, in one short line."""
    _workspace: LocalWorkspace | None = field(default=None, init=False)

    def stage(self, stack: str, content: Mapping[str, Any]) -> None:
        """Put a stack file into the run folder."""
        import yaml

        self.folder.mkdir(parents=True, exist_ok=True)
        project = _yaml(self.checkout / "Pulumi.yaml")
        main = self.checkout / str(project.get("main") or ".")
        project |= {"main": str(main.resolve()), "stackConfigDir": "."}
        options = project["runtime"].get("options", {}) if isinstance(project.get("runtime"), dict) else {}
        if "virtualenv" in options:
            options["virtualenv"] = str(self.checkout / options["virtualenv"])
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(project, sort_keys=False))
        file = self.folder / f"Pulumi.{stack}.yaml"
        file.write_text(yaml.safe_dump(dict(content), sort_keys=False))

    @property
    def workspace(self) -> LocalWorkspace:
        """The Automation API's workspace over the run folder. Raises `UserError` where there is no usable CLI."""
        if self._workspace is None:
            from pulumi.automation import LocalWorkspace
            from pulumi.automation.errors import InvalidVersionError

            if not (self.folder / "Pulumi.yaml").exists():
                raise UserError(f"{self.folder}: nothing is staged here")
            try:
                command = _command()
            except (OSError, subprocess.CalledProcessError, InvalidVersionError) as error:
                raise UserError(f"pulumi: not usable: {error}; put Pulumi's CLI (3.215 or later) on PATH") from None
            self._workspace = LocalWorkspace(work_dir=str(self.folder), pulumi_command=command)
        return self._workspace

    def outputs(self, stack: str, *, secrets: bool = True) -> dict[str, Any]:
        """A stack's outputs, secrets in plain text or left out. Raises `UserError`."""
        from pulumi.automation.errors import CommandError

        try:
            with _limit(self.workspace, QUERY_SECONDS):
                found = self.workspace.stack_outputs(stack)
        except CommandError as error:
            raise UserError(f"stack {stack!r}: {_error_line(str(error))}") from None
        return {name: output.value for name, output in found.items() if secrets or not output.secret}

    def exists(self, stack: str) -> bool:
        """Whether the backend knows the stack."""
        from pulumi.automation.errors import CommandError

        try:
            with _limit(self.workspace, QUERY_SECONDS):
                return any(s.name.split("/")[-1] == stack for s in self.workspace.list_stacks())
        except CommandError as error:
            raise UserError(f"pulumi: {_error_line(str(error))}") from None

    def up(self, stack: str, content: Mapping[str, Any], *, create: bool = False) -> dict[str, Any]:
        """``pulumi up`` of a stack with this stack file, made first where told. Returns its outputs."""
        self.stage(stack, content)
        if create and not self.exists(stack):
            self._quietly(stack, lambda: self.workspace.create_stack(stack))
        self._run(stack, "up", lambda s, seen: s.up(on_event=seen, color="never", suppress_progress=True))
        return self.outputs(stack)

    def refreshed_nodes(self, stack: str, group: str) -> int:
        """The node count of a GPU group in AWS, which the stack's state then has too. 0 where the stack has no such group.

        Raises `UserError`.
        """
        group_of_stack = f"**-gpu-{group}-nodes"
        self._run(
            stack,
            "refresh",
            lambda s, seen: s.refresh(
                target=[group_of_stack], on_event=seen, color="never", suppress_progress=True, show_secrets=False
            ),
        )
        state: dict[str, Any] = {}
        self._quietly(stack, lambda: state.update(self.workspace.export_stack(stack).deployment or {}))
        for resource in state.get("resources") or []:
            if resource["type"] == "aws:eks/nodeGroup:NodeGroup" and resource["urn"].endswith(group_of_stack[2:]):
                return int(resource["outputs"]["scalingConfig"]["desiredSize"])
        return 0

    def down(self, stack: str) -> None:
        """Destroy and remove a stack of the launcher's own, also one whose last update was broken off."""
        from pulumi.automation.errors import CommandError

        if not self.exists(stack):
            return
        # An update that was killed leaves its lock.
        with _limit(self.workspace, QUERY_SECONDS), contextlib.suppress(CommandError):
            self.workspace._run_pulumi_cmd_sync(["cancel", "--yes", stack])
        self._run(stack, "destroy", lambda s, seen: s.destroy(on_event=seen, color="never", suppress_progress=True))
        self._quietly(stack, lambda: self.workspace.remove_stack(stack, preserve_config=True))

    def _quietly(self, stack: str, act: Callable[[], object]) -> None:
        from pulumi.automation.errors import CommandError

        try:
            with _limit(self.workspace, QUERY_SECONDS):
                act()
        except CommandError as error:
            raise UserError(f"stack {stack!r}: {_error_line(str(error))}") from None

    def _run(self, stack: str, verb: str, act: Callable[[Stack, Callable[[EngineEvent], None]], object]) -> None:
        from pulumi.automation import Stack
        from pulumi.automation.errors import CommandError

        told = _Diagnostics(self.on_step)
        try:
            with _limit(self.workspace, UP_SECONDS):
                act(Stack.select(stack, self.workspace), told.see)
        except CommandError as error:
            (self.folder / f"{verb}.{stack}.log").write_text(str(error))
            lines = told.errors or [_error_line(str(error))]
            raise UserError(f"pulumi {verb} of stack {stack!r} failed:\n" + "\n".join(lines)) from None


class _Diagnostics:
    """Keeps the engine's own error lines and passes on what it does."""

    def __init__(self, on_step: Callable[[str], None]) -> None:
        self.errors: list[str] = []
        self._on_step = on_step

    def see(self, event: EngineEvent) -> None:
        """One event of the engine."""
        told = event.diagnostic_event
        if told is not None and told.severity in ("error", "info#err"):
            text = _plain(told.message).rstrip()
            where = str(told.urn).rsplit("::", 1)[-1] + ": " if told.urn else ""
            if text and text not in ("update failed", "preview failed"):
                self.errors.append(f"  {where}{text}")
        step = event.resource_pre_event or event.res_outputs_event
        if step is not None and str(getattr(step.metadata.op, "value", step.metadata.op)) not in ("same", "read"):
            done = "" if event.resource_pre_event else " done"
            op = str(getattr(step.metadata.op, "value", step.metadata.op))
            self._on_step(f"{op} {step.metadata.urn.rsplit('::', 1)[-1]}{done}")


def _plain(text: str) -> str:
    """Without the engine's colour marks (``<{%reset%}>``)."""
    import re

    return re.sub(r"<\{%[^%]*%\}>", "", text)


def _error_line(text: str) -> str:
    """The engine's last ``error:`` line, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["no message"])[-1]


def _command() -> Any:
    """A Pulumi CLI that an interrupt reaches in good order, and that no wait on it can hang for ever."""
    from pulumi.automation import CommandResult, PulumiCommand
    from pulumi.automation.errors import create_command_error

    if shutil.which("pulumi") is None:
        raise UserError('pulumi: not on PATH; install Pulumi\'s CLI, or: eval "$(eks-fsdp sandbox env)"')

    class Command(PulumiCommand):
        limit: float = QUERY_SECONDS

        def run(
            self,
            args: list[str],
            cwd: str,
            additional_env: Mapping[str, str],
            on_output: Callable[[str], Any] | None = None,
            on_error: Callable[[str], Any] | None = None,
        ) -> CommandResult:
            if "--non-interactive" not in args:
                args = ["--non-interactive", *args]
            env = {**os.environ, **additional_env, "PULUMI_AUTOMATION_API": "true"}
            # A session of its own: the terminal's Ctrl-C reaches the launcher alone, which ends things in order.
            with subprocess.Popen(
                [self.command, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=env,
                encoding="utf-8",
                start_new_session=True,
            ) as process:
                try:
                    out, err = process.communicate(timeout=self.limit)
                except subprocess.TimeoutExpired:
                    _end(process)
                    raise WaitError(f"waited {self.limit:.0f} s for: pulumi {' '.join(args[1:4])}") from None
                except BaseException:
                    _end(process)
                    raise
            if on_output:
                for line in out.splitlines():
                    on_output(line)
            if process.returncode:
                raise create_command_error(CommandResult(out, err, process.returncode))
            return CommandResult(out, err, process.returncode)

    return Command(skip_version_check=False)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask the engine to stop after what is under way, then end it and all that it started."""
    from .processes import descendants, kill_all

    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    timer = threading.Timer(GRACE_SECONDS, process.kill)
    timer.start()
    try:
        process.wait()
    finally:
        timer.cancel()
        kill_all([*family, *descendants(process.pid)])


class _limit:
    """Within the block, commands of the workspace may take ``seconds``."""

    def __init__(self, workspace: LocalWorkspace, seconds: float) -> None:
        self._command: Any = workspace.pulumi_command
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before, self._command.limit = self._command.limit, self._seconds

    def __exit__(self, *_: object) -> None:
        self._command.limit = self._before


@dataclass(frozen=True)
class Platform:
    """A stack as its file and its outputs describe it."""

    stack: str
    checkout: Path
    content: Mapping[str, Any]
    settings: Settings
    outputs: Mapping[str, Any]

    @property
    def namespace(self) -> str:
        """The jobs' namespace."""
        return str(self.outputs.get("namespace") or self.settings.namespace_name)

    def namespace_of(self, job: JobSettings) -> str:
        """The namespace that a job runs in: its team's, else the stack's own."""
        return job.team or self.namespace

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """The cluster's kubeconfig. Raises `UserError`."""
        value = self.outputs.get("kubeconfig")
        if value is None and self.settings.cluster.kubeconfig:
            return load_kubeconfig(self.settings.cluster.kubeconfig)
        if value is None:
            raise UserError(f"stack {self.stack!r} has no output 'kubeconfig': run `pulumi up -s {self.stack}` first")
        return parse_kubeconfig(value, f"output kubeconfig of stack {self.stack!r}")

    def cluster(self) -> Cluster:
        """Access to the cluster."""
        return Cluster(self.kubeconfig, source=f"stack {self.stack!r}")

    def with_jobs(self, kubeconfig: str, jobs: Mapping[str, JobSettings]) -> Settings:
        """Settings of a stack beside this one: the same cluster and image, these jobs. Raises `SettingsError`."""
        settings = self.settings.on_existing_cluster(kubeconfig, jobs)
        image = ImageSettings(**settings.image.model_dump(include={"repository", "tag", "digest"}))
        if image.repository is None and self.outputs.get("image"):
            # The platform's own repository: its address is known now.
            own = Address.parse(str(self.outputs["image"]))
            image = ImageSettings(repository=own.repository, tag=own.tag or image.tag, digest=own.digest or None)
        return settings.model_copy(update={"image": image})

    def deployed_nodes(self, group: str) -> int | None:
        """The node count that was last deployed for a GPU group; None where the outputs do not say."""
        for found in self.outputs.get("gpu_node_groups") or []:
            if found.get("name") == group:
                return int(found["desired"])
        return None

    def template(self, job: str | None) -> tuple[str, JobSettings]:
        """The named job of the stack, or its only one. Raises `UserError`."""
        jobs = self.settings.jobs
        if job is None and len(jobs) == 1:
            job = next(iter(jobs))
        if job is None or job not in jobs:
            known = ", ".join(jobs) or "none"
            what = f"job {job!r} is not in" if job else "say with --job which job of"
            raise UserError(f"{what} stack {self.stack!r}; jobs: {known}")
        return job, jobs[job]


def open_platform(stack: str, engine: Engine) -> Platform:
    """Read a stack's file and outputs. Raises `UserError`."""
    file = stack_file(engine.checkout, stack)
    content = _yaml(file)
    settings = settings_of(content, str(file))
    engine.stage(stack, content)
    return Platform(stack, engine.checkout, content, settings, engine.outputs(stack))


def selected_stack(checkout: Path) -> str | None:
    """The stack that the user's Pulumi has selected; None where there is none, or no CLI."""
    try:
        found = subprocess.run(
            ["pulumi", "stack", "--show-name", "--non-interactive"],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip().split("/")[-1] or None if found.returncode == 0 else None


def cluster_without_stack() -> Cluster:
    """The cluster of KUBECONFIG. Raises `UserError` where there is none."""
    path = kubeconfig_from_environment()
    if path is None:
        raise UserError("no stack is selected and KUBECONFIG names no file: pass -s STACK, or set KUBECONFIG")
    return Cluster.from_file(path)
