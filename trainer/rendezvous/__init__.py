"""torchrun's rendezvous over etcd v3: ``torchrun --rdzv-backend=etcd-v3 --rdzv-endpoint=HOST:2379 --rdzv-id=JOB``.

torch's own etcd backends speak the v2 API, which etcd 3.6 no longer has. torchrun finds this one by the entry point
``etcd-v3`` of the group ``torchrun.handlers``; torch loads it in every process that imports torchelastic, so this
file imports nothing.

What is kept in etcd, under ``/torch/elastic/v3/<id>/``:

``state``
    The rendezvous: participants with their heartbeats, round, whether it is closed. Replaced by compare-and-swap.
``store/``
    Keys of the agents' store, each prefixed by the round. Removed in the transaction that creates or resets
    ``state``, so that no attempt ever reads what an earlier one left.
``ops/``
    One key for each client: its last addition. It tells a retried request that the first one had arrived.

Options (``--rdzv-conf``), beside those of every dynamic rendezvous (``join_timeout`` 600 s, ``last_call_timeout``
30 s, ``close_timeout`` 30 s, ``keep_alive_interval`` 5 s, ``keep_alive_max_attempt`` 3):

``read_timeout``
    Seconds for which a request is repeated while etcd cannot be reached. Default 60; 5 once training runs, when an
    absent etcd is no reason to stop.
``protocol``
    ``http`` (default) or ``https``.
``ca_cert``, ``ssl_cert``, ``ssl_cert_key``
    Files for ``https``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND_NAME = "etcd-v3"


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What the entry point names: gives torchrun the function that makes a handler from its parameters."""
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from .handler import create

    return create(params)
