"""The network of the machine room: one bridge, and a network namespace for each pod and node.

All netlink work happens in one thread of its own: a thread can change its network namespace without the others noticing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from eks_fsdp.sandbox import linux

BRIDGE = "eks0"
GATEWAY = "10.244.0.1"
PREFIX_LENGTH = 16
FIRST_POD = (10 << 24) + (244 << 16) + (1 << 8)
POD_ADDRESSES = 127 << 8
"""10.244.1.0 to 10.244.127.255 are pods', 10.244.128.0 to 10.244.255.254 nodes'."""
FIRST_NODE = (10 << 24) + (244 << 16) + (128 << 8)
NODE_ADDRESSES = (128 << 8) - 2

Result = TypeVar("Result")


def dotted(address: int) -> str:
    """``183763201`` as ``10.244.1.1``."""
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


class Network:
    """Makes network namespaces with an ``eth0`` on the bridge. Raises OSError or pyroute2's NetlinkError."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="network")
        self._next = 0
        self._links = 0

    async def start(self) -> None:
        """Bring up loopback and the bridge in the machine room's own namespace."""
        await self._run(_make_bridge)

    def pod_address(self) -> str:
        """The next address for a pod; they come round again after 32,000."""
        self._next = self._next % (POD_ADDRESSES - 2) + 1
        return dotted(FIRST_POD + self._next)

    async def create(self, address: str) -> int:
        """A descriptor of a new namespace with ``eth0`` at ``address``. It ends when the last descriptor and process do."""
        self._links += 1
        making = asyncio.ensure_future(self._run(_make_namespace, f"veth{self._links}", address))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread goes on: nobody waits for the descriptor any more, and without this nobody would close it.
            making.add_done_callback(_close)
            raise

    async def listen(self, namespace: int, address: str, port: int) -> socket.socket:
        """A listening TCP socket that lives in ``namespace``."""
        return await self._run(_listen, namespace, address, port)

    async def _run(self, function: Callable[..., Result], *args: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _close(made: asyncio.Future[int]) -> None:
    if not made.cancelled() and made.exception() is None:
        os.close(made.result())


def _make_bridge() -> None:
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        ip.link("add", ifname=BRIDGE, kind="bridge")
        index = ip.link_lookup(ifname=BRIDGE)[0]
        ip.addr("add", index=index, address=GATEWAY, prefixlen=PREFIX_LENGTH)
        ip.link("set", index=index, state="up")


def _make_namespace(link: str, address: str) -> int:
    from pyroute2 import IPRoute

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with IPRoute() as outside:
            linux.unshare(linux.CLONE_NEWNET)
            try:
                namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                with IPRoute() as inside:
                    outside.link("add", ifname=link, kind="veth", peer={"ifname": "eth0", "net_ns_fd": namespace})
                    bridge = outside.link_lookup(ifname=BRIDGE)[0]
                    outside.link("set", index=outside.link_lookup(ifname=link)[0], master=bridge, state="up")
                    inside.link("set", index=inside.link_lookup(ifname="lo")[0], state="up")
                    index = inside.link_lookup(ifname="eth0")[0]
                    inside.addr("add", index=index, address=address, prefixlen=PREFIX_LENGTH)
                    inside.link("set", index=index, state="up")
                    inside.route("add", dst="default", gateway=GATEWAY)
                return namespace
            finally:
                linux.setns(home, linux.CLONE_NEWNET)
    finally:
        os.close(home)


def _listen(namespace: int, address: str, port: int) -> socket.socket:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.setns(namespace, linux.CLONE_NEWNET)
        try:
            return socket.create_server((address, port))
        finally:
            linux.setns(home, linux.CLONE_NEWNET)
    finally:
        os.close(home)
