"""One pod on one node: network, volumes, containers in order, status, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from eks_fsdp.sandbox import hosts, mounts
from eks_fsdp.sandbox.containers import Container, Sandbox, base_mounts
from eks_fsdp.sandbox.environment import ConfigurationError, build
from eks_fsdp.sandbox.images import NODE_STATE, SYSTEM_PATH, Image
from eks_fsdp.sandbox.kubeapi import ApiError
from eks_fsdp.sandbox.logs import timestamp
from eks_fsdp.sandbox.nodes import Node
from eks_fsdp.sandbox.status import ContainerStatus, conditions, phase
from eks_fsdp.sandbox.volumes import VolumeError, VolumeFolders, Volumes

if TYPE_CHECKING:
    from eks_fsdp.sandbox.agent import Agent

Object = dict[str, Any]
SETUP_RETRY_SECONDS = 0.3
LAST_STATES_SECONDS = 3.0
"""For how long a deleted pod waits for its containers' last states to be known, and told."""
STATUS_RETRY_SECONDS = 0.5
POD_FILES = "/.pod"
REPLACE = {"$patch": "replace"}
"""In a list of a strategic merge patch: what is there goes, as after a node came back and its pods have new addresses."""
NAME_FILES = ("hosts", "hostname", "resolv.conf", "nsswitch.conf")


