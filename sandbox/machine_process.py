"""The machine room as a process of its own namespaces, seen from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

UNSHARE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--net",
    "--pid",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
STOP_SECONDS = 6.0
SOCKETS = ("machine.sock", "api.sock")


def start_machine(folder: Path, toolchain: Path) -> subprocess.Popen[bytes]:
    """Start the machine room of the sandbox in ``folder`` with the programs in ``toolchain``; returns at once.

    Its output goes to ``folder``/logs/machine.log. It ends by itself when this process does: keep the returned object,
    whose standard input is the sign of life. End it with `stop_machine`. Raises OSError where unshare is not there.
    """
    for name in ("run", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in SOCKETS:
        # Left by one that was killed: its presence would say that this one serves.
        (folder / "run" / name).unlink(missing_ok=True)
    environment = {**os.environ, "EKS_FSDP_TOOLCHAIN": str(toolchain), "PYTHONUNBUFFERED": "1"}
    package = Path(__file__).absolute().parents[2]
    if (package / "eks_fsdp").is_dir():
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    with (folder / "logs" / "machine.log").open("ab") as log:
        return subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", "eks_fsdp.sandbox.machine", str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def stop_machine(process: subprocess.Popen[bytes], timeout: float = STOP_SECONDS) -> None:
    """End the machine room and everything in it: asked first, killed after ``timeout`` seconds."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
    if process.poll() is None:
        # unshare itself ignores SIGTERM while it waits; its child, killed, takes the whole namespace along.
        for child in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait(timeout)


def wait_for_socket(folder: Path, process: subprocess.Popen[bytes], timeout: float = 30.0) -> Path:
    """The path of the machine room's socket, once it is there. Raises RuntimeError with the log's end."""
    path = Path(os.path.realpath(folder / "run")) / "machine.sock"
    deadline = time.monotonic() + timeout
    while not path.exists():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            what = f"ended with code {ended}" if ended is not None else f"was not up within {timeout:.0f} s"
            log = (folder / "logs" / "machine.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the machine room {what}; its log ends:\n{log}")
        time.sleep(0.05)
    return path


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]
