"""A TCP port on 127.0.0.1 that leads to a unix socket: the way from outside to the API server in its namespace."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

CHUNK = 256 * 1024


class Forwarder:
    """Runs in a thread of its own."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._server: asyncio.Server | None = None

    def start(self) -> int:
        """Listen. Returns the port; the target need not be there yet."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=10)

    async def _start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=256)
        return int(self._server.sockets[0].getsockname()[1])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.close()
            return
        pair = (_copy(reader, far_writer), _copy(far_reader, writer))
        await asyncio.gather(*pair, return_exceptions=True)
        for end in (writer, far_writer):
            end.close()

    def stop(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reader ends; then the writer's end is closed too, so that half-open connections end by themselves."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()
