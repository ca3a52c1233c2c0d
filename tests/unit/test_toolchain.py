"""Finding and caching the toolchain's binaries, with small programs in the place of the large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from eks_fsdp.sandbox.toolchain import install
from eks_fsdp.sandbox.toolchain.catalogue import MODULES, Binary, Module


def program(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "binary", "taken"),
    [
        ("tool v1.2.3", Binary(name="tool", package="x", version="v1.2.3"), True),
        ("tool v1.2.30", Binary(name="tool", package="x", version="v1.2.3"), False),
        ("tool v1.3.0", Binary(name="tool", package="x", version="v1.2.3"), False),
        ("v1.10.0", Binary(name="tool", package="x", version="v1.9.0", newer_is_fine=True), True),
        ("v1.8.9", Binary(name="tool", package="x", version="v1.9.0", newer_is_fine=True), False),
        ("v1.2.3", Binary(name="tool", package="x"), False),
    ],
)
def test_a_binary_of_this_machine_is_taken_when_its_version_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, binary: Binary, taken: bool
) -> None:
    path = program(tmp_path / "bin", "tool", says)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    assert install._already_here(binary) == (path if taken else None)


def test_a_plugin_is_found_in_the_plugin_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = Binary(name="pulumi-resource-x", package="x", plugin="resource-x-v1.0.0")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    assert install._already_here(binary) is None
    path = program(tmp_path / "plugins" / "resource-x-v1.0.0", "pulumi-resource-x", "")
    assert install._already_here(binary) == path


def test_what_is_complete_is_left_alone_and_what_is_broken_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = program(tmp_path / "host", "tool", "v1.0.0")
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "go.mod").write_text("module x")
    module = Module(name="m", binaries=(Binary(name="tool", package="x", version="v1.0.0"),))
    monkeypatch.setattr(Module, "folder", property(lambda self: folder))
    monkeypatch.setattr(install, "MODULES", (module,))
    monkeypatch.setenv("EKS_FSDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    said: list[str] = []

    with pytest.raises(install.ToolchainError, match="tool"):
        install.toolchain_bin()
    first = install.ensure_toolchain(said.append)
    assert (first / "tool").resolve() == tool
    assert len(said) == 1
    assert install.ensure_toolchain(said.append) == first
    assert len(said) == 1

    tool.unlink()
    again = program(tmp_path / "elsewhere", "tool", "v1.0.0")
    monkeypatch.setenv("PATH", f"{again.parent}:/usr/bin:/bin")
    assert (install.ensure_toolchain(said.append) / "tool").resolve() == again


def test_too_little_disk_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKS_FSDP_CACHE", str(tmp_path))
    monkeypatch.setattr(install, "BUILD_DISK_GIB", 10**9)
    with pytest.raises(install.ToolchainError, match=r"needs 1000000000 GiB"):
        install._check_disk()


def test_a_changed_pin_changes_the_cache_folder() -> None:
    module = MODULES[0]
    other = Module(name=module.name, binaries=module.binaries, ldflags=module.ldflags + " -X a=b")
    assert module.key != other.key
    assert module.key.startswith("core-")


def test_every_module_is_pinned_by_a_committed_checksum_file() -> None:
    for module in MODULES:
        assert (module.folder / "go.sum").stat().st_size > 1000, module.name
