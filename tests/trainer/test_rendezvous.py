"""The etcd-v3 backend, store and handler against a real etcd."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from torch.distributed import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousState
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from eks_fsdp.trainer.rendezvous.backend import EtcdBackend
from eks_fsdp.trainer.rendezvous.client import EtcdClient, EtcdError, TxnResult, put, read, unchanged
from eks_fsdp.trainer.rendezvous.handler import EtcdRendezvousHandler
from eks_fsdp.trainer.rendezvous.store import EtcdStore

from .conftest import Etcd, free_port


@pytest.fixture
def client(etcd: Etcd) -> Iterator[EtcdClient]:
    made = EtcdClient(f"http://{etcd.endpoint}", patience=2)
    yield made
    made.close()


@pytest.fixture
def prefix() -> str:
    return f"/test/{uuid.uuid4().hex}/"


@pytest.fixture
def store(client: EtcdClient, prefix: str) -> EtcdStore:
    return EtcdStore(client, prefix, timedelta(seconds=5))


@pytest.fixture
def backend(client: EtcdClient, prefix: str) -> EtcdBackend:
    return EtcdBackend(client, prefix)


# Store


def test_store_through_torchs_prefix_store(store: EtcdStore) -> None:
    view = PrefixStore("round", store)
    view.set("a", "1")
    assert view.get("a") == b"1"
    view.multi_set(["b", "c"], ["2", "3"])
    assert view.multi_get(["c", "a"]) == [b"3", b"1"]
    assert view.check(["a", "b"])
    assert not view.check(["a", "z"])
    assert (view.num_keys(), view.delete_key("a"), view.delete_key("a"), view.num_keys()) == (3, True, False, 2)
    assert store.list_keys() == ["round/b", "round/c"]


def test_store_holds_any_bytes_and_the_empty_value(store: EtcdStore) -> None:
    store.set("binary", bytes(range(256)))
    store.set("empty", b"")
    assert store.multi_get(["binary", "empty"]) == [bytes(range(256)), b""]


def test_store_takes_more_keys_than_one_transaction_holds(store: EtcdStore) -> None:
    keys = [f"k{i}" for i in range(250)]
    store.multi_set(keys, keys)
    assert store.multi_get(keys) == [key.encode() for key in keys]


def test_compare_set(store: EtcdStore) -> None:
    assert store.compare_set("k", "other", "v") == b"other"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "v1") == b"v1"
    assert store.compare_set("k", "", "v2") == b"v1"
    assert store.compare_set("k", "v1", "v2") == b"v2"


def test_additions_of_many_threads_all_count(store: EtcdStore) -> None:
    clones = [store.clone() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda c: [c.add("n", 2) for _ in range(10)], clones))
    assert sorted(total for totals in results for total in totals) == list(range(2, 82, 2))


class LosesAnswers(EtcdClient):
    """Carries out each transaction twice, as a retry does whose first answer was lost."""

    def txn(self, *args: Any, **options: Any) -> TxnResult:
        super().txn(*args, **options)
        return super().txn(*args, **options)


def test_a_repeated_request_counts_once(etcd: Etcd, prefix: str) -> None:
    client = LosesAnswers(f"http://{etcd.endpoint}")
    store = EtcdStore(client, prefix)
    assert [store.add("n", 1), store.add("n", 1), store.add("n", 5)] == [1, 2, 7]
    assert store.compare_set("k", "", "v") == b"v"
    backend = EtcdBackend(client, prefix)
    first = backend.set_state(b"s1")
    assert first is not None
    assert first[2]
    second = backend.set_state(b"s2", first[1])
    assert second is not None
    assert second[2]
    client.close()


def test_get_waits_for_the_key(store: EtcdStore) -> None:
    timer = threading.Timer(0.3, store.clone().set, ("late", "x"))
    timer.start()
    assert store.get("late") == b"x"
    timer.join()


def test_waiting_ends_with_the_names_of_what_is_missing(store: EtcdStore) -> None:
    store.set("there", "")
    started = time.monotonic()
    with pytest.raises(LookupError, match=r"within 0\.2 s: gone"):
        store.wait(["there", "gone"], timedelta(seconds=0.2))
    store.set_timeout(timedelta(seconds=0.3))
    with pytest.raises(LookupError, match=r"within 0\.3 s"):
        PrefixStore("p", store).get("gone")
    assert 0.5 <= time.monotonic() - started < 60, "the store's default is 300 s"


# Client and backend


def test_an_absent_etcd_is_told_within_the_limit() -> None:
    client = EtcdClient(f"http://127.0.0.1:{free_port()}", patience=0.5)
    started = time.monotonic()
    with pytest.raises(EtcdError, match="did not answer kv/range"):
        client.get("/a")
    with pytest.raises(RendezvousConnectionError):
        EtcdBackend(client, "/a/").get_state()
    assert time.monotonic() - started < 30, "the client's default is twice 60 s"
    client.close()


def test_a_refused_request_is_not_repeated(client: EtcdClient) -> None:
    with pytest.raises(EtcdError, match="refused kv/txn"):
        client.txn([], [put("/k", b"1"), put("/k", b"2")])


def test_state_is_replaced_by_its_revision_only(backend: EtcdBackend) -> None:
    assert backend.get_state() is None
    created = backend.set_state(b"one")
    assert created is not None
    assert (created[0], created[2]) == (b"one", True)
    assert backend.get_state() == created[:2]
    # Somebody else creates: they get what is there.
    assert backend.set_state(b"other") == (b"one", created[1], False)
    replaced = backend.set_state(b"two", created[1])
    assert replaced is not None
    assert replaced[2]
    assert replaced[1] != created[1]
    assert backend.set_state(b"three", created[1]) == (b"two", replaced[1], False)
    assert backend.set_state(b"three", "not a token") == (b"two", replaced[1], False)


def test_creating_or_resetting_the_state_empties_the_store(backend: EtcdBackend, store: EtcdStore) -> None:
    store.set("left", "over")
    created = backend.set_state(b"one")
    assert created is not None
    assert store.num_keys() == 0
    store.set("left", "over")
    assert backend.reset_state(b"two", created[1] - 1) == (b"one", created[1], False)
    assert store.num_keys() == 1
    reset = backend.reset_state(b"two", created[1])
    assert reset is not None
    assert reset[2]
    assert store.num_keys() == 0


def test_transaction_of_reads(client: EtcdClient, prefix: str) -> None:
    result = client.txn([unchanged(prefix, 0)], [read(prefix), put(prefix, b"v"), read(prefix)])
    assert result.succeeded
    assert result.reads[0] is None
    assert result.reads[1] is not None
    assert (result.reads[1].value, result.reads[1].mod_revision) == (b"v", result.revision)


# Handler


def make(etcd: Etcd, run_id: str, nodes: int = 1, **options: Any) -> EtcdRendezvousHandler:
    options = {"keep_alive_interval": 1, "keep_alive_max_attempt": 2, "join_timeout": 10, "read_timeout": 2, **options}
    made = get_rendezvous_handler(
        RendezvousParameters("etcd-v3", etcd.endpoint, run_id, nodes, nodes, local_addr="127.0.0.1", **options)
    )
    assert isinstance(made, EtcdRendezvousHandler)
    return made


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


def join(*handlers: EtcdRendezvousHandler) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers))


def fail(handler: EtcdRendezvousHandler) -> None:
    """As torchrun does when a worker has failed."""
    try:
        raise RuntimeError("a worker failed")
    except RuntimeError:
        assert handler.shutdown()


def test_a_round_of_two(etcd: Etcd, run_id: str) -> None:
    a, b = make(etcd, run_id, 2), make(etcd, run_id, 2)
    infos = join(a, b)
    assert {info.rank for info in infos} == {0, 1}
    assert {info.world_size for info in infos} == {2}
    stores = {(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}  # type: ignore[union-attr]
    assert len(stores) == 1
    infos[0].store.set("k", "v")
    assert infos[1].store.get("k") == b"v"
    assert (a.num_nodes_waiting(), a.is_closed(), a.get_run_id()) == (0, False, run_id)
    assert a.shutdown()
    assert b.shutdown()
    assert b.is_closed()


def test_failure_leaves_it_open_and_success_closes_it(etcd: Etcd, run_id: str) -> None:
    first = make(etcd, run_id)
    join(first)
    fail(first)
    assert not first.is_closed()
    second = make(etcd, run_id)
    join(second)
    assert second.shutdown()
    assert second.is_closed()


def test_the_same_id_works_again_after_success(etcd: Etcd, run_id: str) -> None:
    first = make(etcd, run_id, 2), make(etcd, run_id, 2)
    for info in join(*first):
        info.store.set("of", "the first job")
    for handler in first:
        handler.shutdown()
    second = make(etcd, run_id, 2), make(etcd, run_id, 2)
    infos = join(*second)
    assert not infos[0].store.check(["of"])
    for handler in second:
        handler.shutdown()


def put_state(etcd: Etcd, run_id: str, seconds_ago: float) -> None:
    """A closed rendezvous as torch's own handler leaves it, with a participant that was last seen then."""
    state: Any = _RendezvousState()  # type: ignore[no-untyped-call]
    node = make(etcd, "ghost")._this_node
    state.closed = state.complete = True
    state.round = 4
    state.participants[node] = 0
    state.last_heartbeats[node] = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    client = EtcdClient(f"http://{etcd.endpoint}")
    assert EtcdBackend(client, f"/torch/elastic/v3/{run_id}/").set_state(pickle.dumps(state))
    client.close()


