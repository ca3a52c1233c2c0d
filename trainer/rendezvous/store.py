"""A torch `Store` in etcd. torchelastic's agents share it; the workers' process group has a TCPStore of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not in __all__

from .client import TXN_LIMIT, EtcdClient, put, read, unchanged

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class EtcdStore(Store):
    """Keys and values below ``prefix``. Waiting is by polling, at most twice a second once it lasts.

    Where a method's request is repeated because the connection broke, the result is as if it had been sent once.
    """

    def __init__(self, client: EtcdClient, prefix: str, timeout: timedelta = timedelta(seconds=300)) -> None:
        """``prefix`` ends in a slash; ``timeout`` limits `get`, `wait` and `multi_get`."""
        super().__init__()
        self._client = client
        self._root = prefix
        self._prefix = f"{prefix}store/"
        self._ops_key = f"{prefix}ops/{uuid.uuid4().hex}"
        self.set_timeout(timeout)

    def _key(self, key: str) -> str:
        return self._prefix + key

    def set(self, key: str, value: bytes | str) -> None:
        """Write ``key``."""
        self._client.put(self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Value of ``key``, once it is there. Raises `LookupError` after the store's timeout."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Values of ``keys``, once all are there. Raises `LookupError` after the store's timeout."""
        return self._wait(keys, self._limit())

    def multi_set(self, keys: list[str], values: Sequence[bytes | str]) -> None:
        """Write all of ``keys``."""
        writes = [put(self._key(key), _bytes(value)) for key, value in zip(keys, values, strict=True)]
        for start in range(0, len(writes), TXN_LIMIT):
            self._client.txn([], writes[start : start + TXN_LIMIT])

    def add(self, key: str, value: int) -> int:
        """Add ``value`` to the decimal number at ``key`` (0 where there is none); returns the sum."""
        name = self._key(key)
        operation = uuid.uuid4().hex.encode()
        current = self._client.get(name)
        while True:
            total = (int(current.value) if current else 0) + value
            result = self._client.txn(
                [unchanged(name, current.mod_revision if current else 0)],
                [put(name, str(total).encode()), put(self._ops_key, operation)],
                [read(name), read(self._ops_key)],
            )
            if result.succeeded:
                return total
            current, last = result.reads
            if last is not None and last.value == operation:
                # It is our own addition that stands in the way: the first sending had arrived, its answer had not.
                return total

    def check(self, keys: list[str]) -> bool:
        """Whether all of ``keys`` are there now."""
        return all(found is not None for found in self._client.get_many([self._key(key) for key in keys]))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return once all of ``keys`` are there. Raises `LookupError` after ``timeout``, or the store's."""
        self._wait(keys, self._limit() if timeout is None else timeout.total_seconds())

    def compare_set(self, key: str, expected_value: bytes | str, desired_value: bytes | str) -> bytes:
        """Write ``desired_value`` where ``key`` holds ``expected_value``, or is absent and that is empty.

        Returns what the key holds afterwards, or ``expected_value`` where it is absent.
        """
        name, expected, desired = self._key(key), _bytes(expected_value), _bytes(desired_value)
        current = self._client.get(name)
        while True:
            if current is None and expected:
                return expected
            if current is not None and current.value != expected:
                return current.value
            result = self._client.txn(
                [unchanged(name, current.mod_revision if current else 0)], [put(name, desired)], [read(name)]
            )
            if result.succeeded:
                return desired
            current = result.reads[0]

    def delete_key(self, key: str) -> bool:
        """Remove ``key``; says whether it was there."""
        return self._client.delete(self._key(key))

    def num_keys(self) -> int:
        """Number of keys."""
        return len(self._client.keys(self._prefix))

    def list_keys(self) -> list[str]:
        """Names of all keys, sorted."""
        return self._client.keys(self._prefix)

    def has_extended_api(self) -> bool:
        """Tells torch that `multi_get` and `multi_set` are there."""
        return True

    def clone(self) -> EtcdStore:
        """A store of the same keys."""
        return EtcdStore(self._client, self._root, timedelta(seconds=self._limit()))

    # The names under which torch's PrefixStore calls these three of a store that is written in Python.
    deleteKey = delete_key
    getNumKeys = num_keys
    listKeys = list_keys

    def _limit(self) -> float:
        timeout: Any = getattr(self, "timeout")  # noqa: B009 - torch sets it; its stub does not say so
        return float(timeout.total_seconds())

    def _wait(self, keys: list[str], seconds: float) -> list[bytes]:
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
        names = [self._key(key) for key in keys]
        while True:
            found = self._client.get_many(names)
            values = [item.value for item in found if item is not None]
            if len(values) == len(keys):
                return values
            left = deadline - time.monotonic()
            if left <= 0:
                missing = [key for key, item in zip(keys, found, strict=True) if item is None]
                raise LookupError(f"not in the store within {seconds:.1f} s: {', '.join(missing)}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
