"""Following logs: no line lost, none twice, whatever breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eks_fsdp.launcher import view
from eks_fsdp.launcher.kube import ApiError
from eks_fsdp.launcher.logs import Cursor, PodFollower, split_stamp
from eks_fsdp.launcher.view import LeaderFilter

from .launcher_samples import line, pod, pytorch_job, start_row


def stamped(second: int, text: str, nanos: str = "") -> bytes:
    return f"2026-01-02T03:04:{second:02d}{nanos}Z {text}\n".encode()


def test_times_are_compared_as_numbers() -> None:
    assert split_stamp(b"2026-01-02T03:04:05.1Z a")[0] < split_stamp(b"2026-01-02T03:04:05.12Z b")[0]  # type: ignore[operator]
    assert split_stamp(b"2026-01-02T03:04:05+01:00 a")[0] == split_stamp(b"2026-01-02T02:04:05Z a")[0]
    assert split_stamp(b"no time at all") == (None, "no time at all")


def test_a_second_reading_gives_only_what_is_new() -> None:
    cursor = Cursor()
    first = [stamped(1, "a"), stamped(2, "b"), stamped(2, "c")]
    assert cursor.rewind() is None
    assert [cursor.take(x.rstrip()) for x in first] == ["a", "b", "c"]
    assert cursor.rewind() == "2026-01-02T03:04:02Z"
    second = [*first[1:], stamped(2, "d"), stamped(3, "e")]
    assert [cursor.take(x.rstrip()) for x in second] == [None, None, "d", "e"]


class FakeCluster:
    """Gives pods and log streams from scripts."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any] | None] = []
        self.streams: list[list[bytes] | Exception | Callable[[], None]] = []
        self.queries: list[dict[str, str]] = []

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.pods.pop(0) if len(self.pods) > 1 else self.pods[0]

    def stream(self, path: str, query: dict[str, str], *, silence: float = 0) -> Iterator[bytes]:
        self.queries.append(query)
        for item in self.streams.pop(0) if self.streams else []:  # type: ignore[union-attr]
            if isinstance(item, Exception):
                raise item
            yield item


def follow(cluster: FakeCluster) -> list[str]:
    """Follow to the end of the pod, at most a minute."""
    lines: list[str] = []
    first = cluster.pods[0]
    assert first is not None
    follower = PodFollower(cluster, "ns", first, lambda name, uid, text: lines.append(text), pause_seconds=0.001)
    follower.start()
    follower.join(60)
    assert not follower.is_alive()
    return lines


def test_a_broken_connection_is_taken_up_where_it_broke() -> None:
    cluster = FakeCluster()
    running, over = pod(), pod(phase="Succeeded")
    cluster.pods = [running, running, running, over, over]
    cluster.streams = [
        [stamped(1, "a") + stamped(2, "b") + b"2026-01-02T03:04:03Z cut o", ApiError(0, "reset")],  # type: ignore[list-item]
        [stamped(2, "b") + stamped(3, "cut off") + stamped(4, "d")],
        [stamped(4, "d") + stamped(5, "e").rstrip()],
    ]
    assert follow(cluster) == ["a", "b", "cut off", "d", "e"]
    assert "sinceTime" not in cluster.queries[0]
    assert cluster.queries[1]["sinceTime"] == "2026-01-02T03:04:02Z"
    assert "follow" not in cluster.queries[2]


def test_a_restarted_container_is_read_to_its_end_before_the_new_one() -> None:
    cluster = FakeCluster()
    before, after, over = pod(), pod(restarts=1), pod(phase="Succeeded", restarts=1)
    cluster.pods = [before, before, after, after, after, over, over]
    cluster.streams = [
        [stamped(1, "a")],
        [stamped(1, "a") + stamped(2, "last words")],
        [stamped(5, "new life")],
        [stamped(5, "new life") + stamped(6, "done")],
    ]
    assert follow(cluster) == ["a", "last words", "new life", "done"]
    assert [q.get("previous", "") for q in cluster.queries] == ["", "true", "", ""]


def test_a_container_replaced_while_its_log_is_opened_loses_no_line() -> None:
    cluster = FakeCluster()
    before, after, over = pod(), pod(restarts=1), pod(phase="Succeeded", restarts=1)
    # Seen as it was, but the log that opens is already the next container's.
    cluster.pods = [before, after, after, after, over]
    cluster.streams = [
        [stamped(9, "new life")],
        [stamped(1, "a") + stamped(2, "last words")],
        [stamped(9, "new life")],
        [stamped(9, "new life")],
    ]
    assert follow(cluster) == ["a", "last words", "new life"]


def test_a_log_that_is_not_there_yet_is_waited_for() -> None:
    cluster = FakeCluster()
    waiting = pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})
    cluster.pods = [waiting, waiting, pod(phase="Succeeded")]
    cluster.streams = [[ApiError(400, "is waiting to start")], [stamped(1, "a")]]  # type: ignore[list-item]
    cluster.pods += [pod(phase="Succeeded")]
    cluster.streams.pop(0)
    assert follow(cluster) == ["a"]


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    cluster = FakeCluster()
    cluster.pods = [pod(uid="first"), pod(uid="second")]
    cluster.pods[0]["metadata"]["uid"] = "gone"  # type: ignore[index]
    lines: list[str] = []
    follower = PodFollower(cluster, "ns", pod(uid="first"), lambda *args: lines.append(args[2]), pause_seconds=0.001)
    follower.start()
    follower.join(60)
    assert not follower.is_alive()
    assert lines == []


def test_halting_ends_a_follower_that_waits() -> None:
    cluster = FakeCluster()
    cluster.pods = [pod(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})]
    follower = PodFollower(cluster, "ns", cluster.pods[0] or {}, lambda *args: None, pause_seconds=600)
    follower.start()
    time.sleep(0.05)
    follower.halt()
    follower.join(60)
    assert not follower.is_alive()


def test_the_leader_is_whoever_prints_rows() -> None:
    leader = LeaderFilter()
    row = line(start_row())
    assert leader.take("w-0", "hello from 0") == []
    assert leader.take("w-1", "hello from 1") == []
    assert leader.take("w-1", row) == ["hello from 1", row]
    assert leader.take("w-1", "more") == ["more"]
    assert leader.take("w-0", "hidden") == []
    assert leader.rest() == []


def test_where_nobody_leads_the_first_pod_speaks() -> None:
    leader = LeaderFilter()
    leader.take("w-1", "b")
    leader.take("w-0", "a")
    assert leader.rest() == ["a"]


def test_following_outlasts_an_api_server_that_is_away_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Cluster(FakeCluster):
        def __init__(self, *answers: Any) -> None:
            super().__init__()
            self.answers = list(answers)

        def job(self, namespace: str, name: str) -> Any:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    def show(*answers: Any) -> None:
        cluster: Any = Cluster(*answers)
        cluster.pods = lambda namespace, job: []
        view._follow(cluster, "ns", "job", every=False)

    monkeypatch.setattr(view, "AWAY_SECONDS", 0.01)
    show(ApiError(0, "away"), ApiError(503, "starting"), pytorch_job(("Succeeded", "done")))
    assert capsys.readouterr().out == "job: Succeeded. done\n"
    with pytest.raises(ApiError, match="forbidden"):
        show(ApiError(403, "forbidden"))
    monkeypatch.setattr(view, "UNREACHABLE_SECONDS", 0)
    with pytest.raises(ApiError, match="away"):
        show(ApiError(0, "away"))
