"""`eks-fsdp sandbox up|down|status|env` with the real machine room: what goes wrong, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.sandbox.commands import describe
from eks_fsdp.sandbox.daemon import live_pid
from eks_fsdp.sandbox.layout import Layout

pytestmark = pytest.mark.engine
CODE = "from eks_fsdp.sandbox.commands import app; app()"


class Sandbox:
    """The commands on one folder."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout.of(folder)
        source = str(Path(__file__).parents[2] / "src")
        path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).strip(":")
        self.environment = {**os.environ, "PYTHONPATH": path}

    def command(self, *arguments: str) -> list[str]:
        """The command line."""
        return [sys.executable, "-c", CODE, arguments[0], "--dir", str(self.layout.root), *arguments[1:]]

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run it; its output."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def processes(self) -> list[int]:
        """Live processes that belong to the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if str(self.layout.root) in command:
                    found.append(int(entry.name))
        return found

    def gone(self, seconds: float = 15.0) -> bool:
        """Whether all its processes end within the time."""
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.processes()


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    found = Sandbox(tmp_path / "sandbox")
    yield found
    if found.layout.root.exists():
        found.run("down")
    assert found.gone()


def _environment(text: str) -> dict[str, str]:
    done = subprocess.run(
        ["sh", "-c", f"{text}\nenv -0"], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair)


def test_up_use_and_down(sandbox: Sandbox) -> None:
    assert "no sandbox is up" in sandbox.run("status", code=2)
    assert "Sandbox ready in" in sandbox.run("up")
    assert "a sandbox is up in" in sandbox.run("up", code=2)
    told = json.loads(sandbox.run("status", "--json"))
    assert told["state"] == "ready"
    assert told["machine"]["control_plane"]["ready"]
    assert "Nothing is left" in sandbox.run("status", "--empty")

    environment = _environment(sandbox.run("env"))
    code = "import boto3; print(boto3.client('ec2').create_vpc(CidrBlock='10.0.0.0/16')['Vpc']['VpcId'])"
    vpc = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert f"left: VPC {vpc}" in sandbox.run("status", "--empty", code=2)
    version = subprocess.run(["pulumi", "version"], env=environment, capture_output=True, text=True, check=True)
    assert version.stdout.startswith("v3.")

    sandbox.run("down", "--keep-logs")
    assert sandbox.gone(1)
    assert set(sandbox.layout.root.iterdir()) == {sandbox.layout.mark, sandbox.layout.logs}
    sandbox.run("down")
    assert not sandbox.layout.root.exists()


def test_a_crashed_machine_room_is_told(sandbox: Sandbox) -> None:
    sandbox.run("up")
    inner = [pid for pid in sandbox.processes() if pid != live_pid(sandbox.layout)]
    for pid in inner:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 60
    while describe(sandbox.layout)["state"] != "failed" and time.monotonic() < deadline:
        time.sleep(0.1)
    told = sandbox.run("status", code=2)
    assert "the machine room" in told
    assert "eks-fsdp sandbox down" in told
    assert "has failed" in sandbox.run("env", code=2)


def test_a_killed_daemon_takes_all_along_and_its_state_is_moved_aside(sandbox: Sandbox) -> None:
    sandbox.run("up")
    pid = live_pid(sandbox.layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert sandbox.gone()
    assert describe(sandbox.layout) == {"state": "down", "dir": str(sandbox.layout.root), "stale": True}
    assert "was moved to" in sandbox.run("up")
    assert sandbox.layout.root.with_name("sandbox.stale-1").is_dir()


def test_ctrl_c_while_starting_leaves_no_process(sandbox: Sandbox) -> None:
    process = subprocess.Popen(
        sandbox.command("up"), env=sandbox.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not sandbox.layout.progress_file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert sandbox.gone()


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / ("long-" * 20) / "sandbox")
    sandbox.layout.root.parent.mkdir()
    try:
        sandbox.run("up")
        run = Path(os.path.realpath(sandbox.layout.run))
        assert len(str(run / "machine.sock")) < 108
    finally:
        sandbox.run("down")
    assert not run.exists()
    assert sandbox.gone()


def test_a_folder_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    (tmp_path / "thesis.txt").write_text("important")
    assert "no sandbox's folder" in sandbox.run("up", code=2)
    sandbox.run("down")
    assert (tmp_path / "thesis.txt").exists()


def test_the_toolchain_is_asked_for_first(sandbox: Sandbox, tmp_path: Path) -> None:
    environment: dict[str, Any] = {**sandbox.environment, "EKS_FSDP_CACHE": str(tmp_path / "nothing")}
    environment.pop("EKS_FSDP_TOOLCHAIN", None)
    done = subprocess.run(
        sandbox.command("up"), env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "the toolchain lacks" in done.stderr
