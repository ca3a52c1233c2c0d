"""Processes that the launcher started, and their descendants: ended by id, never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def parents() -> dict[int, int]:
    """The parent of every process that can be seen; empty where there is no /proc."""
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may itself hold spaces and parentheses.
            found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, children first."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += below
    return found


def kill_all(pids: Iterable[int], sig: int = signal.SIGKILL) -> None:
    """Signal each process that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


def adopt_orphans() -> None:
    """Make grandchildren whose parent ends children of this process, so that none is lost sight of (Linux)."""
    import ctypes

    pr_set_child_subreaper = 36
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def reap() -> None:
    """Collect children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_descendants(*, grace_seconds: float) -> list[int]:
    """End everything below this process: SIGTERM, then SIGKILL after ``grace_seconds``. Returns what is left."""
    kill_all(descendants(os.getpid()), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline:
        reap()
        if not descendants(os.getpid()):
            return []
        time.sleep(0.05)
    for _ in range(40):
        kill_all(descendants(os.getpid()))
        reap()
        if not descendants(os.getpid()):
            return []
        time.sleep(0.05)
    return descendants(os.getpid())
