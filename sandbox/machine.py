"""The machine room: PID 1 of the sandbox's namespaces. Control plane, node agent and pods live and die with it.

``python -m eks_fsdp.sandbox.machine DIR``, inside the namespaces that `machine_process.start_machine` makes. It serves
HTTP and JSON on DIR/run/machine.sock, forwards DIR/run/api.sock to the API server and a port of the bridge to
DIR/run/aws.sock, and ends on SIGTERM or at the end of
its standard input, whichever comes first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from eks_fsdp.sandbox import faults, linux
from eks_fsdp.sandbox.agent import Agent
from eks_fsdp.sandbox.control_plane import PORT, ControlPlane, ControlPlaneError
from eks_fsdp.sandbox.images import ImageTable
from eks_fsdp.sandbox.kubeapi import ApiError
from eks_fsdp.sandbox.kubelet import Kubelet
from eks_fsdp.sandbox.launch import Launcher
from eks_fsdp.sandbox.machine_process import SOCKETS
from eks_fsdp.sandbox.network import GATEWAY, Network
from eks_fsdp.sandbox.nodes import NodeGroup, NodeGroupError
from eks_fsdp.sandbox.pod_identity import AWS_PORT, AWS_SOCKET, Identities
from eks_fsdp.sandbox.processes import Processes
from eks_fsdp.spec.versions import KUBERNETES_VERSION

TOOLCHAIN_VARIABLE = "EKS_FSDP_TOOLCHAIN"
LAST_SECONDS = 4.5
"""From the request to end until this process ends whatever still runs, by ending itself."""
POD_FOLDERS = ("pods", "nodes", "volumes")
"""What goes with a control plane. File systems stay: they are the account's."""
log = logging.getLogger("machine")
Object = dict[str, Any]


