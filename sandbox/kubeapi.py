"""A thin asynchronous client of the Kubernetes API: plain dictionaries in and out, and a watch that does not give up."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

Object = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
REQUEST_TIMEOUT = 30.0
"""Seconds for one request that is not a watch."""
WATCH_SECONDS = 1800
"""The API server ends a watch after this time; it is then taken up where it was."""
RETRY_SECONDS = 0.5


class ApiError(RuntimeError):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class KubeApi:
    """One API server. `close` it."""

    def __init__(self, server: str, ca_file: str, token: str) -> None:
        self.server = server
        context = ssl.create_default_context(cafile=ca_file)
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT),
        )

    async def close(self) -> None:
        """Drop every connection."""
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **params: str
    ) -> Object:
        """The decoded answer. Raises `ApiError`, aiohttp.ClientError or TimeoutError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind} if data is not None else {}
        async with self._session.request(
            method, self.server + path, data=data, headers=headers, params=params
        ) as answer:
            text = await answer.text()
        try:
            value: Object = json.loads(text)
        except ValueError:
            value = {"message": text}
        if answer.status >= 300:
            raise ApiError(answer.status, str(value.get("reason", "")), str(value.get("message", text)))
        return value

    async def get(self, path: str) -> Object:
        """Read one object."""
        return await self.request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection, or a subresource's."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = STRATEGIC) -> Object:
        """Patch one object."""
        return await self.request("PATCH", path, body, kind=kind)

    async def delete(self, path: str, body: Object | None = None) -> None:
        """Delete one object; it is no error that it is not there."""
        try:
            await self.request("DELETE", path, body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _events(self, path: str, version: str) -> AsyncIterator[Object]:
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT)
        async with self._session.get(self.server + path, params=params, timeout=forever) as answer:
            if answer.status >= 300:
                raise ApiError(answer.status, "", await answer.text())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def follow(self, path: str, handle: Callable[[str, Object], None], synced: asyncio.Event) -> None:
        """Call ``handle(ADDED | MODIFIED | DELETED, object)`` for every object of a collection, for ever.

        ``synced`` is set once the first list was handled. A broken watch is taken up again; what went meanwhile is told
        as DELETED. Ends only when cancelled.
        """
        known: dict[str, Object] = {}
        while True:
            try:
                listed = await self.get(path)
                current = {item["metadata"]["uid"]: item for item in listed["items"]}
                for uid in known.keys() - current.keys():
                    handle("DELETED", known.pop(uid))
                for uid, item in current.items():
                    handle("MODIFIED" if uid in known else "ADDED", item)
                known = current
                synced.set()
                version = listed["metadata"]["resourceVersion"]
                while True:
                    async for event in self._events(path, version):
                        if event["type"] == "ERROR":
                            raise ApiError(int(event["object"].get("code", 0)), "watch", str(event["object"]))
                        item = event["object"]
                        version = item["metadata"]["resourceVersion"]
                        if event["type"] == "DELETED":
                            known.pop(item["metadata"]["uid"], None)
                        else:
                            known[item["metadata"]["uid"]] = item
                        handle(event["type"], item)
            except (ApiError, aiohttp.ClientError, TimeoutError, ValueError):
                await asyncio.sleep(RETRY_SECONDS)
