"""Faults that users can ask for: which processes they hit."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from eks_fsdp.sandbox.processes import send


@dataclass(frozen=True)
class Process:
    """One process of a container."""

    pid: int
    command: str


def processes_of(container_pid: int) -> list[Process]:
    """The processes in the pid namespace of a container's first process, oldest first."""
    try:
        wanted = os.readlink(f"/proc/{container_pid}/ns/pid")
    except OSError:
        return []
    found = []
    for name in sorted((name for name in os.listdir("/proc") if name.isdigit()), key=int):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(Process(int(name), command))
        except OSError:
            continue
    return found


def kill(container_pids: list[int], number: int, match: str | None) -> list[Process]:
    """Send a signal to the processes whose command line matches, to the containers' first ones where ``match`` is None.

    Returns those that were hit. Raises re.error.
    """
    hit = []
    for pid in container_pids:
        everyone = processes_of(pid)
        chosen = everyone if match is not None else [process for process in everyone if process.pid == pid]
        pattern = re.compile(match) if match is not None else None
        for process in chosen:
            if (pattern is None or pattern.search(process.command)) and send(process.pid, number):
                hit.append(process)
    return hit
