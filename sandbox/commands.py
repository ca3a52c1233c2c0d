"""`eks-fsdp sandbox up|down|status|env|fire`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from .daemon import ALREADY_RUNNING, START_SECONDS, is_held, live_pid
from .layout import Layout
from .machine_room import MachineRoomError, SocketMachineRoom
from .user_environment import exports, user_environment

app = typer.Typer(
    help="The whole platform on this machine, with no AWS account.", no_args_is_help=True, rich_markup_mode=None
)
Folder = Annotated[Path, typer.Option("--dir", help="Folder that holds everything of the sandbox.")]
DEFAULT_FOLDER = Path(".sandbox")
UP_SECONDS = START_SECONDS + 15
DOWN_SECONDS = 10.0
TRIAL_SECONDS = 20.0
FREE_BYTES = 2 * 1024**3
"""Disk space that a sandbox wants before it starts: etcd, logs and checkpoints of small runs."""
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


class SandboxError(Exception):
    """Something that the user can put right."""


def _fail(message: object) -> NoReturn:
    _err.print(f"error: {message}", markup=False, soft_wrap=True)
    raise typer.Exit(2)


@app.command()
def up(folder: Folder = DEFAULT_FOLDER) -> None:
    """Start an empty sandbox: stand-in AWS account and providers, a real control plane, a node agent."""
    layout = Layout.of(folder)
    try:
        start(layout)
    except SandboxError as error:
        _fail(error)
    _out.print(f'Use it:  eval "$({_command("env", layout)})"', markup=False, soft_wrap=True)


def _command(name: str, layout: Layout) -> str:
    """What a user types for the sandbox in this folder."""
    where = "" if layout == Layout.of(DEFAULT_FOLDER) else f" --dir {shlex.quote(str(layout.root))}"
    return f"eks-fsdp sandbox {name}{where}"


def start(layout: Layout, limit: float = UP_SECONDS) -> dict[str, Any]:
    """Start a sandbox and wait until it is ready; returns what `Layout.ready_file` says. Raises `SandboxError`."""
    if is_held(layout):
        raise SandboxError(f"a sandbox is up in {layout.root}: use it, or end it with `{_command('down', layout)}`")
    _check_machine(layout)
    toolchain = toolchain_folder()
    aside = set_aside(layout)
    if aside is not None:
        _out.print(f"An old sandbox's state was moved to {aside}", markup=False, soft_wrap=True)
    layout.create()
    began = time.monotonic()
    process = _spawn(layout, toolchain)
    try:
        with _out.status("Sandbox: starting") as status:
            while not layout.ready_file.exists():
                if process.poll() is not None:
                    raise SandboxError(_why(layout, process.returncode))
                waited = time.monotonic() - began
                what = _read(layout.progress_file) or "daemon"
                if waited > limit:
                    raise SandboxError(f"waited {limit:.0f} s for the sandbox; last: {what}; logs: {layout.logs}")
                status.update(f"Sandbox: {what} ({waited:.0f} s)")
                time.sleep(0.1)
        ready: dict[str, Any] = json.loads(layout.ready_file.read_text())
    except BaseException as error:
        # What was started goes again; its logs stay, save where it was the user who thought better of it.
        _end(process)
        if isinstance(error, KeyboardInterrupt):
            remove(layout)
        raise
    _out.print(f"Sandbox ready in {time.monotonic() - began:.1f} s: {layout.root}", markup=False, soft_wrap=True)
    return ready


def _spawn(layout: Layout, toolchain: Path) -> subprocess.Popen[bytes]:
    source = str(Path(__file__).absolute().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).strip(":")}
    command = [sys.executable, "-m", "eks_fsdp.sandbox.daemon", str(layout.root), str(toolchain)]
    with (layout.logs / "daemon.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def _why(layout: Layout, code: int) -> str:
    if code == ALREADY_RUNNING:
        return f"another sandbox was started in {layout.root} at the same time"
    reason = _read(layout.failure_file)
    if not reason:
        reason = f"the daemon ended with code {code}; its log ends:\n" + _read(layout.logs / "daemon.log")[-2000:]
    return f"the sandbox did not come up: {reason}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def toolchain_folder() -> Path:
    """Where the binaries are: ``$EKS_FSDP_TOOLCHAIN``, else the cache. Raises `SandboxError`."""
    explicit = os.environ.get("EKS_FSDP_TOOLCHAIN")
    if explicit:
        return Path(explicit)
    from .toolchain import ToolchainError, toolchain_bin

    try:
        return toolchain_bin()
    except ToolchainError as error:
        raise SandboxError(error) from None


def _check_machine(layout: Layout) -> None:
    """What would fail halfway is said first. Raises `SandboxError`."""
    if sys.platform != "linux":
        raise SandboxError(f"the sandbox needs Linux; this is {sys.platform}")
    if shutil.which("unshare") is None:
        raise SandboxError("`unshare` is missing: install the package util-linux")
    try:
        tried = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "true"],
            capture_output=True,
            text=True,
            check=False,
            timeout=TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SandboxError(
            f"waited {TRIAL_SECONDS:.0f} s for `unshare` to make namespaces: is the machine overloaded?"
        ) from None
    if tried.returncode:
        raise SandboxError(
            f"this machine refuses user namespaces ({tried.stderr.strip()}); allow them: "
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1` (Debian), or "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu 24.04 and later)"
        )
    place = layout.root
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        raise SandboxError(f"{place} cannot be written to: choose another folder with --dir")
    free = shutil.disk_usage(place).free
    if free < FREE_BYTES:
        raise SandboxError(
            f"{place} has {free / 1024**3:.1f} GiB free, and the sandbox wants {FREE_BYTES / 1024**3:.0f} GiB: "
            "make room, or choose another folder with --dir"
        )


def set_aside(layout: Layout) -> Path | None:
    """Move a folder that no daemon holds out of the way; where to, or None where there is nothing to keep."""
    if not layout.root.exists() or not any(layout.root.iterdir()):
        return None
    if not layout.mark.exists():
        raise SandboxError(f"{layout.root} is not empty and no sandbox's folder: choose another with --dir")
    for number in range(1, 10_000):
        target = layout.root.with_name(f"{layout.root.name}.stale-{number}")
        if not target.exists():
            layout.root.rename(target)
            return target
    raise SandboxError(f"too many old sandboxes beside {layout.root}: remove the folders {layout.root.name}.stale-*")


@app.command()
def down(
    folder: Folder = DEFAULT_FOLDER,
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Leave the folder's logs.")] = False,
) -> None:
    """End the sandbox with everything that runs in it, and remove its state."""
    layout = Layout.of(folder)
    try:
        stop(layout, keep_logs=keep_logs)
    except SandboxError as error:
        _fail(error)


def stop(layout: Layout, *, keep_logs: bool = False, limit: float = DOWN_SECONDS) -> None:
    """End a sandbox, if one is up, and remove its folder's content. Raises `SandboxError`."""
    held = is_held(layout)
    if not held and not layout.mark.exists():
        _out.print(f"No sandbox in {layout.root}", markup=False, soft_wrap=True)
        return
    if held:
        pid = live_pid(layout)
        if pid is None:
            raise SandboxError(
                f"a process holds {layout.lock} and does not say which it is; find it with `fuser {layout.lock}`"
            )
        with _out.status("Sandbox: ending") as status:
            _end_pid(layout, pid, limit, status)
        layout.mark.touch()
    remove(layout, keep_logs=keep_logs)
    _out.print(f"Sandbox ended: {layout.root}", markup=False, soft_wrap=True)


