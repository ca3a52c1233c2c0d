"""The wheel: one import name, every room, and the files that the sandbox and the image need."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER = """
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings

group = GpuNodeGroupSettings(name="p5", instance_type="p5.48xlarge", zone="us-west-2a", desired=2)
cards: int = INSTANCE_TYPES[group.instance_type].network_cards
found: list[GpuNodeGroupSettings] = Settings.parse({}).gpu_nodes
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what is tracked."""
    tmp_path = tmp_path_factory.mktemp("wheel")
    source = tmp_path / "source"
    # A copy of what is tracked: setuptools writes beside what it builds.
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            path.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).exists():
            path.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(tmp_path),
            str(source),
        ],
        check=True,
        timeout=120,
    )
    (made,) = tmp_path.glob("*.whl")
    return made


def test_the_wheel_holds_every_room_below_one_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"eks_fsdp", next(name for name in top if name.endswith(".dist-info"))}
    rooms = {path.name for path in (ROOT / "src" / "eks_fsdp").iterdir() if path.is_symlink()}
    assert rooms == {name.split("/")[1] for name in names if name.count("/") > 1 and name.startswith("eks_fsdp/")}
    for needed in (
        "eks_fsdp/py.typed",
        "eks_fsdp/sandbox/toolchain/modules/core/go.mod",
        "eks_fsdp/sandbox/toolchain/modules/core/main.go",
        "eks_fsdp/sandbox/toolchain/go-requirements.txt",
        "eks_fsdp/trainer/rendezvous/handler.py",
        "eks_fsdp/components/operator/kustomization.yaml",
    ):
        assert needed in names, needed


def test_torch_is_no_part_of_the_base_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if name.startswith(("torch", "transformers", "boto3", "moto"))]
    assert [name for name in project["optional-dependencies"]["trainer"] if name.startswith("torch")]


def test_its_users_are_checked_strictly(wheel: Path, tmp_path: Path) -> None:
    """Types of the wheel reach a program that installs it: what is right passes, what is wrong is told."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    packages = next(venv.glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "more.pth").write_text("\n".join(paths) + "\n")
    program = tmp_path / "program.py"

    def check(text: str) -> str:
        program.write_text(text)
        python = ["--python-executable", str(venv / "bin" / "python"), "--cache-dir", str(tmp_path / "cache")]
        command = [sys.executable, "-m", "mypy", "--strict", *python, program.name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return done.stdout + done.stderr

    assert "Success" in check(USER)
    assert 'Argument "desired"' in check(USER.replace("desired=2", "desired=[2]"))
