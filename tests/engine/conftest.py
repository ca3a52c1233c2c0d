"""The stand-in providers in a process of their own, and stacks of inline programs on the real engine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pulumi import automation

from eks_fsdp.sandbox.account import account_client, leftovers
from eks_fsdp.sandbox.commands import toolchain_folder
from eks_fsdp.sandbox.layout import Layout
from eks_fsdp.sandbox.user_environment import install_commands, user_environment


class Stand:
    """Running providers and an environment for the engine."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.ports: dict[str, Any] = json.loads(process.stdout.readline())
        self.layout = Layout.of(folder)
        self.layout.create()
        install_commands(self.layout, toolchain_folder())
        # The engine's own environment, and nothing of the user's stacks or credentials.
        self.environment = {**os.environ, **user_environment(self.layout, self.ports)}

    def groups(self) -> dict[str, Any]:
        """What the machine room was told of node groups."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("groups\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def left(self) -> list[str]:
        """What is in the account."""
        return leftovers(lambda service: account_client(self.ports["account_url"], service))

    def pulumi(self, folder: Path, *arguments: str, fails: bool = False) -> str:
        """Run the command line in a project's folder; its output."""
        done = subprocess.run(
            [self.layout.bin / "pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr


@contextlib.contextmanager
def standing(folder: Path) -> Iterator[Stand]:
    """The providers, started and ended."""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]).strip(":")}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("providers_double.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield Stand(folder, process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait(10)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    """An account of the test's own."""
    with standing(tmp_path / "sandbox") as running:
        yield running


@pytest.fixture(scope="module")
def shared_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One account for all tests of a file, each of which leaves it empty."""
    with standing(tmp_path_factory.mktemp("stand") / "sandbox") as running:
        yield running


class Inline:
    """A stack of an inline program."""

    def __init__(self, stand: Stand, program: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in stand.environment.items():
            monkeypatch.setenv(name, value)
        self.stack = automation.create_or_select_stack("test", project_name="providers", program=program)

    def _changes(self, result: Any) -> dict[str, int]:
        return {str(kind): count for kind, count in (result.summary.resource_changes or {}).items()}

    def up(self) -> dict[str, int]:
        """How many resources were created, updated, left alone. The Automation API's `up` is one with --skip-preview."""
        return self._changes(self.stack.up())

    def preview(self) -> dict[str, int]:
        """The same of a preview."""
        return {str(getattr(kind, "value", kind)): count for kind, count in self.stack.preview().change_summary.items()}

    def refresh(self) -> dict[str, int]:
        """The same of a refresh."""
        return self._changes(self.stack.refresh())

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs, secrets included."""
        return {name: output.value for name, output in self.stack.outputs().items()}
