"""What a node tells of itself when its devices change faster than the API server answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from eks_fsdp.sandbox.fleet import Fleet
from eks_fsdp.sandbox.images import EFA_PLUGIN, GPU_PLUGIN
from eks_fsdp.sandbox.nodes import Node, NodeGroup


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
        group = NodeGroup(
            name="p5", desired=1, instance_type="p5.48xlarge", cpu=192, memory_mib=2_097_152, gpus=8, efa_interfaces=32,
            pods=100, zone="us-west-2a", labels={}, taints=(),
        )  # fmt: skip
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
