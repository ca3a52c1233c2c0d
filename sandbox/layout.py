"""Where a sandbox keeps what: one folder, and the names of the files in it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path, without the closing NUL (``sun_path`` of unix(7))."""
REGION = "us-west-2"
ACCOUNT_ID = "123456789012"
ACCESS_KEY = "SANDBOXACCESSKEY0000"
SECRET_KEY = "sandbox-secret"
"""Opens nothing: the account asks for no credentials, but SDKs will not speak without some."""


@dataclass(frozen=True)
class Layout:
    """The files of the sandbox in ``root`` (absolute)."""

    root: Path

    @classmethod
    def of(cls, folder: Path | str) -> Layout:
        """The layout of ``folder``, made absolute without following links."""
        return cls(Path(os.path.abspath(folder)))

    @property
    def mark(self) -> Path:
        """An empty file that says: everything in ``root`` is a sandbox's, and may be removed. Made first, removed last."""
        return self.root / ".eks-fsdp-sandbox"

    @property
    def run(self) -> Path:
        """State of the live daemon; a link to a folder with a short path where this one's is too long for sockets."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.root / "logs"

    @property
    def bin(self) -> Path:
        """Commands that are put on PATH."""
        return self.root / "bin"

    @property
    def lock(self) -> Path:
        """Locked by the live daemon for as long as it lives."""
        return self.run / "daemon.lock"

    @property
    def daemon_file(self) -> Path:
        """Written first: the daemon's pid and when it started."""
        return self.run / "daemon.json"

    @property
    def ready_file(self) -> Path:
        """Written last: ports, toolchain, region, account."""
        return self.run / "sandbox.json"

    @property
    def progress_file(self) -> Path:
        """What the daemon is waiting for, one line."""
        return self.run / "progress"

    @property
    def failure_file(self) -> Path:
        """Written when a part of a running sandbox has ended by itself."""
        return self.run / "failure"

    @property
    def kubeconfig(self) -> Path:
        """Of the stand-in cluster, for as long as it exists."""
        return self.root / "kubeconfig"

    @property
    def pulumi_home(self) -> Path:
        """Plugins and credentials of the engine."""
        return self.root / "pulumi-home"

    @property
    def pulumi_state(self) -> Path:
        """The engine's backend."""
        return self.root / "pulumi-state"

    def socket(self, name: str) -> Path:
        """Path of a unix socket, short enough for ``sun_path``: links are resolved first."""
        return Path(os.path.realpath(self.run)) / name

    def create(self) -> None:
        """Make the folders; ``run`` becomes a link into a short temporary folder where its path is too long."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.mark.touch()
        if len(os.fsencode(self.run / "machine.sock")) > SOCKET_PATH_LIMIT and not self.run.exists():
            self.run.unlink(missing_ok=True)
            base = os.environ.get("XDG_RUNTIME_DIR")
            short = tempfile.mkdtemp(prefix="eks-fsdp-", dir=base if base and os.path.isdir(base) else "/tmp")
            self.run.symlink_to(short)
        for folder in (self.run, self.logs, self.bin, self.pulumi_home, self.pulumi_state):
            folder.mkdir(exist_ok=True)


def write_json(path: Path, value: dict[str, Any], mode: int = 0o600) -> None:
    """Replace ``path`` by ``value`` in one step, so that a reader never sees half of it."""
    write_text(path, json.dumps(value, indent=1) + "\n", mode)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace ``path`` by ``text`` in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)
