"""The rendezvous state in etcd: one key, replaced by compare-and-swap on its revision."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token

from . import BACKEND_NAME
from .client import EtcdClient, EtcdError, KeyValue, TxnResult, delete_prefix, put, read, unchanged


class EtcdBackend(RendezvousBackend):
    """Reads and replaces the state. The fencing token is the key's ``mod_revision``."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        """``prefix`` is the job's own, and ends in a slash."""
        self._client = client
        self._prefix = prefix
        self._key = f"{prefix}state"
        self.patience = client.patience
        """Seconds for which a request is repeated; the handler lowers it once training runs."""

    @property
    def name(self) -> str:
        """See base class."""
        return BACKEND_NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        """See base class."""
        try:
            found = self._client.get(self._key, patience=self.patience)
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error
        return None if found is None else (found.value, found.mod_revision)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See base class. Creating the state removes what an earlier job of this id left in the store."""
        if token is None:
            return self._swap(state, 0, forget=True)
        if not isinstance(token, int):
            current = self.get_state()
            return None if current is None else (*current, False)
        return self._swap(state, token, forget=False)

    def reset_state(self, state: bytes, token: Token) -> tuple[bytes, Token, bool] | None:
        """As `set_state` with a token, and empties the store in the same transaction."""
        return self._swap(state, int(token), forget=True)

    def _swap(self, state: bytes, revision: int, *, forget: bool) -> tuple[bytes, Token, bool] | None:
        write = [put(self._key, state)]
        if forget:
            write += [delete_prefix(f"{self._prefix}store/"), delete_prefix(f"{self._prefix}ops/")]
        try:
            result: TxnResult = self._client.txn(
                [unchanged(self._key, revision)], write, [read(self._key)], patience=self.patience
            )
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error
        if result.succeeded:
            return state, result.revision, True
        current: KeyValue | None = result.reads[0]
        if current is None:
            return None
        # The same bytes mean that our first sending had arrived and its answer had not: heartbeats make every state
        # different from all others.
        return current.value, current.mod_revision, current.value == state