def _end_pid(layout: Layout, pid: int, limit: float, status: Any) -> None:
    for number, wait in ((signal.SIGTERM, limit), (signal.SIGKILL, 5.0)):
        if live_pid(layout) != pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if not is_held(layout):
                return
            time.sleep(0.05)
        status.update("Sandbox: it does not end by itself, killing it")
    raise SandboxError(f"process {pid} does not end; logs: {layout.logs}")


def remove(layout: Layout, *, keep_logs: bool = False) -> None:
    """Remove a folder that no daemon holds, where it is marked as a sandbox's."""
    if not layout.mark.exists():
        return
    if layout.run.is_symlink():
        shutil.rmtree(os.path.realpath(layout.run), ignore_errors=True)
    for path in layout.root.iterdir():
        if path == layout.mark or (keep_logs and path == layout.logs):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=_make_writable)
        else:
            path.unlink(missing_ok=True)
    if not keep_logs:
        layout.mark.unlink()
        layout.root.rmdir()


def _make_writable(function: Any, path: str, _error: Any) -> None:
    """Containers leave folders that may not be written to."""
    os.chmod(os.path.dirname(path), 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        function(path)


def describe(layout: Layout) -> dict[str, Any]:
    """``{"state": "down" | "starting" | "ready" | "failed", …}`` of the sandbox in a folder."""
    pid = live_pid(layout)
    if pid is None:
        stale = layout.root.exists() and layout.lock.exists()
        return {"state": "down", "dir": str(layout.root), "stale": stale}
    failure = _read(layout.failure_file)
    if failure:
        return {"state": "failed", "dir": str(layout.root), "pid": pid, "reason": failure}
    try:
        ready = json.loads(layout.ready_file.read_text())
    except (OSError, ValueError):
        return {"state": "starting", "dir": str(layout.root), "pid": pid, "waiting_for": _read(layout.progress_file)}
    try:
        machine = SocketMachineRoom(layout.socket("machine.sock")).status()
    except MachineRoomError as error:
        machine = {"failure": _read(layout.failure_file) or str(error)}
    if machine.get("failure"):
        return {"state": "failed", "dir": str(layout.root), "pid": pid, "reason": machine["failure"]}
    return {"state": "ready", "dir": str(layout.root), **ready, "machine": machine}


def require_ready(layout: Layout) -> dict[str, Any]:
    """`describe` of a sandbox that can be used. Raises `SandboxError` with the way out."""
    found = describe(layout)
    if found["state"] == "ready":
        return found
    if found["state"] == "down":
        raise SandboxError(f"no sandbox is up in {layout.root}: start one with `{_command('up', layout)}`")
    if found["state"] == "starting":
        raise SandboxError(f"the sandbox in {layout.root} is still starting ({found['waiting_for']})")
    raise SandboxError(
        f"the sandbox in {layout.root} has failed: {found['reason']}\n"
        f"End it with `{_command('down', layout)}` and start a new one."
    )


@app.command()
def status(
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    empty: Annotated[
        bool, typer.Option("--empty", help="Fail where the account holds anything that was made.")
    ] = False,
) -> None:
    """Say whether the sandbox is up, and what is in it. The exit code is 0 only where it can be used."""
    layout = Layout.of(folder)
    found = describe(layout)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    try:
        ready = require_ready(layout)
    except SandboxError as error:
        if as_json:
            raise typer.Exit(2) from None
        _fail(error)
    if not as_json:
        machine = ready["machine"]
        plane = machine.get("control_plane") or {}
        _out.print(f"Sandbox ready: {layout.root} (process {ready['pid']})", markup=False, soft_wrap=True)
        _out.print(f"  account        {ready['account']} in {ready['region']} at {ready['account_url']}", markup=False)
        _out.print(f"  control plane  {plane.get('name') or 'none in use'} {plane.get('version', '')}", markup=False)
        _out.print(f"  nodes          {len(machine.get('nodes') or [])}", markup=False)
        _out.print(f"  pods           {machine.get('pods', 0)}", markup=False)
    if empty:
        left = _left(ready)
        if left:
            for item in left:
                _err.print(f"left: {item}", markup=False, soft_wrap=True)
            _fail(f"{len(left)} left in the account")
        if not as_json:
            _out.print("Nothing is left in the account.")


def _left(ready: dict[str, Any]) -> list[str]:
    from .account import account_client, leftovers

    left = leftovers(lambda service: account_client(ready["account_url"], service, ready["region"]))
    left += [f"node {node['name']}" for node in ready["machine"].get("nodes") or []]
    return left


@app.command()
def env(folder: Folder = DEFAULT_FOLDER) -> None:
    """Print the environment in which `pulumi`, `kubectl` and AWS SDKs use the sandbox, for a shell to evaluate."""
    layout = Layout.of(folder)
    try:
        ready = require_ready(layout)
    except SandboxError as error:
        _fail(error)
    typer.echo(exports(user_environment(layout, ready)), nl=False)


@app.command()
def fire(
    schedule: Annotated[
        str | None, typer.Argument(help="Part of the schedule's name, such as `scale`. [default: list them]")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Do now what EventBridge Scheduler would do at a schedule's time, such as a stack's expiry."""
    from . import fire as firing
    from .account import account_client

    layout = Layout.of(folder)
    try:
        ready = require_ready(layout)
    except SandboxError as error:
        _fail(error)

    def client(service: str) -> Any:
        return account_client(ready["account_url"], service, ready["region"])

    if schedule is None:
        typer.echo("\n".join(firing.schedules(client)) or "There is no schedule.")
        return
    try:
        fired = firing.fire(client, schedule)
    except LookupError as error:
        _fail(error)
    typer.echo(fired.log, nl=False)
    if fired.failed:
        _fail(f"{fired.schedule}: the function failed: {fired.answer}")
