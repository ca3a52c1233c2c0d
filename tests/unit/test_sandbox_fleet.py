"""Nodes whose devices change faster than the API server answers, and an API server that fails in between."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eks_fsdp.sandbox import agent, network
from eks_fsdp.sandbox.environment import ConfigurationError
from eks_fsdp.sandbox.fleet import Fleet
from eks_fsdp.sandbox.images import EFA_PLUGIN, GPU_PLUGIN
from eks_fsdp.sandbox.kubeapi import ApiError
from eks_fsdp.sandbox.nodes import Node, NodeGroup


def node_group(**labels: str) -> NodeGroup:
    return NodeGroup(
        name="p5", desired=1, instance_type="p5.48xlarge", cpu=192, memory_mib=2_097_152, gpus=8, efa_interfaces=32,
        pods=100, labels=labels,
    )  # fmt: skip


class SlowApi:
    """Takes longer over the first report than over the next, so that two at once would arrive in the wrong order."""

    def __init__(self) -> None:
        self.capacity: dict[str, str] = {}
        self.delays = [0.05, 0.0]

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        """Merge, as the API server does."""
        await asyncio.sleep(self.delays.pop(0))
        self.capacity |= body["status"]["capacity"]


def test_the_newest_devices_win_however_slow_a_report_is() -> None:
    async def scenario() -> dict[str, str]:
        api = SlowApi()
        fleet = cast(Any, Fleet.__new__(Fleet))
        fleet._api = api
        fleet._agent = SimpleNamespace()
        group = node_group()
        node = Node(group, 0, "10.244.128.1")
        fleet.nodes = {node.name: node}
        node.devices = frozenset({GPU_PLUGIN})
        first = asyncio.create_task(fleet._report_resources(node))
        await asyncio.sleep(0)
        node.devices = frozenset({GPU_PLUGIN, EFA_PLUGIN})
        await asyncio.gather(first, asyncio.create_task(fleet._report_resources(node)))
        return api.capacity

    capacity = asyncio.run(scenario())
    assert capacity["nvidia.com/gpu"] == "8"
    assert capacity["vpc.amazonaws.com/efa"] == "32"


class RacingApi:
    """Has no lease yet, and says that somebody else has just made it."""

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        raise ApiError(404, "NotFound", path)

    async def create(self, path: str, body: dict[str, Any]) -> None:
        raise ApiError(409, "AlreadyExists", body["metadata"]["name"])


def test_two_first_beats_of_a_node_are_no_failure() -> None:
    fleet = cast(Any, Fleet.__new__(Fleet))
    fleet._api = RacingApi()
    asyncio.run(fleet._beat(Node(node_group(), 0, "10.244.128.1")))


class FailingApi:
    """Keeps Node objects, refuses a name that is taken, and fails on the next request of a kind in ``fails``."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.fails: set[str] = set()

    def _fail(self, kind: str) -> None:
        if kind in self.fails:
            self.fails.remove(kind)
            raise ApiError(500, "InternalError", "etcd is slow")

    async def create(self, path: str, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if name in self.nodes:
            raise ApiError(409, "AlreadyExists", name)
        self.nodes[name] = body

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        self._fail("status" if path.endswith("/status") else "node")
        if path.startswith("/api/v1/nodes/") and "metadata" in body:
            labels = self.nodes[path.split("/")[4]]["metadata"]["labels"]
            labels |= body["metadata"]["labels"]
            for name in [name for name, value in labels.items() if value is None]:
                del labels[name]

    async def delete(self, path: str, body: dict[str, Any] | None = None) -> None:
        self.nodes.pop(path.rsplit("/", 1)[-1], None)


class Silent:
    """Stands for the kubelets, the network and the agent."""

    def __init__(self, folder: Path, api: FailingApi) -> None:
        self.folder, self.api, self.network = folder, api, self
        self.pods: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}

    async def create(self, address: str) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    async def listen(self, *args: Any) -> None: ...

    async def open(self, *args: Any) -> None: ...

    async def close(self, node: str) -> None: ...

    def soon(self, *args: Any) -> None: ...


def test_a_join_or_an_update_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        api = FailingApi()
        rest = cast(Any, Silent(tmp_path, api))
        fleet = Fleet(rest, rest)
        api.fails = {"status"}
        with pytest.raises(ApiError, match="etcd is slow"):
            await fleet.apply(node_group(old="1"))
        (name,) = await fleet.apply(node_group(old="1"))
        assert api.nodes[name]["metadata"]["labels"]["old"] == "1"
        api.fails = {"node"}
        with pytest.raises(ApiError, match="etcd is slow"):
            await fleet.apply(node_group(new="2"))
        await fleet.apply(node_group(new="2"))
        labels = api.nodes[name]["metadata"]["labels"]
        assert labels["new"] == "2"
        assert "old" not in labels
        await fleet.close()

    asyncio.run(scenario())


def test_a_network_namespace_that_nobody_waits_for_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    going, opened = threading.Event(), []

    def make(link: str, address: str) -> int:
        going.wait(60)
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return opened[0]

    async def scenario() -> None:
        net = network.Network()
        waiting = asyncio.create_task(net.create("10.244.1.1"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        going.set()
        # The next use of its one thread comes after the first has been told of.
        await net._run(int)
        await asyncio.sleep(0)

    monkeypatch.setattr(network, "_make_namespace", make)
    asyncio.run(scenario())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_one_pods_volumes_do_not_end_the_refresh_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed: list[str] = []

    def worker(name: str, problem: Exception | None) -> Any:
        async def refresh() -> None:
            refreshed.append(name)
            if problem:
                raise problem

        return SimpleNamespace(volumes=SimpleNamespace(refresh=refresh))

    async def scenario() -> None:
        all_nodes = cast(Any, agent.Agent.__new__(agent.Agent))
        all_nodes.workers = {
            "1": worker("full disk", OSError(28, "No space left on device")),
            "2": worker("odd field", ConfigurationError("fieldPath 'x' is not supported")),
            "3": worker("token", None),
        }
        going = asyncio.create_task(all_nodes._refreshes())
        while len(refreshed) < 6:
            await asyncio.sleep(0)
            assert not going.done(), going.exception()
        going.cancel()

    monkeypatch.setattr(agent, "REFRESH_SECONDS", 0)
    asyncio.run(scenario())
    assert refreshed[:3] == refreshed[3:6] == ["full disk", "odd field", "token"]
