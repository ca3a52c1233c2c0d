"""Startup, readiness and liveness probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

Object = dict[str, Any]
RunCommand = Callable[[list[str]], Awaitable[int]]
"""Runs a command in the container and gives its exit code."""


@dataclass(frozen=True)
class Target:
    """What a probe is sent to."""

    address: str
    container: Object
    run: RunCommand

    def port(self, given: int | str) -> int:
        """A port by number or by the container's name for it. Raises ValueError."""
        if isinstance(given, int) or str(given).isdigit():
            return int(given)
        for port in self.container.get("ports", []):
            if port.get("name") == given:
                return int(port["containerPort"])
        raise ValueError(f"the container has no port {given!r}")


async def attempt(probe: Object, target: Target) -> str | None:
    """Probe once. None where it passed, else what happened."""
    seconds = probe.get("timeoutSeconds", 1)
    try:
        async with asyncio.timeout(seconds):
            if "httpGet" in probe:
                return await _http(probe["httpGet"], target)
            if "exec" in probe:
                code = await target.run(list(probe["exec"]["command"]))
                return None if code == 0 else f"command ended with code {code}"
            socket = probe.get("tcpSocket") or probe.get("grpc") or {}
            _, writer = await asyncio.open_connection(socket.get("host") or target.address, target.port(socket["port"]))
            writer.close()
            return None
    except TimeoutError:
        return f"no answer within {seconds} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return str(error) or type(error).__name__


async def _http(get: Object, target: Target) -> str | None:
    scheme = get.get("scheme", "HTTP").lower()
    url = (
        f"{scheme}://{get.get('host') or target.address}:{target.port(get['port'])}/{get.get('path', '/').lstrip('/')}"
    )
    headers = {header["name"]: header["value"] for header in get.get("httpHeaders", [])}
    headers.setdefault("User-Agent", "kube-probe/1.34")
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as answer:
        if 200 <= answer.status < 400:
            return None
        return f"HTTP status {answer.status}"


async def repeat(probe: Object, target: Target, *, passed: Callable[[], None], failed: Callable[[str], None]) -> None:
    """Probe for ever: call ``passed`` or ``failed`` each time the threshold for it is reached."""
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    good = bad = 0
    while True:
        problem = await attempt(probe, target)
        if problem is None:
            good, bad = good + 1, 0
            if good >= probe.get("successThreshold", 1):
                passed()
        else:
            good, bad = 0, bad + 1
            if bad >= probe.get("failureThreshold", 3):
                failed(problem)
        await asyncio.sleep(probe.get("periodSeconds", 10))