def test_a_close_left_by_the_dead_is_reset_and_no_round_is_used_twice(etcd: Etcd, run_id: str) -> None:
    put_state(etcd, run_id, seconds_ago=60)
    handler = make(etcd, run_id, join_timeout=300)
    started = time.monotonic()
    join(handler)
    assert time.monotonic() - started < 60, "it waited for the dead"
    assert handler._state_holder.state.round > 4
    handler.shutdown()


def test_a_close_waits_for_those_who_are_alive(etcd: Etcd, run_id: str) -> None:
    put_state(etcd, run_id, seconds_ago=0)
    handler = make(etcd, run_id, join_timeout=300)
    started = time.monotonic()
    join(handler)
    assert 1.5 < time.monotonic() - started < 60
    handler.shutdown()


def test_a_close_with_somebody_alive_is_an_error_in_the_end(etcd: Etcd, run_id: str) -> None:
    put_state(etcd, run_id, seconds_ago=-60)
    handler = make(etcd, run_id, join_timeout=1)
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()


def test_a_killed_node_makes_room_after_its_heartbeats_end(etcd: Etcd, run_id: str) -> None:
    killed, stays = make(etcd, run_id, 2), make(etcd, run_id, 2)
    join(killed, stays)
    killed._stop_heartbeats()
    successor = make(etcd, run_id, 2)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(successor.next_rendezvous)
        deadline = time.monotonic() + 10
        while stays.num_nodes_waiting() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        info = stays.next_rendezvous()
        other = future.result(10)
    assert {info.rank, other.rank} == {0, 1}
    for handler in (stays, successor):
        handler.shutdown()


