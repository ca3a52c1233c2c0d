"""A client of etcd's v3 API as JSON over HTTP: just what a rendezvous needs, with retries that are safe."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
TXN_LIMIT = 100
"""Operations in one transaction; etcd's own limit is 128 unless it is told otherwise."""
_CONNECT_SECONDS, _READ_SECONDS = 3.0, 10.0


class EtcdError(RuntimeError):
    """etcd could not be reached within the limit, or refused the request."""


@dataclass(frozen=True)
class KeyValue:
    """A key as etcd holds it."""

    value: bytes
    mod_revision: int
    """etcd's revision of the last change: the token of a compare-and-swap."""


@dataclass(frozen=True)
class TxnResult:
    """Outcome of a transaction."""

    succeeded: bool
    """Whether the comparisons held, and so which of the two lists of operations was carried out."""
    revision: int
    """etcd's revision after it: the ``mod_revision`` of each key that it wrote."""
    reads: list[KeyValue | None]
    """One entry for each read among the operations, in order; None: there is no such key."""


def _b64(data: bytes | str) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _prefix_end(prefix: str) -> str:
    """The first key after all those that begin with ``prefix`` (which ends in an ASCII character below DEL)."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def read(key: str) -> dict[str, Any]:
    """Operation: read one key."""
    return {"requestRange": {"key": _b64(key)}}


def put(key: str, value: bytes) -> dict[str, Any]:
    """Operation: write one key."""
    return {"requestPut": {"key": _b64(key), "value": _b64(value)}}


def delete_prefix(prefix: str) -> dict[str, Any]:
    """Operation: remove every key that begins with ``prefix``."""
    return {"requestDeleteRange": {"key": _b64(prefix), "range_end": _b64(_prefix_end(prefix))}}


def unchanged(key: str, mod_revision: int) -> dict[str, Any]:
    """Comparison: the key was last changed at ``mod_revision``; 0: there is no such key."""
    return {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}


class EtcdClient:
    """Talks to one endpoint. Threads may share it.

    A request that fails for want of a connection, or with a 5xx status, is sent again with growing pauses until its
    ``patience`` is over; so a request may be carried out twice, and callers make sure that this does no harm.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        patience: float = 60.0,
        ca_cert: str | None = None,
        cert: tuple[str, str] | str | None = None,
    ) -> None:
        """``endpoint`` is ``scheme://host:port``; ``patience`` the default limit of retries in seconds."""
        self.endpoint = endpoint
        self.patience = patience
        self._ca_cert = ca_cert
        self._cert = cert
        self._local = threading.local()

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            # The rendezvous is inside the cluster: a proxy of the environment must not see it. Nor may a .netrc.
            session.trust_env = False
            session.verify = self._ca_cert or True
            session.cert = self._cert
            # A place for a token of etcd's authentication: session.headers["Authorization"].
            self._local.session = session
        return session

    def close(self) -> None:
        """Close this thread's connection."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is not None:
            session.close()
            self._local.session = None

    def call(self, path: str, body: dict[str, Any], *, patience: float | None = None) -> dict[str, Any]:
        """POST ``body`` to ``/v3/<path>`` and return the answer.

        Raises `EtcdError` when etcd stays away for ``patience`` seconds, or at once when it refuses the request.
        """
        limit = self.patience if patience is None else patience
        deadline, pause = time.monotonic() + limit, _FIRST_PAUSE
        while True:
            try:
                answer = self._session().post(
                    f"{self.endpoint}/v3/{path}", json=body, timeout=(_CONNECT_SECONDS, _READ_SECONDS)
                )
                if answer.status_code == 200:
                    result: dict[str, Any] = answer.json()
                    return result
                problem = f"HTTP {answer.status_code}: {answer.text.strip()[:200]}"
                if answer.status_code < 500:
                    raise EtcdError(f"etcd at {self.endpoint} refused {path}: {problem}")
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                # The last is an answer that broke off.
                problem = str(error)
                self.close()
            except requests.RequestException as error:
                raise EtcdError(f"etcd at {self.endpoint}: {path}: {error}") from error
            if time.monotonic() + pause > deadline:
                raise EtcdError(f"etcd at {self.endpoint} did not answer {path} within {limit:.0f} s: {problem}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def txn(
        self,
        compare: Sequence[dict[str, Any]],
        success: Sequence[dict[str, Any]],
        failure: Sequence[dict[str, Any]] = (),
        *,
        patience: float | None = None,
    ) -> TxnResult:
        """Carry out ``success`` where all of ``compare`` holds, else ``failure``; either as a whole or not at all."""
        body = {"compare": list(compare), "success": list(success), "failure": list(failure)}
        answer = self.call("kv/txn", body, patience=patience)
        reads = [_first(part["response_range"]) for part in answer.get("responses", ()) if "response_range" in part]
        return TxnResult(bool(answer.get("succeeded", False)), int(answer["header"]["revision"]), reads)

    def get(self, key: str, *, patience: float | None = None) -> KeyValue | None:
        """Read one key; None: there is no such key."""
        return _first(self.call("kv/range", {"key": _b64(key)}, patience=patience))

    def get_many(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Read several keys; as they are at one moment where they are no more than one transaction holds."""
        found: list[KeyValue | None] = []
        for start in range(0, len(keys), TXN_LIMIT):
            found += self.txn([], [read(key) for key in keys[start : start + TXN_LIMIT]]).reads
        return found

    def put(self, key: str, value: bytes) -> None:
        """Write one key."""
        self.call("kv/put", {"key": _b64(key), "value": _b64(value)})

    def delete(self, key: str) -> bool:
        """Remove one key; says whether it was there."""
        return int(self.call("kv/deleterange", {"key": _b64(key)}).get("deleted", 0)) > 0

    def keys(self, prefix: str) -> list[str]:
        """Names of all keys that begin with ``prefix``, without it, sorted."""
        body = {"key": _b64(prefix), "range_end": _b64(_prefix_end(prefix)), "keys_only": True}
        found = self.call("kv/range", body).get("kvs", ())
        return [base64.b64decode(item["key"]).decode()[len(prefix) :] for item in found]


def _first(answer: dict[str, Any]) -> KeyValue | None:
    # The gateway omits fields that hold their default: no "kvs" for nothing found, no "value" for an empty one.
    for item in answer.get("kvs", ()):
        return KeyValue(base64.b64decode(item.get("value", "")), int(item["mod_revision"]))
    return None