class PodWorker:
    """Runs a pod until it is over, keeps its status in the API, and removes it when it is deleted."""

    def __init__(self, agent: Agent, node: Node, pod: Object, *, lost_before: bool = False) -> None:
        self.agent = agent
        self.node = node
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.launcher = agent.launcher
        self.root: Path = agent.folder / "pods" / self.uid
        self.address = ""
        self.over = False
        self.deleting = False
        self.containers: list[Container] = []
        self._namespace: int | None = None
        self._identity: dict[str, str] = {}
        self._started = str(pod.get("status", {}).get("startTime") or timestamp()[:19] + "Z")
        self._set = False
        self._dirty = asyncio.Event()
        self._told_all = asyncio.Event()
        self._told: Object = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._make_containers(lost_before)
        self.volumes = Volumes(
            pod=pod,
            folder=self.root / "volumes",
            folders=VolumeFolders(agent.folder, node.name),
            lookup=self.lookup,
            claim=self._claim,
            token=self._token,
            node_capacity=node.allocatable(),
        )

    # What the pod is called, and what it asks for.

    @property
    def namespace(self) -> str:
        """The pod's Kubernetes namespace."""
        return str(self.pod["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def _account(self) -> str:
        return self.pod["spec"].get("serviceAccountName") or "default"

    @property
    def path(self) -> str:
        """Of the pod in the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    @property
    def phase(self) -> str:
        """Now."""
        policy = "Never" if self.deleting else self.pod["spec"].get("restartPolicy", "Always")
        return phase([container.status for container in self.containers], policy)

    def requests(self, resource: str) -> int:
        """Units of an extended resource over all containers."""
        found = 0
        for container in self.pod["spec"]["containers"]:
            found += int((container.get("resources", {}).get("limits") or {}).get(resource, 0))
        return found

    # Life.

    def start(self) -> None:
        """Begin; returns at once."""
        what = f"pod {self.namespace}/{self.name}"
        self._tasks = [self.agent.spawn(self._run(), what), self.agent.spawn(self._tell(), f"status of {what}")]
        self.changed()

    def update(self, pod: Object) -> None:
        """The pod's object changed; begin to end the pod where it was deleted."""
        self.pod = pod
        self.volumes.pod = pod
        if pod["metadata"].get("deletionTimestamp") and not self.deleting:
            self.deleting = True
            grace = pod["metadata"].get("deletionGracePeriodSeconds")
            seconds = self.grace if grace is None else float(grace)
            self._tasks.append(self.agent.spawn(self._delete(seconds), f"deletion of pod {self.namespace}/{self.name}"))

    async def abandon(self) -> None:
        """End the processes at once and say nothing: the node is gone, or the object is."""
        self.over = True
        for container in self.containers:
            container.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._release()

    async def _run(self) -> None:
        await self._set_up()
        running: list[asyncio.Task[None]] = []
        sidecars: list[Container] = []
        try:
            for container in self.containers:
                if container.status.kind == "init":
                    await container.run()
                    if container.status.exit_code != 0:
                        return
                elif container.status.kind == "sidecar":
                    sidecars.append(container)
                    running.append(asyncio.ensure_future(container.run()))
                    while not container.status.started and not running[-1].done():
                        await asyncio.sleep(0.1)
            mains = [container for container in self.containers if container.status.kind == "main"]
            running += [asyncio.ensure_future(container.run()) for container in mains]
            await asyncio.gather(*running[len(sidecars) :])
            await asyncio.gather(*(container.stop(self.grace) for container in sidecars))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self.changed()
            if not self.deleting:
                self._release()

    async def _set_up(self) -> None:
        if self.pod["spec"].get("hostNetwork"):
            self.address = self.node.address
            self._namespace = os.dup(self.agent.fleet.namespaces[self.node.name])
        else:
            self.address = self.agent.network.pod_address()
            self._namespace = await self.agent.network.create(self.address)
        # So that fieldRefs in environment and volumes find it before the API server has told it back.
        self.pod.setdefault("status", {}).update({"podIP": self.address, "hostIP": self.node.address})
        self.write_names()
        self._identity = await self.agent.identities.environment(self.namespace, self._account)
        while True:
            try:
                await self.volumes.prepare()
                break
            except (VolumeError, ConfigurationError, ApiError, aiohttp.ClientError, OSError) as error:
                self.event("Warning", "FailedMount", str(error))
            await asyncio.sleep(SETUP_RETRY_SECONDS)
        for container in self.containers:
            if "waiting" in container.status.state and container.status.kind == "main" and self._has_inits():
                container.status.state = {"waiting": {"reason": "PodInitializing"}}
        self._set = True
        self.changed()

    def _has_inits(self) -> bool:
        return any(container.status.kind != "main" for container in self.containers)

    async def _delete(self, grace: float) -> None:
        self.event("Normal", "Killing", f"Stopping pod, {grace:.0f} s to end")
        await asyncio.gather(*(container.stop(grace) for container in self.containers))
        main = self._tasks[0]
        if self._set:
            await asyncio.wait({main}, timeout=LAST_STATES_SECONDS)
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)
        self.changed()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told_all.wait(), LAST_STATES_SECONDS)
        self._release()
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while True:
            try:
                await self.agent.api.delete(self.path, body)
                return
            except ApiError as error:
                if error.status == 409:
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(STATUS_RETRY_SECONDS)

    def _release(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None

    def remove_files(self) -> None:
        """Delete the pod's volumes; its logs stay."""
        shutil.rmtree(self.root, ignore_errors=True)

    # Status.

    def changed(self) -> None:
        """Something of the status is another: tell the API soon."""
        self._dirty.set()
        self._told_all.clear()
        self.agent.fleet.devices_changed(self.node)

    async def _tell(self) -> None:
        while True:
            if not self._dirty.is_set():
                self._told_all.set()
            await self._dirty.wait()
            self._dirty.clear()
            status = self._status()
            if status == self._told:
                continue
            try:
                await self.agent.api.patch(f"{self.path}/status", {"metadata": {"uid": self.uid}, "status": status})
                self._told = status
            except ApiError as error:
                if error.status in (404, 409):
                    self._told_all.set()
                    return
                self.agent.log(f"pod {self.namespace}/{self.name}: {error}")
                await self._again()
            except (aiohttp.ClientError, TimeoutError):
                await self._again()

    async def _again(self) -> None:
        await asyncio.sleep(STATUS_RETRY_SECONDS)
        self._dirty.set()

    def _status(self) -> Object:
        statuses = [container.status for container in self.containers]
        current = self.phase
        before = self._told.get("conditions") or self.pod.get("status", {}).get("conditions") or []
        now = timestamp()[:19] + "Z"
        status: Object = {
            "phase": current,
            "hostIP": self.node.address,
            "hostIPs": [REPLACE, {"ip": self.node.address}],
            "startTime": self._started,
            "conditions": conditions(statuses, current, before, now),
            "containerStatuses": [status.render() for status in statuses if status.kind == "main"],
        }
        inits = [status.render() for status in statuses if status.kind != "main"]
        if inits:
            status["initContainerStatuses"] = inits
        if self.address:
            status["podIP"] = self.address
            status["podIPs"] = [REPLACE, {"ip": self.address}]
        return status

    def event(self, kind: str, reason: str, message: str) -> None:
        """See `containers.Pod`."""
        self.agent.event(self.pod, self.node.name, kind, reason, message)

    # What its containers see.

    def _make_containers(self, lost_before: bool) -> None:
        spec, old = self.pod["spec"], self.pod.get("status", {})
        before = {s["name"]: s for key in ("initContainerStatuses", "containerStatuses") for s in old.get(key) or []}
        policy = spec.get("restartPolicy", "Always")
        described = [
            (c, "sidecar" if c.get("restartPolicy") == "Always" else "init") for c in spec.get("initContainers", [])
        ]
        for container, kind in [*described, *((c, "main") for c in spec["containers"])]:
            status = ContainerStatus(container["name"], container["image"], kind)
            if lost_before and container["name"] in before:
                status.restarts = before[container["name"]].get("restartCount", 0) + 1
                status.last_state = before[container["name"]].get("lastState") or {}
            own = "Always" if kind == "sidecar" else policy
            if kind == "init" and policy == "Always":
                own = "OnFailure"
            self.containers.append(Container(self, container, self.agent.images.find(container["image"]), status, own))

    def container(self, name: str) -> Container | None:
        """By name."""
        return next((container for container in self.containers if container.name == name), None)

    def sandbox(self) -> Sandbox:
        """See `containers.Pod`."""
        assert self._namespace is not None
        hostname, _ = hosts.own_names(self.pod)
        return Sandbox(address=self.address, namespace=self._namespace, hostname=hostname)

    def environment(self, container: Object, image: Image) -> dict[str, str]:
        """See `containers.Pod`."""
        hostname, _ = hosts.own_names(self.pod)
        base = {
            "PATH": ":".join([*image.path, SYSTEM_PATH]),
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "HOSTNAME": hostname,
            "KUBERNETES_SERVICE_HOST": self.agent.api_host,
            "KUBERNETES_SERVICE_PORT": str(self.agent.api_port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(self.agent.api_port),
            **image.env,
            **self._identity,
        }
        return build(container, self.pod, base, self.lookup, self.node.allocatable())

    def files(self, container: Object, image: Image, message_file: Path) -> list[mounts.Operation]:
        """See `containers.Pod`."""
        links = {path: mounts.HOST + str(source) for path, source in image.files.items()}
        links.update({f"/etc/{name}": f"{POD_FILES}/{name}" for name in NAME_FILES})
        bound = [mounts.Mount(str(path), str(path), True) for path in image.needs if not mounts.is_shown(str(path))]
        bound.append(mounts.Mount(str(self.root / "names"), POD_FILES, True))
        if image.shows_devices:
            bound.append(mounts.Mount(str(self.agent.fleet.device_folder(self.node)), NODE_STATE, True))
        bound += base_mounts(message_file, container)
        bound += self.volumes.mounts(container)
        return mounts.plan(bound, links, mounts.RealHost())

    def folder(self, container: str) -> Path:
        """See `containers.Pod`."""
        return self.root / "containers" / container

    def log_path(self, container: str, run: int) -> Path:
        """See `containers.Pod`."""
        return self.agent.logs / "pods" / f"{self.namespace}_{self.name}_{self.uid}" / container / f"{run}.log"

    def write_names(self) -> None:
        """Bring the pod's hosts file up to date; replaced in one step, so that no reader sees half of it."""
        if not self.address or self._namespace is None:
            return
        hostname, names = hosts.own_names(self.pod)
        services = self.agent.service_lines(self.namespace)
        text = hosts.hosts_file(self.address, names, self.pod["spec"].get("hostAliases", []), services)
        folder = self.root / "names"
        folder.mkdir(parents=True, exist_ok=True)
        contents = {
            "hosts": text,
            "hostname": hostname + "\n",
            "resolv.conf": "# no name server: names come from /etc/hosts\noptions timeout:1 attempts:1\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        }
        for name, content in contents.items():
            path = folder / name
            with contextlib.suppress(OSError):
                if path.read_text() == content:
                    continue
            temporary = folder / f".{name}"
            temporary.write_text(content)
            temporary.replace(path)

    def lookup(self, kind: str, name: str) -> Object | None:
        """A ConfigMap or Secret of the pod's namespace."""
        return self.agent.lookup(kind, self.namespace, name)

    async def _claim(self, name: str) -> Object:
        try:
            claim = await self.agent.api.get(f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{name}")
        except ApiError as error:
            raise VolumeError(f"persistentvolumeclaim {name!r}: {error.message}") from None
        volume = claim["spec"].get("volumeName")
        if not volume or claim.get("status", {}).get("phase") != "Bound":
            raise VolumeError(f"persistentvolumeclaim {name!r} is not bound")
        return await self.agent.api.get(f"/api/v1/persistentvolumes/{volume}")

    async def _token(self, audience: str | None, seconds: int) -> str:
        reference = {"kind": "Pod", "apiVersion": "v1", "name": self.name, "uid": self.uid}
        spec: Object = {"expirationSeconds": seconds, "boundObjectRef": reference}
        if audience:
            spec["audiences"] = [audience]
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self._account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str((await self.agent.api.create(path, body))["status"]["token"])