def test_workers_meet_at_the_new_store_when_the_first_agent_was_replaced(etcd: Etcd, run_id: str) -> None:
    a, b = make(etcd, run_id, 2), make(etcd, run_id, 2)
    infos = join(a, b)
    leader, other = (a, b) if infos[0].rank == 0 else (b, a)
    fail(leader)
    successor = make(etcd, run_id, 2)
    infos = join(other, successor)
    places = {info.bootstrap_store_info.master_port for info in infos}  # type: ignore[union-attr]
    assert len(places) == 1
    server = other if infos[0].rank == 0 else successor
    assert server._shared_tcp_store_server is not None
    assert places == {server._shared_tcp_store_server.port}  # type: ignore[attr-defined]
    for handler in (other, successor):
        handler.shutdown()


def test_two_jobs_do_not_see_each_other(etcd: Etcd, run_id: str) -> None:
    one, two = make(etcd, run_id), make(etcd, f"{run_id}/x")
    infos = join(one, two)
    infos[0].store.set("k", "v")
    assert not infos[1].store.check(["k"])
    for handler in (one, two):
        handler.shutdown()


def test_too_few_nodes_end_in_a_timeout(etcd: Etcd, run_id: str) -> None:
    with pytest.raises(RendezvousTimeoutError):
        make(etcd, run_id, 2, join_timeout=1).next_rendezvous()


def test_training_goes_on_without_etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory, run_id: str) -> None:
    own = Etcd(etcd_binary, tmp_path_factory.mktemp("own"))
    own.start()
    a, b = make(own, run_id, 2), make(own, run_id, 2)
    infos = join(a, b)
    own.stop()
    a._etcd.patience = b._etcd.patience = 0.2
    time.sleep(1.2)  # the state is cached for a second
    assert a.num_nodes_waiting() == 0
    assert a._told_of_absence
    time.sleep(1.5)  # and heartbeats are lost
    own.start()
    deadline = time.monotonic() + 60
    while a._told_of_absence:
        assert a.num_nodes_waiting() == 0
        assert time.monotonic() < deadline
    infos[0].store.set("k", "v")
    assert infos[1].store.get("k") == b"v"
    # Another round forms although neither is in the list any more.
    assert {info.rank for info in join(a, b)} == {0, 1}
    assert a.shutdown()
    assert b.shutdown()
    own.stop()


@pytest.mark.parametrize("options", [{"protocol": "ftp"}, {"read_timeout": 0}, {"read_timeout": "x"}])
def test_wrong_options_are_refused(etcd: Etcd, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"protocol|read_timeout"):
        make(etcd, "x", **options)
