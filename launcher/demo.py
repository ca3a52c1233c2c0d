"""``eks-fsdp demo``: from nothing to a scaling chart on this machine, and back to nothing.

It does what a user would type, as commands of their own, and shows how each goes. Whatever happens, everything that it
started is ended before it returns.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from rich.text import Text

from .errors import UserError, WaitError
from .kube import Cluster
from .live import Line, console, live_line, progress_text
from .processes import adopt_orphans, descendants, end_descendants, kill_all
from .runfolder import seconds_text
from .stack import find_checkout

STACK = "sandbox"
NODES = "1,2,4"
SWEEP_STEPS = 30
SANDBOX_SECONDS = 180.0
UP_SECONDS = 900.0
FIRST_JOB_SECONDS = 600.0
SWEEP_SECONDS = 1800.0
DESTROY_SECONDS = 300.0
DOWN_SECONDS = 60.0
QUERY_SECONDS = 60.0
INTERRUPT_SECONDS = 6.0
"""For an interrupted demo's sandbox to go in good order; then it is killed."""
STEPS = 5

_OPERATION = re.compile(r"^\s*[+~\-><=@]+\s+(?P<type>\S+)\s+(?P<name>\S+)\s+(?P<what>\w[\w ]*?)\s*(\(|$)")


class Demo:
    """One demonstration."""

    def __init__(self, folder: Path, out: Path, *, keep: bool) -> None:
        self._checkout = find_checkout()
        self._folder = folder.absolute()
        self._out = out
        self._keep = keep
        self._environment = dict(os.environ)
        self._began = time.monotonic()
        self._before = self._git_status()
        self._started = False

    def run(self) -> None:
        """All the steps. Raises `UserError`, with everything ended that was started."""
        if self._sandbox_lives():
            raise UserError(
                f"a sandbox is up in {self._folder}: `eks-fsdp sandbox down --dir {self._folder}`, or another --dir"
            )
        adopt_orphans()
        kept = False
        try:
            self._steps()
            kept = self._keep
        except BaseException:
            # A second Ctrl-C while things are being ended would leave some of them.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise
        finally:
            if not kept:
                self._end_everything()

    def _steps(self) -> None:
        self._step(1, "Sandbox: stand-in AWS, a real control plane, nodes")
        self._started = True
        try:
            self._command("sandbox up", [*self._me, "sandbox", "up", "--dir", str(self._folder)], SANDBOX_SECONDS)
        except WaitError:
            raise
        except UserError:
            # It has ended what it had started, and what is in the folder is somebody else's, or its logs.
            self._started = False
            raise
        self._environment = self._sandbox_environment()

        self._step(2, f"pulumi up -s {STACK}: network, cluster, nodes, operator, etcd, monitoring, a job")
        self._make_stack()
        self._pulumi("pulumi up", ["up", "--yes", "--skip-preview"], UP_SECONDS)
        self._first_job()

        self._step(3, f"Sweep: {NODES.replace(',', ', ')} nodes, each point a PyTorchJob")
        sweep = [
            "sweep",
            "-s",
            STACK,
            "--nodes",
            NODES,
            "--steps",
            str(SWEEP_STEPS),
            "--out",
            str(self._out),
            "--overwrite",
            "--pending-timeout",
            "120",
        ]
        self._command("sweep", [*self._me, *sweep], SWEEP_SECONDS, shown=True)
        self._check_points()
        if self._keep:
            self._how_to_go_on()
            return

        self._step(4, "pulumi destroy")
        self._pulumi("pulumi destroy", ["destroy", "--yes", "--skip-preview"], DESTROY_SECONDS)
        self._check_empty()

        self._step(5, "Sandbox down")
        self._command("sandbox down", [*self._me, "sandbox", "down", "--dir", str(self._folder)], DOWN_SECONDS)
        self._check_nothing_left()
        self._started = False
        console.print(
            f"\nDone in {seconds_text(time.monotonic() - self._began)}. Open [bold]{self._out}/scaling.html[/]."
        )

    @property
    def _me(self) -> list[str]:
        return [sys.executable, "-m", "eks_fsdp.launcher.cli"]

    def _step(self, number: int, title: str) -> None:
        passed = seconds_text(time.monotonic() - self._began)
        console.print(Text.assemble((f"\n[{number}/{STEPS}] ", "bold cyan"), (title, "bold"), (f"  ({passed})", "dim")))

    def _done(self, what: str, seconds: float) -> None:
        console.print(Text.assemble(("  ✓ ", "green"), what, (f"  {seconds:.1f} s", "dim")), soft_wrap=True)

    def _spawn(
        self, command: Sequence[str], *, shown: bool = False, folder: Path | None = None
    ) -> subprocess.Popen[str]:
        # A session of its own, so that the terminal's Ctrl-C reaches the demo alone, which then ends things in order.
        return subprocess.Popen(
            command,
            cwd=folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _command(
        self,
        title: str,
        command: Sequence[str],
        limit: float,
        *,
        shown: bool = False,
        folder: Path | None = None,
        on_line: Callable[[str, Line], None] = lambda line, show: show(line),
    ) -> list[str]:
        """Run a command to its end, its last line shown as it goes. Raises `UserError` where it fails.

        ``limit`` is in seconds; ``folder`` is where it runs, by default the current one, as results are named by it.
        """
        began = time.monotonic()
        process = self._spawn(command, shown=shown, folder=folder)
        lines: list[str] = []
        try:
            if shown:
                process.wait(limit)
            else:
                with live_line(f"  {title}") as show:
                    reader = threading.Thread(
                        target=_read, args=(process.stdout, lines, lambda line: on_line(line, show)), daemon=True
                    )
                    reader.start()
                    process.wait(limit)
                    # What the command left running may hold the pipe open.
                    reader.join(2)
        except subprocess.TimeoutExpired:
            raise WaitError(f"waited {limit:.0f} s for: {title}; last: {lines[-1] if lines else 'nothing'}") from None
        finally:
            if process.poll() is None:
                _end(process)
        if process.returncode:
            tail = "\n".join(f"  {line}" for line in _telling(lines))
            raise UserError(f"{title} failed (exit code {process.returncode})" + (f":\n{tail}" if tail else ""))
        if not shown:
            self._done(title, time.monotonic() - began)
        return lines

    def _ask(
        self, title: str, command: Sequence[str], limit: float = QUERY_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """What a short command says, run in the checkout. Raises `WaitError` after ``limit`` seconds."""
        try:
            return subprocess.run(
                command,
                cwd=self._checkout,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise WaitError(f"waited {limit:.0f} s for: {title}") from None

    def _sandbox_lives(self) -> bool:
        if not self._folder.exists():
            return False
        told = self._ask("sandbox status", [*self._me, "sandbox", "status", "--json", "--dir", str(self._folder)])
        try:
            return bool(json.loads(told.stdout)["state"] != "down")
        except (ValueError, KeyError):
            return False

    def _sandbox_environment(self) -> dict[str, str]:
        """What ``eval "$(eks-fsdp sandbox env)"`` sets."""
        found = self._ask("sandbox env", [*self._me, "sandbox", "env", "--dir", str(self._folder)])
        if found.returncode:
            raise UserError(f"sandbox env failed: {found.stderr.strip()}")
        return {**os.environ, **exports(found.stdout)}

    def _pulumi(self, title: str, arguments: Sequence[str], limit: float) -> None:
        done = 0

        def tell(line: str, show: Line) -> None:
            nonlocal done
            found = _OPERATION.match(line)
            if found:
                done += found["what"] in ("created", "updated", "deleted", "replaced")
                show(f"resources: {done} done, {found['what']} {found['name']}")

        flags = ["--stack", STACK, "--non-interactive", "--color", "never", "--suppress-outputs"]
        pulumi = shutil.which("pulumi", path=self._environment.get("PATH"))
        if pulumi is None:
            raise UserError("pulumi: not on the sandbox's PATH")
        self._command(title, [pulumi, *arguments, *flags], limit, folder=self._checkout, on_line=tell)

    def _make_stack(self) -> None:
        command = ["pulumi", "stack", "init", STACK, "--no-select", "--non-interactive"]
        made = self._ask("pulumi stack init", command)
        if made.returncode and "already exists" not in made.stderr:
            raise UserError(f"pulumi stack init failed: {made.stderr.strip()}")

    def _cluster(self) -> Cluster:
        path = self._environment.get("KUBECONFIG")
        if not path:
            raise UserError("the sandbox's environment has no KUBECONFIG")
        return Cluster.from_file(path)

    def _first_job(self) -> None:
        """Wait for the job that `pulumi up` submitted."""
        from .stack import Engine, open_platform
        from .sweep import gpus_of, resource_of
        from .tracker import Asked
        from .watch import Limits, Watch

        began = time.monotonic()
        os.environ.update(self._environment)
        engine = Engine(self._checkout, (self._out / "pulumi-first").resolve())
        platform = open_platform(STACK, engine)
        cluster = self._cluster()
        for name, job in platform.settings.jobs.items():
            title = f"  job {name}"
            asked = Asked(
                job=resource_of(platform.outputs, name),
                run=job.run,
                nodes=job.nodes,
                gpus_per_node=gpus_of(platform.settings, job),
                settings=job,
            )
            with live_line(title) as show:
                record = Watch(
                    cluster,
                    platform.namespace,
                    asked,
                    limits=Limits(pending=FIRST_JOB_SECONDS / 2, silent=FIRST_JOB_SECONDS / 2),
                    on_progress=lambda progress: show(progress_text(progress)),
                ).run()
            if record.condition != "Succeeded":
                raise UserError(f"job {name}: {record.condition}: {record.message}")
            loss = f", loss {record.steps[0].loss:.3f} to {record.steps[-1].loss:.3f}" if record.steps else ""
            self._done(
                f"job {name}: {len(record.steps)} steps on {_count(len(record.nodes_seen), 'node')}{loss}",
                time.monotonic() - began,
            )
        shutil.rmtree(engine.folder, ignore_errors=True)

    def _check_points(self) -> None:
        from eks_fsdp.spec.records import SweepReport

        report = SweepReport.model_validate_json((self._out / "scaling.json").read_text())
        refused = [point for point in report.points if not point.accepted]
        if refused:
            told = "; ".join(f"{point.nodes} nodes: {', '.join(point.reasons)}" for point in refused)
            raise UserError(f"the sweep has refused points: {told}")

    def _how_to_go_on(self) -> None:
        me = "eks-fsdp"
        # The virtual environment need not be active in the user's shell; `sandbox env` puts it on PATH.
        first = shlex.quote(str(Path(sys.executable).with_name(me)))
        folder = shlex.quote(str(self._folder))
        console.print(
            f"\nEverything stays up. In a shell at {self._checkout}:\n"
            f'  eval "$({first} sandbox env --dir {folder})"\n'
            f"  pulumi up -s {STACK}          # change stacks/Pulumi.{STACK}.yaml first, or see that nothing changes\n"
            f"  kubectl get nodes,pods -A\n"
            f"  {me} status -s {STACK}\n"
            f"  {me} run -s {STACK} --detach && {me} logs -f -s {STACK}\n"
            f"  {me} sandbox down --dir {folder}",
            soft_wrap=True,
            markup=False,
        )

    def _check_empty(self) -> None:
        """The stand-in account and the cluster hold nothing any more."""
        self._command(
            "account and cluster are empty",
            [*self._me, "sandbox", "status", "--dir", str(self._folder), "--empty"],
            SANDBOX_SECONDS,
        )

    def _check_nothing_left(self) -> None:
        deadline = time.monotonic() + 5
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.1)
        if left:
            raise UserError(f"processes are left: {', '.join(map(str, left))}")
        after = self._git_status()
        if after != self._before:
            raise UserError(f"git status changed:\n{after}")
        self._done("no process left, git status as before", 0.0)

    def _git_status(self) -> str:
        try:
            return self._ask("git status", ["git", "status", "--porcelain"]).stdout
        except (OSError, WaitError):
            return ""

    def _end_everything(self) -> None:
        if not self._started:
            return
        with live_line("Ending what was started"):
            self._down()
            left = end_descendants(grace_seconds=2)
            # All that used it is gone: what is left of it, if anything, are files.
            if self._folder.exists():
                self._down()
        if left:
            console.print(f"[red]still there:[/] processes {', '.join(map(str, left))}")

    def _down(self) -> None:
        command = [*self._me, "sandbox", "down", "--dir", str(self._folder)]
        with suppress(OSError), self._spawn(command) as down:
            try:
                down.communicate(timeout=INTERRUPT_SECONDS)
            except subprocess.TimeoutExpired:
                down.kill()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def exports(script: str) -> dict[str, str]:
    """Variables that a shell script of ``export NAME=VALUE`` lines sets; ``$PATH`` and its like are expanded."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        for word in words[1:] if words[:1] == ["export"] else []:
            name, equals, value = word.partition("=")
            if equals:
                found[name] = os.path.expandvars(value)
    return found


def _read(stream: IO[str] | None, lines: list[str], tell: Callable[[str], None]) -> None:
    for line in stream or ():
        text = line.rstrip()
        if text:
            lines.append(text)
            tell(text)


def _telling(lines: Sequence[str]) -> list[str]:
    """The lines that say why a command failed: its errors and what follows the word Diagnostics, else its last lines."""
    for number, line in enumerate(lines):
        if line.strip() == "Diagnostics:":
            return list(lines[number + 1 :])[:40]
    wrong = [line for line in lines if line.lstrip().lower().startswith("error")]
    return wrong[-20:] or list(lines[-12:])


def _end(process: subprocess.Popen[str]) -> None:
    family = [*descendants(process.pid), process.pid]
    kill_all(family, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(2)
    kill_all(family)
    process.wait()
