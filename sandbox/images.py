"""The image table: what stands behind an image, since none is pulled.

An image is either *files of this machine* (its command runs as a process), or unknown: then its containers are kept
"Running" without a process, as a stand-in for software that the sandbox does not need to run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import eks_fsdp

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GPU_PLUGIN, EFA_PLUGIN = "k8s-device-plugin", "aws-efa-k8s-device-plugin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """How containers of an image run."""

    files: Mapping[str, Path] = field(default_factory=dict)
    """Path in the container -> file on this machine."""
    path: tuple[str, ...] = ()
    """Directories put before the usual PATH."""
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Path, ...] = ()
    """Directories of this machine that the container must see at the same path."""
    shows_devices: bool = False
    """Whether the container sees the state of its node's devices (in `NODE_STATE`)."""
    idle: bool = False
    """No process: kept Running."""


NODE_STATE = "/.node"
IDLE = Image(idle=True)
GENERAL_PURPOSE = ("busybox", "alpine", "debian", "ubuntu", "python", "bash")
"""Images that hold no more than what every Linux machine with Python has."""


@dataclass(frozen=True)
class Reference:
    """A parsed image reference."""

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """``registry/repository:tag@digest``; everything but the repository may be missing."""
        rest, _, digest = text.partition("@")
        match = re.fullmatch(r"(?P<name>.*?)(?::(?P<tag>[\w][\w.-]*))?", rest)
        assert match is not None
        name = match.group("name")
        first, slash, remainder = name.partition("/")
        is_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
        registry, repository = (first, remainder) if is_registry else ("", name)
        return cls(registry, repository, match.group("tag") or "", digest)

    @property
    def base(self) -> str:
        """The repository's last part."""
        return self.repository.rsplit("/", 1)[-1]


class ImageTable:
    """Images by repository, with the toolchain's programs in ``toolchain``."""

    def __init__(self, toolchain: Path) -> None:
        self.toolchain = toolchain
        package = Path(eks_fsdp.__file__).parent
        rooms = {Path(__file__).resolve().parents[1], package.resolve(), package.parent}
        self._python = (Path(sys.prefix), Path(sys.base_prefix), *sorted(rooms))
        self._source = package.parent

    def find(self, reference: str) -> Image:
        """What runs for an image; `IDLE` for one that is not known here."""
        parsed = Reference.parse(reference)
        if parsed.repository.endswith("eks-fsdp/trainer"):
            return self._trainer()
        if parsed.base == "etcd":
            return self._program("etcd", "/usr/local/bin/etcd")
        if parsed.base == "training-operator":
            return self._program("training-operator", "/manager")
        if parsed.base == "kueue":
            return self._program("kueue", "/manager")
        if parsed.base == "prometheus":
            return self._program("prometheus", "/bin/prometheus")
        if parsed.base == "dcgm-exporter":
            return self._exporter()
        if parsed.base in GENERAL_PURPOSE:
            prefix = f"{sys.prefix}/bin" if parsed.base == "python" else ""
            needs = self._python if parsed.base == "python" else ()
            return Image(path=(prefix,) if prefix else (), needs=needs)
        return IDLE

    def _program(self, name: str, path: str) -> Image:
        # The file itself: a link in the toolchain's folder may lead through a directory that containers do not see.
        binary = (self.toolchain / name).resolve()
        if not binary.exists():
            return IDLE
        return Image(files={path: binary}, entrypoint=(path,))

    def _trainer(self) -> Image:
        env = {"PYTHONPATH": str(self._source), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return Image(path=(f"{sys.prefix}/bin",), env=env, needs=self._python)

    def _exporter(self) -> Image:
        command = (sys.executable, "-I", "-S", str(Path(__file__).resolve().with_name("exporter.py")))
        return Image(entrypoint=command, needs=self._python, shows_devices=True)


def device_plugin(reference: str) -> str | None:
    """`GPU_PLUGIN` or `EFA_PLUGIN` where an image is that device plugin."""
    base = Reference.parse(reference).base
    return base if base in (GPU_PLUGIN, EFA_PLUGIN) else None
