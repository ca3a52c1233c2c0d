"""One container: started, probed, restarted and stopped as its pod says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eks_fsdp.sandbox import probes
from eks_fsdp.sandbox.environment import ConfigurationError, command_line
from eks_fsdp.sandbox.images import Image
from eks_fsdp.sandbox.launch import Launched, Launcher, LaunchError, Streams
from eks_fsdp.sandbox.logs import LogFile, timestamp
from eks_fsdp.sandbox.mounts import Mount, MountPlanError, Operation
from eks_fsdp.sandbox.processes import Exit, ended_within, send
from eks_fsdp.sandbox.status import ContainerStatus, backoff_seconds, restarts_after, terminated
from eks_fsdp.sandbox.volumes import VolumeError

Object = dict[str, Any]
STEADY_SECONDS = 600.0
"""A container that ran this long starts again without the wait that its earlier restarts earned."""
CONFIGURATION_RETRY_SECONDS = 2.0
START_ERROR_CODE = 128
MESSAGE_BYTES = 2048
MESSAGE_LINES = 80


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a container needs of its pod at each start."""

    address: str
    namespace: int
    """Descriptor of the network namespace."""
    hostname: str


class Pod(Protocol):
    """What a container asks of its pod."""

    launcher: Launcher

    @property
    def grace(self) -> float:
        """Seconds that a process has between SIGTERM and SIGKILL."""

    def sandbox(self) -> Sandbox:
        """The pod's network."""

    def environment(self, container: Object, image: Image) -> dict[str, str]:
        """Raises `ConfigurationError`."""

    def files(self, container: Object, image: Image, message_file: Path) -> list[Operation]:
        """The plan of the container's root. Raises `VolumeError`, `MountPlanError`."""

    def folder(self, container: str) -> Path:
        """Where what belongs to a container is kept."""

    def log_path(self, container: str, run: int) -> Path:
        """The log of run ``run`` (from 0)."""

    def changed(self) -> None:
        """A container's state is another."""

    def event(self, kind: str, reason: str, message: str) -> None:
        """Tell users what happened; ``kind`` is Normal or Warning."""


