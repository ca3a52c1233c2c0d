"""Ways between the sandbox's namespaces and the machine's: a TCP port on one side, a unix socket on the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

CHUNK = 256 * 1024


class Forwarder:
    """Leads a free port of 127.0.0.1 to a unix socket, or a unix socket to a port of it. Runs in a thread of its own."""

    def __init__(self, target: Path | int, listen: Path | None = None) -> None:
        """``target``: a socket or a port; ``listen``: the socket that leads to it, None: a port."""
        self._target = target
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._server: asyncio.Server | None = None

    def start(self) -> int:
        """Listen. Returns the port, 0 for a socket; the target need not be there yet."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(timeout=10)

    async def _start(self) -> int:
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._connected, str(self._listen), backlog=256)
            return 0
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=256)
        return int(self._server.sockets[0].getsockname()[1])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self._target, int):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            else:
                far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
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
