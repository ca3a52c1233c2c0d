"""Follow pods' logs without loss or duplicates, across lost connections, restarted containers and new pods."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from . import objects
from .kube import ApiError, Object

_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")

Stamp = tuple[int, int]
"""Unix seconds and nanoseconds of a log line."""


def split_stamp(line: bytes) -> tuple[Stamp | None, str]:
    """A line of a log that was asked for with ``timestamps=true``, as its time and text."""
    found = _STAMP.match(line)
    if not found:
        return None, line.decode(errors="replace")
    seconds = datetime.fromisoformat((found[1] + found[3].replace(b"Z", b"+00:00")).decode()).timestamp()
    nanos = int((found[2] or b"0").ljust(9, b"0"))
    return (int(seconds), nanos), line[found.end() :].decode(errors="replace")


@dataclass
class Cursor:
    """How far one pod's log was read. Times grow over all the pod's containers, so it carries over a restart."""

    last: Stamp = (0, 0)
    at_last: int = 0
    """Lines already taken whose time is `last`."""
    _seen_again: int = 0

    def rewind(self) -> str | None:
        """Begin a new reading. Returns the ``sinceTime`` to ask for (the API's own is precise to the second)."""
        self._seen_again = 0
        return datetime.fromtimestamp(self.last[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self.last[0] else None

    def take(self, line: bytes) -> str | None:
        """The line's text where it is new; None where it was taken before."""
        stamp, text = split_stamp(line)
        if stamp is None:
            return text
        if stamp < self.last:
            return None
        if stamp == self.last:
            self._seen_again += 1
            if self._seen_again <= self.at_last:
                return None
            self.at_last += 1
            return text
        self.last, self.at_last, self._seen_again = stamp, 1, 1
        return text


class LogSource(Protocol):
    """What following needs of a cluster."""

    def pod(self, namespace: str, name: str) -> Object | None:
        """One pod, or None."""

    def stream(self, path: str, query: dict[str, str], *, silence: float = ...) -> Iterator[bytes]:
        """Chunks of an answer."""


def read_log(
    source: LogSource,
    namespace: str,
    pod: str,
    cursor: Cursor,
    *,
    follow: bool = False,
    previous: bool = False,
    container: str = objects.TRAINER_CONTAINER,
    still: Callable[[], bool] = lambda: True,
) -> Iterator[str]:
    """New lines of one container's log; none where ``still()``, asked once the log is open, says no.

    An unfinished line at the end of a followed stream is left for the next reading, which gets it whole.
    """
    query = {"timestamps": "true", "container": container}
    if since := cursor.rewind():
        query["sinceTime"] = since
    if follow:
        query["follow"] = "true"
    if previous:
        query["previous"] = "true"
    rest = b""
    for number, chunk in enumerate(source.stream(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query)):
        if number == 0 and not still():
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (text := cursor.take(line)) is not None:
                yield text
    if rest and not follow and (text := cursor.take(rest)) is not None:
        yield text


class PodFollower(threading.Thread):
    """Reads one pod's log to its end and hands every line to ``emit(pod name, uid, line)`` exactly once."""

    def __init__(
        self,
        source: LogSource,
        namespace: str,
        pod: Object,
        emit: Callable[[str, str, str], None],
        *,
        pause_seconds: float = 0.5,
    ) -> None:
        super().__init__(name=f"log {objects.name_of(pod)}", daemon=True)
        self._source = source
        self._namespace = namespace
        self._pod = objects.name_of(pod)
        self._uid = objects.uid_of(pod)
        self._emit = emit
        self._pause = pause_seconds
        self._halt = threading.Event()
        self._cursor = Cursor()
        self._restarts = 0

    def halt(self) -> None:
        """Ask the thread to end after what it is reading now."""
        self._halt.set()

    def run(self) -> None:
        """Read until the pod is gone, has ended, or `halt` is called."""
        while not self._halt.is_set():
            try:
                if self._round():
                    return
            except ApiError:
                # The next round begins where this one broke off.
                pass
            self._halt.wait(self._pause)

    def _round(self) -> bool:
        pod = self._source.pod(self._namespace, self._pod)
        if pod is None or objects.uid_of(pod) != self._uid:
            return True
        restarts = int(objects.container_status(pod).get("restartCount", 0))
        if restarts > self._restarts:
            self._restarts = restarts
            self._read(previous=True)
        if not objects.container_has_started(pod):
            return objects.is_over(pod)
        over = objects.is_over(pod)
        # A pod that has ended is read without following, so that the log's very end is sure to be in it.
        self._read(follow=not over)
        return over

    def _same_container(self) -> bool:
        """Whether the log that was just opened is the container's that was meant.

        Had the container been replaced meanwhile, reading the new one first would skip the old one's last lines.
        """
        pod = self._source.pod(self._namespace, self._pod)
        return pod is None or int(objects.container_status(pod).get("restartCount", 0)) == self._restarts

    def _read(self, *, follow: bool = False, previous: bool = False) -> None:
        try:
            for line in read_log(
                self._source,
                self._namespace,
                self._pod,
                self._cursor,
                follow=follow,
                previous=previous,
                still=self._same_container,
            ):
                self._emit(self._pod, self._uid, line)
                if self._halt.is_set():
                    return
        except ApiError as error:
            # 400: that container's log is not there (yet, or any more).
            if error.status not in (400, 404):
                raise
