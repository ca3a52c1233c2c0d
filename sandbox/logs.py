"""Container logs on disk, in the format that container runtimes write: ``time stream F|P text``."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_LINE = 16 * 1024
"""Bytes after which a line is written in parts, as container runtimes do."""
POLL_SECONDS = 30.0
"""A follower looks again after this time even when nobody told it of new lines."""


def timestamp(now: datetime.datetime | None = None) -> str:
    """RFC 3339 in UTC with microseconds."""
    moment = now or datetime.datetime.now(datetime.UTC)
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def entry(text: bytes, *, whole: bool, at: str) -> bytes:
    """One entry of the log: ``text`` has no newline; not ``whole`` where the line goes on in the next entry."""
    return b"%s stdout %s %s\n" % (at.encode(), b"F" if whole else b"P", text)


@dataclass(frozen=True)
class Entry:
    """One entry read back."""

    at: str
    whole: bool
    text: bytes

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """Raises ValueError where ``line`` is no entry."""
        at, _stream, flag, text = line.rstrip(b"\n").split(b" ", 3)
        return cls(at.decode(), flag == b"F", text)


class LogFile:
    """The log of one run of one container: written by the agent, read and followed by the kubelet's API.

    A full disk costs lines of the log, never the container: `write` and `close` do not raise for it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._rest = b""
        self._changed = asyncio.Event()
        self.closed = False

    def write(self, data: bytes) -> None:
        """Add what the container wrote; whole lines get an entry at once."""
        at = timestamp()
        *lines, self._rest = (self._rest + data).split(b"\n")
        entries = []
        for line in lines:
            while len(line) > LONGEST_LINE:
                entries.append(entry(line[:LONGEST_LINE], whole=False, at=at))
                line = line[LONGEST_LINE:]
            entries.append(entry(line, whole=True, at=at))
        while len(self._rest) > LONGEST_LINE:
            entries.append(entry(self._rest[:LONGEST_LINE], whole=False, at=at))
            self._rest = self._rest[LONGEST_LINE:]
        if entries:
            self._append(b"".join(entries))
            self._tell()

    def close(self) -> None:
        """No more will be written: a last line without a newline is kept, followers end."""
        if self.closed:
            return
        if self._rest:
            self._append(entry(self._rest, whole=False, at=timestamp()))
            self._rest = b""
        self.closed = True
        os.close(self._file)
        self._tell()

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, data)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def lines(self, *, follow: bool) -> AsyncIterator[bytes]:
        """The entries as written, from the first; with ``follow`` until the log is closed."""
        with self.path.open("rb") as file:
            while True:
                changed, closed = self._changed, self.closed
                for line in file:
                    yield line
                if closed or not follow:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), POLL_SECONDS)
                except TimeoutError:
                    continue

    def tail(self, lines: int, limit: int) -> str:
        """The last ``lines`` lines as text, at most ``limit`` bytes."""
        texts = []
        with self.path.open("rb") as file:
            for line in file.readlines()[-lines:]:
                parsed = Entry.parse(line)
                texts.append(parsed.text + (b"\n" if parsed.whole else b""))
        return b"".join(texts)[-limit:].decode(errors="replace")


@dataclass(frozen=True)
class LogOptions:
    """What of a log is wanted: the query of the kubelet's ``containerLogs``."""

    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime.datetime | None = None

    @classmethod
    def parse(cls, query: dict[str, str], now: datetime.datetime | None = None) -> LogOptions:
        """From query parameters. Raises ValueError."""
        since = None
        if query.get("sinceTime"):
            since = datetime.datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00"))
        elif query.get("sinceSeconds"):
            moment = now or datetime.datetime.now(datetime.UTC)
            since = moment - datetime.timedelta(seconds=int(query["sinceSeconds"]))
        return cls(
            timestamps=query.get("timestamps") in ("true", "1"),
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            since=since,
        )

    def wants(self, read: Entry) -> bool:
        """Whether ``read`` is young enough."""
        return self.since is None or datetime.datetime.fromisoformat(read.at.replace("Z", "+00:00")) >= self.since

    def render(self, read: Entry) -> bytes:
        """``read`` as it is shown."""
        prefix = f"{read.at} ".encode() if self.timestamps else b""
        return prefix + read.text + (b"\n" if read.whole else b"")
