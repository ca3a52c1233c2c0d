"""The environment and commands of a sandbox, and its language host's choice of an interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eks_fsdp.sandbox.commands import SandboxError, _command, remove, set_aside, stop
from eks_fsdp.sandbox.language_host import interpreter, program_environment
from eks_fsdp.sandbox.layout import Layout
from eks_fsdp.sandbox.user_environment import exports, install_commands, user_environment

READY = {"aws_port": 1, "eks_port": 2, "account_url": "http://127.0.0.1:3", "region": "us-west-2"}


def test_a_shell_reads_what_was_meant(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "it's a folder")
    wanted = user_environment(layout, READY, path="/usr/bin:/bin")
    shown = subprocess.run(
        ["/bin/sh", "-c", f"{exports(wanted)}\n/usr/bin/env -0"], capture_output=True, text=True, check=True, env={}
    )
    seen = dict(pair.split("=", 1) for pair in shown.stdout.split("\0") if "=" in pair)
    assert {name: seen[name] for name in wanted} == wanted
    assert wanted["PULUMI_DEBUG_PROVIDERS"] == "aws:1,eks:2"
    assert wanted["PATH"].split(":")[:2] == [str(layout.bin), str(Path(sys.executable).parent)]


def test_a_second_evaluation_does_not_lengthen_the_path(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    once = user_environment(layout, READY, path="/bin")["PATH"]
    assert user_environment(layout, READY, path=once)["PATH"] == once


def test_commands_are_installed(tmp_path: Path) -> None:
    toolchain = tmp_path / "tools"
    toolchain.mkdir()
    for name in ("pulumi", "kubectl", "pulumi-resource-kubernetes"):
        (toolchain / name).write_text("#!/bin/sh\necho it works\n")
        (toolchain / name).chmod(0o755)
    layout = Layout.of(tmp_path / "sandbox")
    layout.create()
    for _ in range(2):
        install_commands(layout, toolchain)
    # The engine looks for its language host beside the file that it is, links followed.
    assert not (layout.bin / "pulumi").is_symlink()
    assert subprocess.run([layout.bin / "pulumi"], capture_output=True, text=True, check=True).stdout == "it works\n"
    (plugin,) = (layout.pulumi_home / "plugins").glob("resource-kubernetes-v*/pulumi-resource-kubernetes")
    assert plugin.exists()
    assert os.access(layout.bin / "pulumi-language-python", os.X_OK)


def test_the_virtualenv_option_is_honoured(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert interpreter({"virtualenv": ".venv"}, str(tmp_path)) == str(python)
    environment = program_environment({"virtualenv": ".venv"}, str(python))
    assert environment["PATH"].split(":")[0] == str(python.parent)
    assert environment["VIRTUAL_ENV"] == str(tmp_path / ".venv")
    assert interpreter({}, str(tmp_path)) == os.environ.get("PULUMI_PYTHON_CMD", sys.executable)
    with pytest.raises(ValueError, match=r"python3 -m venv .*/missing"):
        interpreter({"virtualenv": "missing"}, str(tmp_path))


def test_old_state_is_moved_aside_and_other_folders_are_not(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "sandbox")
    assert set_aside(layout) is None
    layout.create()
    assert set_aside(layout) == tmp_path / "sandbox.stale-1"
    layout.create()
    assert set_aside(layout) == tmp_path / "sandbox.stale-2"
    other = Layout.of(tmp_path / "other")
    # The names of a sandbox's own folders, as `/`, `/var` and many a project have them.
    for name in ("run", "logs", "thesis"):
        (other.root / name).mkdir(parents=True)
    with pytest.raises(SandboxError, match="no sandbox's folder"):
        set_aside(other)
    remove(other)
    stop(other)
    assert {path.name for path in other.root.iterdir()} == {"run", "logs", "thesis"}


def test_sockets_have_short_paths(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / ("x" * 120))
    layout.create()
    try:
        assert len(os.fsencode(layout.socket("machine.sock"))) < 108
    finally:
        remove(layout)
    assert not layout.root.exists()


def test_hints_can_be_typed() -> None:
    assert _command("up", Layout.of(".sandbox")) == "eks-fsdp sandbox up"
    assert _command("env", Layout.of("/a b")) == "eks-fsdp sandbox env --dir '/a b'"