class Container:
    """Runs until it is over for good: see `run`."""

    def __init__(self, pod: Pod, spec: Object, image: Image, status: ContainerStatus, policy: str) -> None:
        self.pod = pod
        self.spec = spec
        self.image = image
        self.status = status
        self.policy = policy
        self.logs: list[LogFile] = []
        """One for each run in this agent's memory, oldest first."""
        self.launched: Launched | None = None
        self._stopping = asyncio.Event()
        self._failures = 0

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return self.status.name

    async def run(self) -> None:
        """Run and restart until the policy or `stop` says that it is over."""
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set() or not restarts_after(self.policy, code):
                return
            self._failures = 1 if time.monotonic() - began > STEADY_SECONDS else self._failures + 1
            delay = backoff_seconds(self._failures)
            self.status.last_state = self.status.state
            if delay:
                message = f"back-off {delay:.0f}s restarting failed container={self.name}"
                self.status.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
                self.pod.changed()
                self.pod.event("Warning", "BackOff", message)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)
                    self.status.state = self.status.last_state
                    return
            self.status.restarts += 1

    async def stop(self, grace: float) -> None:
        """End it: preStop hook, SIGTERM, SIGKILL after ``grace`` seconds; it will not run again."""
        self._stopping.set()
        if self.launched is not None:
            await self._terminate(self.launched, grace)

    def kill(self) -> None:
        """End it now, without a word."""
        self._stopping.set()
        if self.launched is not None:
            send(self.launched.pid, signal.SIGKILL)

    async def execute(self, argv: list[str]) -> int:
        """Run a command in the container, output dropped; its exit code, 126 where it could not start."""
        if self.launched is None:
            return 126
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            environment = self.pod.environment(self.spec, self.image)
            launched = await self.pod.launcher.enter(self.launched.pid, argv, environment, Streams(null, null, null))
        except (LaunchError, ConfigurationError):
            return 126
        finally:
            os.close(null)
        try:
            return (await asyncio.shield(launched.exit)).code
        except asyncio.CancelledError:
            send(launched.pid, signal.SIGKILL)
            raise

    async def _run_once(self) -> int:
        run = self.status.restarts
        identity = f"eks-fsdp://{uuid.uuid4().hex}"
        try:
            log = LogFile(self.pod.log_path(self.name, run))
        except OSError as error:
            return self._not_started(identity, f"its log cannot be written: {error}")
        self.logs.append(log)
        self.status.passed_startup = "startupProbe" not in self.spec
        self.status.passed_readiness = "readinessProbe" not in self.spec
        try:
            if self.image.idle:
                return await self._idle(log, identity)
            launched = await self._start(log)
        except LaunchError as error:
            log.close()
            return self._not_started(identity, str(error))
        if launched is None:
            log.close()
            return 0
        self.launched = launched
        started = timestamp()[:19] + "Z"
        self.status.container_id = identity
        self.status.state = {"running": {"startedAt": started}}
        self.pod.changed()
        self.pod.event("Normal", "Started", f"Started container {self.name}")
        if self._stopping.is_set():
            # Stopped between its start and now.
            send(launched.pid, signal.SIGKILL)
        probing = self._probe(launched)
        try:
            ended = await asyncio.shield(launched.exit)
        except asyncio.CancelledError:
            send(launched.pid, signal.SIGKILL)
            raise
        finally:
            self.launched = None
            for task in probing:
                task.cancel()
        await self._drained(log)
        self._ended(ended, started, identity, log)
        return ended.code

    def _not_started(self, identity: str, problem: str) -> int:
        now = timestamp()[:19] + "Z"
        self.status.container_id = identity
        self.status.state = terminated(START_ERROR_CODE, 0, now, now, identity, problem)
        self.status.state["terminated"]["reason"] = "StartError"
        self.pod.changed()
        self.pod.event("Warning", "Failed", f"Error: failed to start container {self.name!r}: {problem}")
        return START_ERROR_CODE

    async def _idle(self, log: LogFile, identity: str) -> int:
        log.write(f"image {self.spec['image']} has no stand-in here: kept as it is, without a process\n".encode())
        log.close()
        started = timestamp()[:19] + "Z"
        self.status.container_id = identity
        self.status.passed_startup = self.status.passed_readiness = True
        if self.status.kind != "init":
            self.status.state = {"running": {"startedAt": started}}
            self.pod.changed()
            await self._stopping.wait()
        self.status.state = terminated(0, 0, started, timestamp()[:19] + "Z", identity, "")
        self.pod.changed()
        return 0

    async def _start(self, log: LogFile) -> Launched | None:
        """None where it was stopped before it could start. Raises `LaunchError`."""
        message_file = self.pod.folder(self.name) / "termination-log"
        while True:
            try:
                environment = self.pod.environment(self.spec, self.image)
                message_file.parent.mkdir(parents=True, exist_ok=True)
                message_file.write_bytes(b"")
                operations = self.pod.files(self.spec, self.image, message_file)
                break
            except (ConfigurationError, VolumeError, MountPlanError, OSError) as error:
                self.status.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
                self.pod.changed()
                self.pod.event("Warning", "Failed", f"Error: {error}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), CONFIGURATION_RETRY_SECONDS)
                return None
        argv = command_line(self.spec, list(self.image.entrypoint), environment)
        sandbox = self.pod.sandbox()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        reading, writing = os.pipe()
        try:
            launched = await self.pod.launcher.start(
                argv,
                environment,
                Streams(null, writing, writing),
                namespace=sandbox.namespace,
                operations=operations,
                hostname=sandbox.hostname,
                cwd=self.spec.get("workingDir") or "/",
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(null)
            os.close(writing)
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, _pump, reading, log)
        return launched

    async def _drained(self, log: LogFile) -> None:
        """Wait for what is still in the pipe: its writers all ended with the container."""
        for _ in range(100):
            if log.closed:
                return
            await asyncio.sleep(0.01)
        log.close()

    def _ended(self, ended: Exit, started: str, identity: str, log: LogFile) -> None:
        now = timestamp()[:19] + "Z"
        message = ""
        with contextlib.suppress(OSError):
            data = (self.pod.folder(self.name) / "termination-log").read_bytes()
            message = data[:4096].decode(errors="replace")
        fall_back = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and fall_back and ended.code != 0:
            message = log.tail(MESSAGE_LINES, MESSAGE_BYTES)
        self.status.state = terminated(ended.code, ended.signal, started, now, identity, message)
        self.pod.changed()

    def _probe(self, launched: Launched) -> list[asyncio.Task[None]]:
        target = probes.Target(self.pod.sandbox().address, self.spec, self.execute)
        tasks: list[asyncio.Task[None]] = []
        after_startup = asyncio.Event()

        def startup_passed() -> None:
            if not self.status.passed_startup:
                self.status.passed_startup = True
                self.pod.changed()
            after_startup.set()
            startup.cancel()

        def readiness(ready: bool) -> None:
            if self.status.passed_readiness != ready:
                self.status.passed_readiness = ready
                self.pod.changed()

        def unhealthy(kind: str, problem: str) -> None:
            self.pod.event("Warning", "Unhealthy", f"{kind} probe failed: {problem}")

        def restart(kind: str, problem: str) -> None:
            unhealthy(kind, problem)
            tasks.append(asyncio.ensure_future(self._terminate(launched, self.pod.grace)))

        def not_ready(problem: str) -> None:
            if self.status.passed_readiness:
                unhealthy("Readiness", problem)
            readiness(False)

        async def later(kind: str) -> None:
            await after_startup.wait()
            if kind == "readinessProbe":
                await probes.repeat(self.spec[kind], target, passed=lambda: readiness(True), failed=not_ready)
            else:
                await probes.repeat(self.spec[kind], target, passed=_nothing, failed=lambda p: restart("Liveness", p))

        if "startupProbe" in self.spec:
            watch = probes.repeat(
                self.spec["startupProbe"], target, passed=startup_passed, failed=lambda p: restart("Startup", p)
            )
            startup = asyncio.ensure_future(watch)
            tasks.append(startup)
        else:
            after_startup.set()
        tasks += [asyncio.ensure_future(later(k)) for k in ("readinessProbe", "livenessProbe") if k in self.spec]
        return tasks

    async def _terminate(self, launched: Launched, grace: float) -> None:
        deadline = time.monotonic() + grace
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if grace > 0 and "exec" in hook:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.execute(list(hook["exec"]["command"])), grace)
        elif grace > 0 and "sleep" in hook:
            await ended_within(launched.exit, min(grace, float(hook["sleep"]["seconds"])))
        if grace > 0 and not launched.exit.done():
            send(launched.pid, signal.SIGTERM)
            await ended_within(launched.exit, max(deadline - time.monotonic(), 0.1))
        if not launched.exit.done():
            send(launched.pid, signal.SIGKILL)
            await ended_within(launched.exit, 5.0)


def _nothing() -> None:
    pass


def _pump(descriptor: int, log: LogFile) -> None:
    try:
        data = os.read(descriptor, 65536)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if data and not log.closed:
        log.write(data)
    if not data:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        log.close()


def base_mounts(message_file: Path, container: Object) -> list[Mount]:
    """What every container has besides its volumes."""
    return [Mount(str(message_file), container.get("terminationMessagePath") or "/dev/termination-log")]
