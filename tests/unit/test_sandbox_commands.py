"""What `eks-fsdp sandbox` says of a sandbox whose parts have failed, and of a machine that is too slow."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.sandbox import commands
from eks_fsdp.sandbox.control_plane import ControlPlaneError
from eks_fsdp.sandbox.daemon import Daemon, StartError, started
from eks_fsdp.sandbox.layout import Layout, write_json
from eks_fsdp.sandbox.machine import Machine
from eks_fsdp.sandbox.machine_room import SocketMachineRoom

FAILURE = "kube-scheduler ended with code 1"


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the machine room answers, to be changed by a test."""
    answer: dict[str, Any] = {"control_plane": {"name": "c", "ready": True}, "failure": "", "nodes": [], "pods": 0}
    monkeypatch.setattr(SocketMachineRoom, "status", lambda self: answer)
    return answer


def test_a_control_plane_that_lost_a_process_is_no_ready_sandbox(tmp_path: Path, room: dict[str, Any]) -> None:
    layout = Layout.of(tmp_path)
    layout.create()
    write_json(layout.daemon_file, {"pid": os.getpid(), "started": started(os.getpid())})
    write_json(layout.ready_file, {"region": "us-west-2"})
    holds = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(layout.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert commands.describe(layout)["state"] == "ready"
        room["failure"] = FAILURE
        with pytest.raises(commands.SandboxError, match=f"has failed: {FAILURE}\nEnd it with"):
            commands.require_ready(layout)
        holder.communicate(b"\n", timeout=60)


def test_a_start_that_failed_is_told_at_once(tmp_path: Path, room: dict[str, Any]) -> None:
    starting = Daemon(Layout.of(tmp_path), tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as machine:
        starting._machine = machine
        room["failure"] = FAILURE
        with pytest.raises(StartError, match=FAILURE):
            starting._wait_for_machine()
        machine.communicate(b"\n", timeout=60)


def test_why_a_control_plane_did_not_start_is_kept_until_the_next(tmp_path: Path) -> None:
    class Broken(Machine):
        async def _start_plane(self) -> None:
            raise ControlPlaneError("etcd is not there")

    async def scenario() -> None:
        machine = Broken(tmp_path, tmp_path)
        machine._begin_plane()
        assert machine._starting is not None
        await asyncio.gather(machine._starting, return_exceptions=True)
        assert machine.status()["failure"] == "etcd is not there"
        await machine.stop()
        assert machine.status()["failure"] == ""

    asyncio.run(scenario())


def test_a_machine_that_is_too_slow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(commands, "TRIAL_SECONDS", 0.2)
    with pytest.raises(commands.SandboxError, match="for `unshare` to make namespaces"):
        commands._check_machine(Layout.of(tmp_path / "sandbox"))
