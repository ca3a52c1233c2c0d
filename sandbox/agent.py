"""The node agent: the kubelets of all nodes in one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from eks_fsdp.sandbox import hosts
from eks_fsdp.sandbox.environment import ConfigurationError
from eks_fsdp.sandbox.fleet import Fleet
from eks_fsdp.sandbox.images import ImageTable
from eks_fsdp.sandbox.kubeapi import ApiError, KubeApi
from eks_fsdp.sandbox.kubelet import Kubelet
from eks_fsdp.sandbox.launch import Launcher
from eks_fsdp.sandbox.logs import timestamp
from eks_fsdp.sandbox.network import Network
from eks_fsdp.sandbox.pod_identity import Identities
from eks_fsdp.sandbox.pods import PodWorker

Object = dict[str, Any]
SYNC_SECONDS = 30.0
SETTLE_SECONDS = 0.05
"""Changes that come together are handled together."""
REFRESH_SECONDS = 60.0
EVENT_REPEAT_SECONDS = 30.0
COLLECTIONS = {
    "ConfigMap": "/api/v1/configmaps",
    "Secret": "/api/v1/secrets",
    "Service": "/api/v1/services",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
}
log = logging.getLogger("agent")


class Agent:
    """All nodes of one control plane. `start` it, and `close` it with the control plane."""

    def __init__(
        self, *, folder: Path, api: KubeApi, api_host: str, api_port: int, network: Network, launcher: Launcher,
        images: ImageTable, kubelet: Kubelet, identities: Identities,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.logs = folder / "logs"
        self.api = api
        self.api_host = api_host
        self.api_port = api_port
        self.network = network
        self.launcher = launcher
        self.images = images
        self.identities = identities
        self.pods: dict[str, Object] = {}
        self.workers: dict[str, PodWorker] = {}
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._service_lines: dict[str, list[str]] = {}
        self._events: dict[tuple[str, str, str], float] = {}
        self._pending: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.fleet = Fleet(self, kubelet)

    async def start(self) -> None:
        """Watch the API. Raises TimeoutError where it does not answer within `SYNC_SECONDS`."""
        synced = []
        for kind, path in COLLECTIONS.items():
            synced.append(event := asyncio.Event())
            self.spawn(self.api.follow(path, self._handler(kind), event), f"watch of {kind}")
        async with asyncio.timeout(SYNC_SECONDS):
            for event in synced:
                await event.wait()
            self.spawn(self.api.follow("/api/v1/pods", self._pod, pods := asyncio.Event()), "watch of pods")
            await pods.wait()
        self.spawn(self.fleet.heartbeats(), "heartbeats")
        self.spawn(self._refreshes(), "refresh of volumes")

    async def close(self) -> None:
        """End every pod's processes and forget everything; the API is told nothing."""
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(worker.abandon() for worker in self.workers.values()))
        await self.fleet.close()
        self.workers.clear()
        await self.api.close()

    def spawn(self, coroutine: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run in the background; an unexpected end is logged."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)

        def ended(done: asyncio.Task[Any]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                log.error("%s failed", what, exc_info=done.exception())

        task.add_done_callback(ended)
        return task

    # Pods.

    def _pod(self, change: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if change == "DELETED":
            self.pods.pop(uid, None)
            self.fleet.forget_pod(uid)
            worker = self.workers.pop(uid, None)
            if worker is not None:
                self.spawn(self._forget(worker), f"end of pod {worker.namespace}/{worker.name}")
            return
        self.pods[uid] = pod
        worker = self.workers.get(uid)
        if worker is not None:
            worker.update(pod)
        else:
            self.work(pod)

    def work(self, pod: Object, *, lost_before: bool = False) -> None:
        """Run a pod where it is bound to one of our nodes; ``lost_before``: it ran there until the node was lost."""
        node = self.fleet.node_of(pod)
        if node is None:
            return
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") and not pod["metadata"].get(
            "deletionTimestamp"
        ):
            return
        worker = PodWorker(self, node, pod, lost_before=lost_before)
        self.workers[worker.uid] = worker
        self.fleet.assign_gpus(worker)
        worker.start()
        worker.update(pod)

    async def _forget(self, worker: PodWorker) -> None:
        await worker.abandon()
        worker.remove_files()
        self.fleet.devices_changed(worker.node)

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """By the pod's name."""
        return next((w for w in self.workers.values() if w.name == name and w.namespace == namespace), None)

    def event(self, pod: Object, node: str, kind: str, reason: str, message: str) -> None:
        """Create an Event for a pod, unless the same was told just now."""
        metadata = pod["metadata"]
        moment = asyncio.get_running_loop().time()
        key = (metadata["uid"], reason, message)
        if moment - self._events.get(key, -EVENT_REPEAT_SECONDS) < EVENT_REPEAT_SECONDS:
            return
        self._events = {k: t for k, t in self._events.items() if moment - t < EVENT_REPEAT_SECONDS}
        self._events[key] = moment
        now = timestamp()[:19] + "Z"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name'][:50]}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.spawn(self._tell(f"/api/v1/namespaces/{metadata['namespace']}/events", body), "event")

    async def _tell(self, path: str, body: Object) -> None:
        # An event is told once: in a namespace that ends it cannot be, and nothing depends on it.
        with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
            await self.api.create(path, body)

    def log(self, message: str) -> None:
        """Into the machine room's log."""
        log.warning("%s", message)

    # Objects that pods see.

    def _handler(self, kind: str) -> Any:
        def handle(change: str, item: Object) -> None:
            key = (kind, item["metadata"]["namespace"], item["metadata"]["name"])
            if change == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = item
            if kind in ("Service", "EndpointSlice"):
                self.soon("names", self._rewrite_names)
            else:
                for worker in self.workers.values():
                    if worker.namespace == key[1] and worker.volumes.uses(kind, key[2]):
                        self.spawn(worker.volumes.refresh(), f"volumes of {worker.namespace}/{worker.name}")

        return handle

    def lookup(self, kind: str, namespace: str, name: str) -> Object | None:
        """A ConfigMap or Secret, as last seen."""
        return self._objects.get((kind, namespace, name))

    def service_lines(self, namespace: str) -> list[str]:
        """The hosts file's lines for Services, for a pod in ``namespace``."""
        if namespace not in self._service_lines:
            items = {kind: [o for (k, _, _), o in self._objects.items() if k == kind] for kind in COLLECTIONS}
            headless = {
                (item["metadata"]["namespace"], item["metadata"]["name"])
                for item in items["Service"]
                if item["spec"].get("clusterIP") == "None"
            }
            endpoints = hosts.ready_endpoints(items["EndpointSlice"])
            self._service_lines[namespace] = hosts.service_lines(namespace, endpoints, headless)
        return self._service_lines[namespace]

    def _rewrite_names(self) -> None:
        self._service_lines.clear()
        for worker in self.workers.values():
            worker.write_names()

    async def _refreshes(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for worker in list(self.workers.values()):
                # Whatever is wrong with one pod's volumes, the others' tokens must not run out.
                with contextlib.suppress(ApiError, ConfigurationError, aiohttp.ClientError, OSError):
                    await worker.volumes.refresh()

    def soon(self, what: str, function: Any, *args: Any) -> None:
        """Call ``function`` in a moment, once for all calls with the same ``what`` until then."""
        if what in self._pending:
            return
        self._pending.add(what)

        def run() -> None:
            self._pending.discard(what)
            function(*args)

        asyncio.get_running_loop().call_later(SETTLE_SECONDS, run)
