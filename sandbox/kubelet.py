"""The kubelets' HTTPS API as the API server uses it: container logs and exec."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import ssl
import struct
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path
from socket import socket
from termios import TIOCSWINSZ
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from eks_fsdp.sandbox.certificates import Pair
from eks_fsdp.sandbox.containers import Container
from eks_fsdp.sandbox.environment import ConfigurationError
from eks_fsdp.sandbox.launch import Launched, LaunchError, Streams
from eks_fsdp.sandbox.logs import Entry, LogOptions
from eks_fsdp.sandbox.processes import ended_within, send

if TYPE_CHECKING:
    from eks_fsdp.sandbox.agent import Agent

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 * 1024
DRAIN_SECONDS = 1.0
"""After a command's end, for what its children still hold open."""
CLOSE_SECONDS = 2.0


class Kubelet:
    """One server behind the addresses of all nodes. Only the API server, by its client certificate, may call."""

    def __init__(self, pair: Pair, ca_file: Path) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca_file))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._runners: dict[str, web.AppRunner] = {}

    async def open(self, node: str, listening: socket, agent: Agent) -> None:
        """Serve a node's pods on a listening socket."""
        app = web.Application()
        app["agent"] = agent
        app["node"] = node
        app.router.add_get("/healthz", _health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", _logs)
        for method in ("GET", "POST"):
            app.router.add_route(method, "/exec/{namespace}/{pod}/{container}", _exec)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_SECONDS, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listening, ssl_context=self._context).start()
        self._runners[node] = runner

    async def close(self, node: str) -> None:
        """Stop serving a node."""
        runner = self._runners.pop(node, None)
        if runner is not None:
            await runner.cleanup()


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _container(request: web.Request) -> Container:
    agent: Agent = request.app["agent"]
    info = request.match_info
    worker = agent.worker(info["namespace"], info["pod"])
    if worker is None or worker.node.name != request.app["node"]:
        raise web.HTTPNotFound(text=f'pod "{info["pod"]}" is not on this node\n')
    container = worker.container(info["container"])
    if container is None:
        raise web.HTTPNotFound(text=f'container "{info["container"]}" is not in pod "{info["pod"]}"\n')
    return container


async def _logs(request: web.Request) -> web.StreamResponse:
    container = _container(request)
    query = dict(request.query)
    try:
        options = LogOptions.parse(query)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{error}\n") from None
    previous = query.get("previous") in ("true", "1")
    # Of a container that waits for its restart, the run that ended last is both the current and the previous one.
    between = "waiting" in container.status.state
    logs = container.logs[:-1] if previous and not between else container.logs
    name, pod = container.name, request.match_info["pod"]
    if not logs:
        if previous:
            raise web.HTTPBadRequest(text=f'previous terminated container "{name}" in pod "{pod}" not found\n')
        reason = container.status.state.get("waiting", {}).get("reason", "ContainerCreating")
        raise web.HTTPBadRequest(text=f'container "{name}" in pod "{pod}" is waiting to start: {reason}\n')
    follow = query.get("follow") in ("true", "1") and not previous
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    left = options.limit_bytes
    skip = 0
    if options.tail_lines is not None:
        with logs[-1].path.open("rb") as file:
            wanted = sum(1 for line in file if options.wants(Entry.parse(line)))
        skip = max(wanted - options.tail_lines, 0)
    async for line in logs[-1].lines(follow=follow):
        read = Entry.parse(line)
        if not options.wants(read):
            continue
        if skip:
            skip -= 1
            continue
        data = options.render(read)
        if left is not None:
            data = data[:left]
            left -= len(data)
        await response.write(data)
        if left == 0:
            break
    await response.write_eof()
    return response


async def _exec(request: web.Request) -> web.StreamResponse:
    container = _container(request)
    argv = request.query.getall("command", [])
    if container.launched is None:
        idle = " (its image has no stand-in here: there is no process)" if container.image.idle else ""
        raise web.HTTPBadRequest(text=f"container {container.name} is not running{idle}\n")
    wanted = {name: request.query.get(name) in ("1", "true") for name in ("input", "output", "error", "tty")}
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    if not socket.can_prepare(request):
        raise web.HTTPBadRequest(text="exec needs a WebSocket upgrade with one of: " + ", ".join(PROTOCOLS) + "\n")
    await socket.prepare(request)
    command = _Command(socket, wanted)
    try:
        environment = container.pod.environment(container.spec, container.image)
        environment["TERM"] = "xterm"
        status = await command.run(container, argv, environment)
    except (LaunchError, ConfigurationError) as error:
        status = failure(str(error), "InternalError")
    if not socket.closed:
        await socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
        await socket.close()
    return socket


