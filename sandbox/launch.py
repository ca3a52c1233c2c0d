"""Starts commands in containers, by way of container.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eks_fsdp.sandbox import container
from eks_fsdp.sandbox.mounts import Operation
from eks_fsdp.sandbox.processes import Exit, Processes, ended_within, send

START_SECONDS = 30.0
"""Longest time from the start of a container to its command. Making its files takes a twentieth of a second."""
SCRIPT = Path(container.__file__)


class LaunchError(RuntimeError):
    """A command could not be started in a container. The message says why."""


@dataclass(frozen=True)
class Launched:
    """A command that runs in a container."""

    pid: int
    """As this process sees it."""
    exit: asyncio.Future[Exit]


@dataclass(frozen=True)
class Streams:
    """Descriptors of a command's standard streams. They stay open here."""

    stdin: int
    stdout: int
    stderr: int


class Launcher:
    """Starts containers, and commands in them. ``scratch`` is an empty directory that containers' roots are mounted on."""

    def __init__(self, processes: Processes, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._processes = processes
        self._scratch = scratch

    async def start(
        self,
        argv: list[str],
        env: Mapping[str, str],
        streams: Streams,
        *,
        namespace: int,
        operations: list[Operation],
        hostname: str,
        cwd: str = "",
    ) -> Launched:
        """Start a container in network ``namespace``. Raises `LaunchError`."""
        specification = {"operations": operations, "hostname": hostname, "root": str(self._scratch)}
        return await self._launch({**specification, "argv": argv, "env": dict(env), "cwd": cwd}, streams, namespace)

    async def enter(
        self, pid: int, argv: list[str], env: Mapping[str, str], streams: Streams, *, cwd: str = "", tty: bool = False
    ) -> Launched:
        """Start a command in the container whose first process is ``pid``. Raises `LaunchError`."""
        specification = {"enter": pid, "argv": argv, "env": dict(env), "cwd": cwd, "tty": tty}
        return await self._launch(specification, streams, None)

    async def _launch(self, specification: dict[str, Any], streams: Streams, namespace: int | None) -> Launched:
        task = asyncio.ensure_future(self._begin(specification, streams, namespace))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Nobody waits for the command any more, but it may be about to begin.
            task.add_done_callback(_end)
            raise

    async def _begin(self, specification: dict[str, Any], streams: Streams, namespace: int | None) -> Launched:
        if not specification["argv"]:
            raise LaunchError("no command: the container names none, and the image has no entry point")
        memory = os.memfd_create("specification")
        reading, writing = os.pipe()
        try:
            os.write(memory, json.dumps(specification).encode())
            os.lseek(memory, 0, os.SEEK_SET)
            descriptors = {0: streams.stdin, 1: streams.stdout, 2: streams.stderr, 3: memory, 4: writing}
            if namespace is not None:
                descriptors[5] = namespace
            stage = self._processes.start([sys.executable, "-I", "-S", str(SCRIPT)], {"LC_ALL": "C.UTF-8"}, descriptors)
        except OSError as error:
            os.close(reading)
            raise LaunchError(f"cannot start a process: {error}") from None
        finally:
            os.close(memory)
            os.close(writing)
        staged = self._processes.exit_of(stage)
        report = await self._report(reading, stage)
        await ended_within(staged, START_SECONDS)
        pid = next((int(line) for line in report if line.isdigit()), 0)
        exit_ = self._processes.exit_of(pid) if pid else staged
        problem = next((line.removeprefix("error ") for line in report if line.startswith("error ")), "")
        if problem or not pid:
            raise LaunchError(problem or "the container's first process ended before it began")
        return Launched(pid, exit_)

    async def _report(self, reading: int, stage: int) -> list[str]:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                return (await reader.read()).decode(errors="replace").splitlines()
        except TimeoutError:
            send(stage, signal.SIGKILL)
            raise LaunchError(f"the container's command did not begin within {START_SECONDS:.0f} s") from None
        finally:
            transport.close()


def _end(task: asyncio.Task[Launched]) -> None:
    if not task.cancelled() and task.exception() is None:
        send(task.result().pid, signal.SIGKILL)
