"""One sandbox with the platform up, shared by the tests that break jobs in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-m", "eks_fsdp.launcher.cli"]


@dataclass(frozen=True)
class Sandbox:
    """A live sandbox and the environment in which pulumi, kubectl and eks-fsdp use it."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, timeout: float = 300, check: bool = True) -> str:
        """The command's standard output; where it fails, the assertion shows all that it printed."""
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check:
            assert done.returncode == 0, f"{' '.join(command)} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def cli(self, *arguments: str, timeout: float = 300, check: bool = True) -> str:
        """`eks-fsdp` with these arguments."""
        return self.run(*CLI, *arguments, timeout=timeout, check=check)


def start(folder: Path) -> Sandbox:
    """Start a sandbox in ``folder``."""
    subprocess.run([*CLI, "sandbox", "up", "--dir", str(folder)], check=True, timeout=120)
    printed = subprocess.run(
        [*CLI, "sandbox", "env", "--dir", str(folder)], check=True, timeout=60, capture_output=True, text=True
    ).stdout
    shell = subprocess.run(
        ["bash", "-c", 'eval "$1"; env -0', "bash", printed], check=True, capture_output=True, text=True
    ).stdout
    environment = dict(item.split("=", 1) for item in shell.split("\0") if re.match(r"\w+=", item))
    return Sandbox(folder, {**os.environ, **environment})


def stop(folder: Path) -> None:
    """End the sandbox in ``folder``."""
    subprocess.run([*CLI, "sandbox", "down", "--dir", str(folder)], check=True, timeout=60)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox in which stack ``sandbox`` is up."""
    folder = tmp_path_factory.mktemp("platform") / "sandbox"
    sandbox = start(folder)
    try:
        sandbox.run("pulumi", "stack", "init", "sandbox", check=False)
        pack = ("--policy-pack", "policies", "--policy-pack-config", "policies/sandbox.json")
        sandbox.run("pulumi", "up", "-s", "sandbox", "--yes", "--skip-preview", "--non-interactive", *pack, timeout=300)
        yield sandbox
    finally:
        stop(folder)


def processes_naming(folder: Path) -> list[str]:
    """Command lines of the processes that have ``folder`` among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in arguments and entry.parent.name != str(os.getpid()):
            found.append(arguments)
    return found