def failure(message: str, reason: str, code: int | None = None) -> dict[str, Any]:
    """The status that is sent at the end of an exec that did not go well; ``code`` is the command's."""
    status: dict[str, Any] = {"metadata": {}, "status": "Failure", "message": message, "reason": reason}
    if code is not None:
        status["details"] = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return status


def success() -> dict[str, Any]:
    """The status of an exec that went well."""
    return {"metadata": {}, "status": "Success"}


class _Command:
    """A command and the WebSocket that carries its streams."""

    def __init__(self, socket: web.WebSocketResponse, wanted: Mapping[str, bool]) -> None:
        self._socket = socket
        self._wanted = wanted
        self._terminal = -1
        self._stdin: asyncio.WriteTransport | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def run(self, container: Container, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Run it to its end; the status to send. Raises `LaunchError`."""
        assert container.launched is not None
        streams, opened = self._open()
        try:
            launched = await container.pod.launcher.enter(
                container.launched.pid,
                argv,
                environment,
                streams,
                cwd=container.spec.get("workingDir") or "",
                tty=self._wanted["tty"],
            )
        except BaseException:
            for descriptor in self._ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)
        await self._connect()
        receiving = asyncio.ensure_future(self._receive(launched))
        try:
            ended = await asyncio.shield(launched.exit)
            await asyncio.wait(self._readers, timeout=DRAIN_SECONDS)
        finally:
            for task in (receiving, *self._readers):
                task.cancel()
            await asyncio.gather(receiving, *self._readers, return_exceptions=True)
            if self._stdin is not None:
                self._stdin.close()
            if not launched.exit.done():
                send(launched.pid, 9)
                await ended_within(launched.exit, CLOSE_SECONDS)
        if ended.code == 0:
            return success()
        return failure(f"command terminated with non-zero exit code {ended.code}", "NonZeroExitCode", ended.code)

    def _open(self) -> tuple[Streams, list[int]]:
        """The command's ends of its streams, and which descriptors to close once it has them."""
        if self._wanted["tty"]:
            ours, theirs = pty.openpty()
            os.set_inheritable(ours, False)
            self._terminal = ours
            self._ours = [ours]
            return Streams(theirs, theirs, theirs), [theirs]
        stdin, feed = os.pipe()
        out, stdout = os.pipe()
        err, stderr = os.pipe()
        self._ours = [feed, out, err]
        return Streams(stdin, stdout, stderr), [stdin, stdout, stderr]

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        if self._wanted["tty"]:
            writing = os.fdopen(os.dup(self._terminal), "wb", buffering=0)
            sources = [(self._terminal, STDOUT)]
        else:
            feed, out, err = self._ours
            writing = os.fdopen(feed, "wb", buffering=0)
            sources = [(out, STDOUT), (err, STDERR)]
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, writing)
        if not self._wanted["input"] and not self._wanted["tty"]:
            self._stdin.close()
        for descriptor, channel in sources:
            self._readers.append(asyncio.ensure_future(self._forward(descriptor, channel)))

    async def _forward(self, descriptor: int, channel: int) -> None:
        reader = asyncio.StreamReader()
        file = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        try:
            while data := await reader.read(CHUNK):
                await self._socket.send_bytes(bytes([channel]) + data)
        except OSError:
            # A terminal whose last user ended gives EIO; a closed WebSocket gives ClientConnectionResetError.
            return
        finally:
            transport.close()

    async def _receive(self, launched: Launched) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN and self._stdin is not None and not self._stdin.is_closing():
                self._stdin.write(data)
            elif channel == CLOSE and data[:1] == bytes([STDIN]) and self._stdin is not None:
                self._stdin.close()
            elif channel == RESIZE and self._wanted["tty"]:
                size = json.loads(data)
                ioctl(self._terminal, TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))
        # The user is gone: so is the command, as with a closed terminal.
        send(launched.pid, 1 if self._wanted["tty"] else 9)
