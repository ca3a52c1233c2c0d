"""torch's dynamic rendezvous on etcd, made to survive restarts.

It differs from torch's own in four ways:

* **It closes only on success.** torchrun shuts the handler down whenever it ends, and that closes the rendezvous for
  good: a container that the kubelet restarts would meet `RendezvousClosedError` for ever. After a failure this one
  leaves the list of participants instead.
* **A closed rendezvous opens again** once none of its participants is alive: a job that is submitted again under the
  same id works. The reset is a compare-and-swap, goes on with the next round's number and empties the store.
* **The workers' TCPStore is agreed anew in each round.** torch keeps the first round's address; when the agent of
  rank 0 was replaced in the meantime, the others would look for a store that has gone.
* **An absent etcd does not stop training.** It is needed to form a round and to end one, not in between.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import signal
import sys
import threading
import time
import weakref
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _Action,
    _RendezvousContext,
    _RendezvousState,
    create_handler,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from .backend import EtcdBackend
from .client import EtcdClient
from .store import EtcdStore

logger = logging.getLogger(__name__)

PREFIX = "/torch/elastic/v3/"
_PATIENCE_SECONDS = 60
_PATIENCE_IN_TRAINING_SECONDS = 5.0
_POLL_SECONDS = 1.0


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """See the module."""

    _etcd: EtcdBackend
    _joining_patience: float
    _left: bool = False
    _told_of_absence: bool = False

    def attach(self, backend: EtcdBackend) -> None:
        """Give it the backend that its state holder uses, and make it leave when the process ends."""
        self._etcd = backend
        self._joining_patience = backend.patience
        # On SIGTERM torchrun does not shut the handler down. Without this the others would wait for the heartbeat
        # of an agent that has gone before they let its successor in.
        atexit.register(_leave_at_exit, weakref.ref(self))
        _end_on_sigterm_while_waiting()

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class."""
        self._etcd.patience = self._joining_patience
        deadline = time.monotonic() + self._settings.timeout.join.total_seconds()
        self._bootstrap_store_info = None
        while True:
            self._reopen(deadline)
            try:
                info = super().next_rendezvous()
                break
            except RendezvousClosedError:
                # It was closed while we were joining.
                if time.monotonic() >= deadline:
                    raise
        self._left = False
        self._etcd.patience = min(_PATIENCE_IN_TRAINING_SECONDS, self._joining_patience)
        return info

    def num_nodes_waiting(self) -> int:
        """See base class; 0 while etcd cannot be reached.

        Nodes that form a new round without this one count as well: so a round is also left by agents whose
        heartbeats were lost while etcd was away.
        """
        try:
            waiting = super().num_nodes_waiting()
        except RendezvousConnectionError as error:
            if not self._told_of_absence:
                logger.warning("Training goes on without etcd: %s", error)
            self._told_of_absence = True
            return 0
        if self._told_of_absence:
            logger.warning("etcd is back.")
            self._told_of_absence = False
        participants = self._state_holder.state.participants
        return waiting if self._this_node in participants else waiting + len(participants)

    def shutdown(self) -> bool:
        """Leave the rendezvous; close it first where no exception is on its way out of torchrun."""
        failure = sys.exc_info()[1]
        self._stop_heartbeats()
        try:
            if failure is None:
                self._close()
            else:
                logger.info("Leaving rendezvous '%s' open: %s", self.get_run_id(), type(failure).__name__)
            self.leave()
        except RendezvousError as error:
            logger.warning("Could not leave rendezvous '%s': %s", self.get_run_id(), error)
            return False
        return True

    def leave(self) -> None:
        """Remove this node from the participants and the waiting."""
        if self._left:
            return
        self._left = True
        with self._heartbeat_lock:
            self._op_executor.run(_leave, self._get_deadline(self._settings.timeout.close))

    def _reopen(self, deadline: float) -> None:
        """Reset a closed rendezvous once none of its participants is alive; wait for that until ``deadline``."""
        while True:
            found = self._etcd.get_state()
            if found is None:
                return
            state: Any = pickle.loads(found[0])
            if not state.closed or time.monotonic() >= deadline:
                return
            if not self._alive(state):
                fresh: Any = _RendezvousState()
                fresh.round = state.round + 1
                logger.info("Rendezvous '%s' was closed and nobody is left: opening it again.", self.get_run_id())
                self._etcd.reset_state(pickle.dumps(fresh), found[1])
                continue
            time.sleep(_POLL_SECONDS)

    def _alive(self, state: Any) -> bool:
        # An agent of a restarted container may well have its predecessor's address and process id.
        limit = self._settings.keep_alive_interval * self._settings.keep_alive_max_attempt
        oldest = datetime.now(UTC) - limit
        return any(
            beat >= oldest
            for node, beat in state.last_heartbeats.items()
            if node != self._this_node and node in state.participants
        )


def _leave(ctx: _RendezvousContext, deadline: float) -> _Action:
    state = ctx.state
    if time.monotonic() > deadline:
        return _Action.ERROR_TIMEOUT
    if ctx.node in state.participants:
        return _Action.REMOVE_FROM_PARTICIPANTS
    if ctx.node in state.wait_list:
        return _Action.REMOVE_FROM_WAIT_LIST
    if ctx.node in state.redundancy_list:
        return _Action.REMOVE_FROM_REDUNDANCY_LIST
    return _Action.FINISH


def _end_on_sigterm_while_waiting() -> None:
    """Make SIGTERM end an agent that waits for others.

    torchrun handles the signal only once its workers run. Until then the kernel drops it, as the first process of a
    container has no default action: the pod would hold its node for the whole grace period.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _leave_at_exit(reference: weakref.ref[EtcdRendezvousHandler]) -> None:
    handler = reference()
    if handler is None:
        return
    handler._stop_heartbeats()
    handler._etcd.patience = min(_PATIENCE_IN_TRAINING_SECONDS, handler._joining_patience)
    try:
        handler.leave()
    except RendezvousError as error:
        logger.warning("Could not leave rendezvous '%s': %s", handler.get_run_id(), error)


def create(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make the handler that torchrun asked for. Raises `ValueError` for an option that cannot be."""
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=2379)
    host = f"[{host}]" if ":" in host else host
    protocol = str(params.get("protocol", "http")).strip().lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"rdzv-conf protocol: {protocol!r}; accepted: http, https")
    patience = params.get_as_int("read_timeout", _PATIENCE_SECONDS)
    if patience is None or patience <= 0:
        raise ValueError(f"rdzv-conf read_timeout: {patience!r}; accepted: a positive number of seconds")
    cert, key = params.get("ssl_cert"), params.get("ssl_cert_key")
    client = EtcdClient(
        f"{protocol}://{host}:{port}",
        patience=float(patience),
        ca_cert=params.get("ca_cert"),
        cert=(cert, key) if cert and key else cert,
    )
    prefix = f"{PREFIX}{quote(params.run_id, safe='')}/"
    backend = EtcdBackend(client, prefix)
    # torch reads the options that all dynamic rendezvous have; its handler is then rebuilt as ours.
    base = create_handler(EtcdStore(client, prefix), backend, params)
    ours = EtcdRendezvousHandler(base._this_node, base._settings, backend.name, base._store, base._state_holder)
    ours.attach(backend)
    return ours
