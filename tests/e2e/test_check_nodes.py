"""check-nodes in the sandbox, over gloo: a node whose processes are killed is found, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from eks_fsdp.sandbox.machine_room import MachineRoomError, SocketMachineRoom

from .conftest import CLI, ROOT, Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
SELECTOR = ("-l", "eksfsdp/check-nodes")


def check_pods(sandbox: Sandbox) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        sandbox.run("kubectl", "-n", "training", "get", "pods", *SELECTOR, "-o", "json")
    )["items"]
    return found


@contextlib.contextmanager
def broken(sandbox: Sandbox, node: str) -> Iterator[None]:
    """Within the block no torchrun lives on a node."""
    room = SocketMachineRoom(sandbox.folder / "run" / "machine.sock")
    end = threading.Event()

    def kill() -> None:
        while not end.is_set():
            for pod in check_pods(sandbox):
                if pod["spec"].get("nodeName") == node:
                    fault = {"kind": "kill", "namespace": "training", "pod": pod["metadata"]["name"]}
                    with contextlib.suppress(MachineRoomError):
                        room.request("POST", "/faults", {**fault, "signal": 9, "match": "check_nodes reduce"})
            end.wait(0.3)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_broken_node_is_named_and_cordoned_and_the_others_measured(platform: Sandbox) -> None:
    names = platform.run("kubectl", "get", "nodes", "-l", "eksfsdp/gpu-group=p5", "-o", "name").split()
    first, second, bad = (name.removeprefix("node/") for name in names[:3])
    only = [part for name in (first, second, bad) for part in ("--node", name)]
    try:
        with broken(platform, bad):
            printed = platform.cli("check-nodes", "-s", "sandbox", *only, "--cordon", "--json", check=False)
        answer = json.loads(printed)
        assert list(answer["bad"]) == [bad], answer
        assert answer["bad"][bad].startswith("alone: torchrun on")
        assert (answer["backend"], answer["gate"]) == ("gloo", None)
        pairs = [measure for measure in answer["measures"] if len(measure["nodes"]) == 2]
        assert [sorted(pair["nodes"]) for pair in pairs] == [sorted([first, second])]
        assert pairs[0]["gb_per_second"] > 0
        assert answer["cordoned"] == [bad]
        node = json.loads(platform.run("kubectl", "get", "node", bad, "-o", "json"))
        assert node["spec"]["unschedulable"]
        assert "torchrun" in node["metadata"]["annotations"]["eksfsdp/check-nodes"]
        assert check_pods(platform) == []
    finally:
        platform.run("kubectl", "uncordon", bad)


def test_an_interrupted_check_takes_its_pods_with_it(platform: Sandbox) -> None:
    with subprocess.Popen(
        [*CLI, "check-nodes", "-s", "sandbox"],
        cwd=ROOT, env=platform.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as check:  # fmt: skip
        end = time.monotonic() + 60
        while not any(pod["status"].get("phase") == "Running" for pod in check_pods(platform)):
            assert time.monotonic() < end
            assert check.poll() is None
            time.sleep(0.2)
        check.send_signal(signal.SIGINT)
        _, errors = check.communicate(timeout=60)
    assert check.returncode == 130, errors
    assert check_pods(platform) == []
