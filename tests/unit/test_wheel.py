"""The wheel: one import name, every room, and the files that the sandbox and the image need."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_room_below_one_name(tmp_path: Path) -> None:
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
    (wheel,) = tmp_path.glob("*.whl")
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