class Machine:
    """Everything in the machine room."""

    def __init__(self, folder: Path, toolchain: Path) -> None:
        self.folder = folder
        self.toolchain = toolchain
        self.run = Path(os.path.realpath(folder / "run"))
        self.processes = Processes()
        self.network = Network()
        self.launcher = Launcher(self.processes, self.run / "root")
        self.name: str | None = None
        self.plane: ControlPlane | None = None
        self.agent: Agent | None = None
        self.failure = ""
        self.ending = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Bring up the network and pre-warm the first control plane in the background."""
        self.processes.attach()
        await self.network.start()
        self._begin_plane()

    def _begin_plane(self) -> None:
        def started(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None and not self.failure:
                self._failed(str(error) or type(error).__name__)

        self._starting = asyncio.ensure_future(self._start_plane())
        self._starting.add_done_callback(started)

    async def _start_plane(self) -> None:
        began = asyncio.get_running_loop().time()
        self.failure = ""
        self.plane = plane = ControlPlane(
            self.folder / "control-plane", self.folder / "logs", self.toolchain, self.processes, self._failed
        )
        await plane.start()
        kubelet = Kubelet(plane.kubelet_pair(["localhost"]), plane.authority.file)
        self.agent = Agent(
            folder=self.folder,
            api=plane.api(),
            api_host=GATEWAY,
            api_port=PORT,
            network=self.network,
            launcher=self.launcher,
            images=ImageTable(self.toolchain),
            kubelet=kubelet,
            identities=Identities(self.run / AWS_SOCKET, lambda: self.name),
        )
        await self.agent.start()
        log.info("control plane ready after %.1f s", asyncio.get_running_loop().time() - began)

    def _failed(self, message: str) -> None:
        log.error("%s", message)
        self.failure = message

    async def ready(self) -> tuple[ControlPlane, Agent]:
        """The live control plane. Raises `ControlPlaneError` where none is, or it has failed."""
        if self._starting is None:
            raise ControlPlaneError("there is no control plane: create one first")
        await asyncio.shield(self._starting)
        if self.failure:
            raise ControlPlaneError(self.failure)
        assert self.plane is not None
        assert self.agent is not None
        return self.plane, self.agent

    async def create(self, name: str) -> Object:
        """Name the pre-warmed control plane, or start one. Raises `ControlPlaneError`, `web.HTTPConflict`."""
        async with self._lock:
            if self.name is not None and self.name != name:
                raise _refusal(409, f"control plane {self.name!r} is live: a sandbox has one at a time")
            if self.name == name:
                raise _refusal(409, f"control plane {name!r} is there already")
            if self._starting is not None and self.failure:
                # What was pre-warmed has failed: once more, from nothing.
                await self.stop()
            if self._starting is None:
                self._begin_plane()
            plane, _ = await self.ready()
            self.name = name
            return {"name": name, "ca_pem": plane.authority.pem, "admin_token": plane.token}

    async def delete(self, name: str) -> None:
        """End the control plane with its nodes and pods, and wipe its state. Raises `web.HTTPNotFound`."""
        async with self._lock:
            if self.name != name:
                raise _refusal(404, f"there is no control plane {name!r}")
            await self.stop()
            self.name = None

    async def stop(self) -> None:
        """End pods, nodes and control plane, in that order; a failure of theirs is forgotten."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        self._starting = None
        if self.agent is not None:
            await self.agent.close()
            self.agent = None
        if self.plane is not None:
            await self.plane.stop()
            self.plane = None
        self.failure = ""
        for name in POD_FOLDERS:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def status(self) -> Object:
        """What `GET /status` answers."""
        agent, plane = self.agent, self.plane
        nodes = list(agent.fleet.nodes.values()) if agent else []
        return {
            "control_plane": {
                "name": self.name,
                "version": KUBERNETES_VERSION,
                "ready": agent is not None and not self.failure,
                "progress": plane.progress,
            }
            if plane
            else None,
            "nodes": [
                {
                    "name": n.name,
                    "group": n.group.name,
                    "address": n.address,
                    "lost": n.lost,
                    "devices": sorted(n.devices),
                }
                for n in nodes
            ],
            "failure": self.failure,
            "pods": len(agent.workers) if agent else 0,
            "processes": sum(1 for name in os.listdir("/proc") if name.isdigit()),
        }

    async def fault(self, body: Object) -> Object:
        """Do what `POST /faults` asks. Raises `web.HTTPBadRequest`, `web.HTTPNotFound`, `ControlPlaneError`."""
        _, agent = await self.ready()
        kind = body.get("kind")
        try:
            if kind == "kill":
                return self._kill(agent, body)
            if kind == "lose-node":
                await agent.fleet.lose(body["node"])
            elif kind == "return-node":
                await agent.fleet.bring_back(body["node"])
            elif kind == "xid":
                node = agent.fleet.nodes[body["node"]]
                node.xid[int(body.get("gpu", 0))] = int(body["xid"])
                agent.fleet.devices_changed(node)
            else:
                raise _refusal(400, f"kind {kind!r}: not one of kill, lose-node, return-node, xid")
        except KeyError as error:
            raise _refusal(404, f"{kind}: {error.args[0]!r} is missing or not there") from None
        return {}

    def _kill(self, agent: Agent, body: Object) -> Object:
        worker = agent.worker(body["namespace"], body["pod"])
        if worker is None:
            raise _refusal(404, f"pod {body['namespace']}/{body['pod']} does not run here")
        pids = [container.launched.pid for container in worker.containers if container.launched is not None]
        try:
            hit = faults.kill(pids, int(body.get("signal", signal.SIGKILL)), body.get("match"))
        except (re.error, ValueError) as error:
            raise _refusal(400, f"match or signal: {error}") from None
        return {"killed": [{"pid": process.pid, "command": process.command} for process in hit]}


def _refusal(status: int, message: str) -> web.HTTPException:
    kinds: dict[int, type[web.HTTPException]] = {
        400: web.HTTPBadRequest,
        404: web.HTTPNotFound,
        409: web.HTTPConflict,
        503: web.HTTPServiceUnavailable,
    }
    return kinds[status](text=json.dumps({"error": message}), content_type="application/json")


