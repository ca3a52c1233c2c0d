"""Processes of the machine room: started without blocking its event loop, and every exit collected.

The machine room is PID 1 of its namespace: every orphan becomes its child, so one place must wait for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REMEMBERED_EXITS = 4096
"""Exits that nobody has asked for yet: a container's process may end before its pid has been told."""


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int
    """Exit code, 128 + signal where a signal ended it."""
    signal: int = 0

    @classmethod
    def of(cls, status: int) -> Exit:
        """From a status of ``waitpid``."""
        code = os.waitstatus_to_exitcode(status)
        return cls(code) if code >= 0 else cls(128 - code, -code)


class Processes:
    """Starts processes and hands out their exits. One for each event loop; `attach` it first."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Exit]] = {}
        self._unclaimed: OrderedDict[int, Exit] = OrderedDict()

    def attach(self) -> None:
        """Collect exits from now on, in the running event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._collect)

    def start(self, argv: Sequence[str], env: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
        """Start ``argv`` (its first part a path) in a session of its own and return its pid.

        ``descriptors``: descriptor in the new process -> one of ours; all others are closed there.
        """
        highest = max([*descriptors, *descriptors.values(), 2]) + 1
        actions: list[tuple[int, int, int]] = []
        # Twice: so that no copy overwrites a descriptor that a later one needs, and none keeps its close-on-exec flag.
        for offset, ours in enumerate(descriptors.values()):
            actions.append((os.POSIX_SPAWN_DUP2, ours, highest + offset))
        for offset, theirs in enumerate(descriptors):
            actions.append((os.POSIX_SPAWN_DUP2, highest + offset, theirs))
        closing = [(os.POSIX_SPAWN_CLOSE, highest + offset) for offset in range(len(descriptors))]
        return os.posix_spawn(
            argv[0],
            list(argv),
            dict(env),
            file_actions=[*actions, *closing],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
        )

    def exit_of(self, pid: int) -> asyncio.Future[Exit]:
        """A future of the exit of ``pid``, a child or an orphan that became one. Await it through `asyncio.shield`."""
        future = self._waiting.get(pid)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            early = self._unclaimed.pop(pid, None)
            if early is None:
                self._waiting[pid] = future
            else:
                future.set_result(early)
        return future

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = Exit.of(status)
            future = self._waiting.pop(pid, None)
            if future is None:
                self._unclaimed[pid] = ended
                while len(self._unclaimed) > REMEMBERED_EXITS:
                    self._unclaimed.popitem(last=False)
            elif not future.done():
                future.set_result(ended)


def send(pid: int, number: int) -> bool:
    """Send a signal; False where the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


async def ended_within(exit_: asyncio.Future[Exit], seconds: float) -> bool:
    """Wait for an exit, at most ``seconds``; the future itself is left alone."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(exit_), seconds)
    return exit_.done()
