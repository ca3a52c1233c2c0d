"""What a machine lacks is said in one line each, before anything is fetched or built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).parents[2] / "scripts" / "preflight"


def preflight(tmp_path: Path, *, python: str = sys.executable, shims: dict[str, str] | None = None) -> list[str]:
    """The lines that it prints in an empty folder, with ``shims`` in the place of programs."""
    folder = tmp_path / "shims"
    folder.mkdir()
    for name, script in (shims or {}).items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [str(PREFLIGHT), python, ".venv"],
        cwd=tmp_path,
        env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == (1 if lines else 0), done
    return lines


def disk(gib: int) -> dict[str, str]:
    return {"df": f"echo header; echo /dev/x 0 0 {gib * 2**20} 0% /"}


def test_a_machine_with_all_it_takes_is_told_nothing(tmp_path: Path) -> None:
    assert preflight(tmp_path, shims=disk(24)) == []


@pytest.mark.parametrize(
    ("shims", "python", "words"),
    [
        (disk(23), sys.executable, ["23 GiB free", "needs 24 GiB"]),
        ({**disk(99), "unshare": "exit 1"}, sys.executable, ["user namespaces are refused", "sysctl"]),
        (disk(99), "python-that-is-not-there", ["python-that-is-not-there is not on PATH", "PYTHON="]),
        ({**disk(99), "uname": "echo Darwin"}, sys.executable, ["Darwin", "needs Linux"]),
    ],
)
def test_what_is_missing_is_one_line(tmp_path: Path, shims: dict[str, str], python: str, words: list[str]) -> None:
    (line,) = preflight(tmp_path, python=python, shims=shims)
    assert all(word in line for word in words), line