def application(machine: Machine) -> web.Application:
    """The HTTP API."""

    @web.middleware
    async def told(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answer: web.StreamResponse = await handler(request)
        except (ControlPlaneError, ApiError, aiohttp.ClientError, OSError) as error:
            raise _refusal(503, str(error)) from None
        except NodeGroupError as error:
            raise _refusal(400, str(error)) from None
        return answer

    async def create(request: web.Request) -> web.Response:
        body = await request.json()
        version = str(body.get("version") or KUBERNETES_VERSION)
        if version != KUBERNETES_VERSION:
            raise _refusal(400, f"version: {version!r} is not what this sandbox has ({KUBERNETES_VERSION})")
        return web.json_response(await machine.create(body["name"]))

    async def delete(request: web.Request) -> web.Response:
        await machine.delete(request.match_info["name"])
        return web.json_response({})

    async def put_group(request: web.Request) -> web.Response:
        group = NodeGroup.parse(request.match_info["group"], await request.json())
        _, agent = await machine.ready()
        return web.json_response({"nodes": await agent.fleet.apply(group)})

    async def delete_group(request: web.Request) -> web.Response:
        _, agent = await machine.ready()
        await agent.fleet.remove(request.match_info["group"])
        return web.json_response({})

    async def status(_: web.Request) -> web.Response:
        return web.json_response(machine.status())

    async def fault(request: web.Request) -> web.Response:
        return web.json_response(await machine.fault(await request.json()))

    app = web.Application(middlewares=[told])
    app.router.add_post("/control-planes", create)
    app.router.add_delete("/control-planes/{name}", delete)
    app.router.add_put("/node-groups/{group}", put_group)
    app.router.add_delete("/node-groups/{group}", delete_group)
    app.router.add_get("/status", status)
    app.router.add_post("/faults", fault)
    return app


Reach = Callable[[], Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Forwarder:
    """Leads connections on to where ``reach`` connects to."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._open: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await self._reach()
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(_pump(reader, other_writer), _pump(other_reader, writer))
        finally:
            writer.close()
            other_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        # One side is gone without a word: so is the other, for both directions.
        writer.close()


def _end_with_parent(loop: asyncio.AbstractEventLoop, ending: asyncio.Event) -> None:
    """The other end of standard input is the sandbox daemon's: its end is ours, even where the loop hangs."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(ending.set)
    threading.Event().wait(LAST_SECONDS)
    os._exit(1)


async def serve(folder: Path, toolchain: Path) -> None:
    """Until the end is asked for."""
    machine = Machine(folder, toolchain)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, machine.ending.set)
    threading.Thread(target=_end_with_parent, args=(loop, machine.ending), daemon=True).start()
    await machine.start()
    runner = web.AppRunner(application(machine), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    for name in SOCKETS:
        (machine.run / name).unlink(missing_ok=True)
    await web.UnixSite(runner, str(machine.run / "machine.sock")).start()
    inwards = Forwarder(lambda: asyncio.open_connection(GATEWAY, PORT))
    forwarder = await asyncio.start_unix_server(inwards.accept, str(machine.run / "api.sock"))
    outwards = Forwarder(lambda: asyncio.open_unix_connection(str(machine.run / AWS_SOCKET)))
    await asyncio.start_server(outwards.accept, GATEWAY, AWS_PORT)
    await machine.ending.wait()
    forwarder.close()
    loop.call_later(LAST_SECONDS, os._exit, 1)
    await machine.stop()
    await runner.cleanup()
    for name in SOCKETS:
        (machine.run / name).unlink(missing_ok=True)


def main() -> int:
    """Run the machine room; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if len(sys.argv) != 2 or not os.environ.get(TOOLCHAIN_VARIABLE):
        print(f"use: {TOOLCHAIN_VARIABLE}=FOLDER python -m eks_fsdp.sandbox.machine DIR", file=sys.stderr)
        return 2
    linux.become_subreaper()
    asyncio.run(serve(Path(sys.argv[1]).absolute(), Path(os.environ[TOOLCHAIN_VARIABLE])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
