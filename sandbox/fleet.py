"""The nodes of the sandbox: they join, beat, lose and regain their machines, and leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from eks_fsdp.sandbox.images import device_plugin
from eks_fsdp.sandbox.kubeapi import ApiError
from eks_fsdp.sandbox.kubelet import Kubelet
from eks_fsdp.sandbox.logs import timestamp
from eks_fsdp.sandbox.nodes import KUBELET_PORT, Node, NodeGroup, NodeGroupError, lease, node_address
from eks_fsdp.spec.names import GPU_RESOURCE

if TYPE_CHECKING:
    from eks_fsdp.sandbox.agent import Agent
    from eks_fsdp.sandbox.pods import PodWorker

Object = dict[str, Any]
HEARTBEAT_SECONDS = 5.0
REMOVAL_SECONDS = 10.0
REMOVAL_GRACE_SECONDS = 3
RETRY_SECONDS = 0.5
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
log = logging.getLogger("fleet")


class Fleet:
    """All nodes of one control plane. ``agent`` runs their pods."""

    def __init__(self, agent: Agent, kubelet: Kubelet) -> None:
        self.nodes: dict[str, Node] = {}
        self.namespaces: dict[str, int] = {}
        """Node name -> descriptor of its network namespace."""
        self._agent = agent
        self._api = agent.api
        self._kubelet = kubelet
        self._gpus: dict[str, list[int]] = {}
        self._groups_lock = asyncio.Lock()

    async def close(self) -> None:
        """Forget every node; the API is told nothing."""
        for node in list(self.nodes.values()):
            await self._drop(node)

    def node_of(self, pod: Object) -> Node | None:
        """The node that a pod is bound to, where its machine is there."""
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        return node if node is not None and not node.lost and node.name in self.namespaces else None

    async def apply(self, group: NodeGroup) -> list[str]:
        """Make the nodes of ``group`` what it says; their names. Returns once they are registered and ready.

        Raises `NodeGroupError` where the group's zone is another one than before, `ApiError`.
        """
        async with self._groups_lock:
            mine = {node.index: node for node in self.nodes.values() if node.group.name == group.name}
            moved = next((node for node in mine.values() if node.group.zone != group.zone), None)
            if moved is not None:
                raise NodeGroupError(f"zone: {group.zone!r} is not where the group's nodes are ({moved.group.zone!r})")
            surplus = [node for index, node in mine.items() if index >= group.desired]
            joins = [self._join(group, index) for index in range(group.desired) if index not in mine]
            updates = [self._update(n, group) for n in mine.values() if n.index < group.desired and n.group != group]
            await asyncio.gather(*joins, *updates, *(self._leave(node) for node in surplus))
            return sorted(node.name for node in self.nodes.values() if node.group.name == group.name)

    async def remove(self, name: str) -> None:
        """Remove all nodes of a group, with their pods."""
        async with self._groups_lock:
            await asyncio.gather(*(self._leave(n) for n in list(self.nodes.values()) if n.group.name == name))

    async def _join(self, group: NodeGroup, index: int) -> None:
        node = Node(group, index, node_address(group.name, index, {node.address for node in self.nodes.values()}))
        # Taken before the first await, so that no other node takes the address.
        self.nodes[node.name] = node
        try:
            self.namespaces[node.name] = await self._agent.network.create(node.address)
            await self._listen(node)
            self.device_folder(node).mkdir(parents=True, exist_ok=True)
            await self._api.create("/api/v1/nodes", node.manifest())
            await self._report(node, Node.status)
            await self._beat(node)
        except BaseException:
            await self._drop(node)
            # Its object would refuse the next attempt.
            with contextlib.suppress(ApiError, aiohttp.ClientError, TimeoutError):
                await self._api.delete(f"/api/v1/nodes/{node.name}")
            raise
        self.devices_changed(node)
        log.info("node %s joined group %s", node.name, group.name)

    async def _listen(self, node: Node) -> None:
        socket = await self._agent.network.listen(self.namespaces[node.name], node.address, KUBELET_PORT)
        await self._kubelet.open(node.name, socket, self._agent)

    async def _update(self, node: Node, group: NodeGroup) -> None:
        before, old = node.group, node.labels()
        node.group = group
        manifest = node.manifest()
        spec = {"taints": manifest["spec"].get("taints", [])}
        # null takes a label away.
        labels = {**dict.fromkeys(old), **manifest["metadata"]["labels"]}
        try:
            await self._api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": labels}, "spec": spec})
        except BaseException:
            # So that the next `apply` sees that there is something to do.
            node.group = before
            raise
        await self._report_resources(node)

    async def _leave(self, node: Node) -> None:
        # The object first: its DaemonSets then start nothing new here.
        await self._api.delete(f"/api/v1/nodes/{node.name}")
        await self._api.delete(f"{LEASES}/{node.name}")
        mine = [pod for pod in self._agent.pods.values() if pod["spec"].get("nodeName") == node.name]
        grace = 0 if node.lost else REMOVAL_GRACE_SECONDS
        await asyncio.gather(*(self._delete_pod(pod, grace) for pod in mine))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REMOVAL_SECONDS):
                while any(worker.node is node for worker in self._agent.workers.values()):
                    await asyncio.sleep(0.1)
        left = [pod for pod in self._agent.pods.values() if pod["spec"].get("nodeName") == node.name]
        await asyncio.gather(*(self._delete_pod(pod, 0) for pod in left))
        for uid in [uid for uid, worker in self._agent.workers.items() if worker.node is node]:
            await self._agent.workers.pop(uid).abandon()
        await self._drop(node)
        log.info("node %s left", node.name)

    async def _drop(self, node: Node) -> None:
        await self._kubelet.close(node.name)
        self.nodes.pop(node.name, None)
        namespace = self.namespaces.pop(node.name, None)
        if namespace is not None:
            os.close(namespace)

    async def _delete_pod(self, pod: Object, grace: int) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            body = {"gracePeriodSeconds": grace, "preconditions": {"uid": metadata["uid"]}}
            await self._api.delete(path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    async def lose(self, name: str) -> None:
        """The node's machine vanishes: processes, heartbeat and kubelet. Raises KeyError."""
        node = self.nodes[name]
        if node.lost:
            return
        node.lost = True
        await self._kubelet.close(name)
        uids = [uid for uid, worker in self._agent.workers.items() if worker.node is node]
        await asyncio.gather(*(self._agent.workers.pop(uid).abandon() for uid in uids))
        node.devices = frozenset()

    async def bring_back(self, name: str) -> None:
        """The node's machine is back, freshly booted: what was bound to it starts again. Raises KeyError."""
        node = self.nodes[name]
        if not node.lost:
            return
        node.lost = False
        await self._listen(node)
        await self._beat(node)
        await self._report(node, Node.status)
        for pod in [pod for pod in self._agent.pods.values() if pod["spec"].get("nodeName") == name]:
            self._agent.work(pod, lost_before=True)

    async def _report(self, node: Node, status: Callable[[Node], Object]) -> None:
        # One at a time, and read only then: two on their way at once could arrive in either order, and the older one
        # would take back what the newer one told.
        async with node.reporting:
            await self._api.patch(f"/api/v1/nodes/{node.name}/status", {"status": status(node)})

    async def _report_resources(self, node: Node) -> None:
        while node.name in self.nodes and not node.lost:
            try:
                await self._report(node, Node.resources)
                return
            except ApiError as error:
                if error.status == 404:
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def heartbeats(self) -> None:
        """Renew every living node's lease, for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            alive = [node for node in self.nodes.values() if not node.lost]
            await asyncio.gather(*(self._beat(node) for node in alive), return_exceptions=True)

    async def _beat(self, node: Node) -> None:
        body = lease(node, timestamp())
        try:
            await self._api.patch(f"{LEASES}/{node.name}", body)
        except ApiError as error:
            if error.status != 404:
                raise
            try:
                await self._api.create(LEASES, body)
            except ApiError as other:
                # The regular heartbeat of a node that has just joined may come first.
                if other.status != 409:
                    raise

    def device_folder(self, node: Node) -> Path:
        """Where the exporter of a node reads the state of its devices."""
        return self._agent.folder / "nodes" / node.name / "devices"

    def devices_changed(self, node: Node) -> None:
        """A pod of the node changed: look again at its device plugins and at who uses its GPUs."""
        self._agent.soon(f"devices {node.name}", self._look_at_devices, node)

    def _look_at_devices(self, node: Node) -> None:
        if node.lost or node.name not in self.nodes:
            return
        mine = [worker for worker in self._agent.workers.values() if worker.node is node]
        plugins = frozenset(
            plugin
            for worker in mine
            for container in worker.containers
            if container.status.running and (plugin := device_plugin(container.spec["image"]))
        )
        if plugins != node.devices:
            node.devices = plugins
            self._agent.spawn(self._report_resources(node), f"resources of node {node.name}")
        users = [
            {"namespace": w.namespace, "pod": w.name, "container": w.containers[-1].name, "gpus": self._gpus[w.uid]}
            for w in mine
            if w.uid in self._gpus and w.phase == "Running"
        ]
        state = {"node": node.name, "gpus": node.group.gpus, "users": users, "xid": node.xid}
        path = self.device_folder(node) / "state.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.replace(path)

    def assign_gpus(self, worker: PodWorker) -> None:
        """Choose GPUs of its node for a new pod that asks for some."""
        wanted = worker.requests(GPU_RESOURCE)
        if wanted:
            mine = [
                w.uid
                for w in self._agent.workers.values()
                if w.node is worker.node and w.phase in ("Pending", "Running")
            ]
            taken = {index for uid in mine for index in self._gpus.get(uid, [])}
            free = [index for index in range(worker.node.group.gpus) if index not in taken]
            self._gpus[worker.uid] = free[:wanted]

    def forget_pod(self, uid: str) -> None:
        """Its GPUs are free."""
        self._gpus.pop(uid, None)
