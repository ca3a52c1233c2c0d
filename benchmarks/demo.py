"""How long the demo takes, how much memory everything needs, and how long an `up` without changes takes.

    python benchmarks/demo.py [--cold] [--out FILE]

Warm: the virtual environment and the toolchain are there. Cold: a clean clone with empty caches, in a temporary folder
(about 25 GB and as many minutes). Memory is the summed PSS of everything that the demo started, sampled every second,
so that a page shared by two processes counts once. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def started_by(token: str) -> list[int]:
    """Processes whose environment carries EKS_FSDP_BENCHMARK=token, which every descendant inherits."""
    needle = f"EKS_FSDP_BENCHMARK={token}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def descendants(pids: list[int]) -> set[int]:
    """``pids`` and all below them: containers have an environment of their own."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    seen: set[int] = set()
    queue = list(pids)
    while queue:
        pid = queue.pop()
        if pid not in seen:
            seen.add(pid)
            queue.extend(children.get(pid, []))
    return seen


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 where it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Memory(threading.Thread):
    """Samples the summed PSS until told to stop."""

    def __init__(self, token: str) -> None:
        super().__init__(daemon=True)
        self.token = token
        self.peak_bytes = 0
        self.processes_at_peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(1):
            pids = descendants(started_by(self.token))
            total = sum(pss_bytes(pid) for pid in pids)
            if total > self.peak_bytes:
                self.peak_bytes, self.processes_at_peak = total, len(pids)


def timed(command: list[str], environment: dict[str, str], folder: Path) -> float:
    """Wall seconds of a command that must succeed."""
    began = time.monotonic()
    subprocess.run(command, env=environment, cwd=folder, check=True)
    return time.monotonic() - began


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", action="store_true", help="from a clean clone with empty caches")
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    options = parser.parse_args()
    token = str(os.getpid())
    environment = {**os.environ, "EKS_FSDP_BENCHMARK": token}
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-bench-") as scratch:
        checkout = ROOT
        if options.cold:
            checkout = Path(scratch, "clone")
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
            for name in ("EKS_FSDP_CACHE", "GOCACHE", "GOMODCACHE", "PIP_CACHE_DIR"):
                environment[name] = str(Path(scratch, name.lower()))
        memory = Memory(token)
        memory.start()
        figures["demo_seconds"] = timed(["make", "demo", "KEEP=1"], environment, checkout)
        shell = f'eval "$({checkout}/.venv/bin/eks-fsdp sandbox env)" && pulumi up -s sandbox --yes --skip-preview'
        figures["no_op_up_seconds"] = timed(["bash", "-c", shell], environment, checkout)
        memory.done.set()
        memory.join()
        figures["destroy_and_down_seconds"] = timed(
            [str(checkout / ".venv/bin/eks-fsdp"), "sandbox", "down"], environment, checkout
        )
        figures["peak_pss_gib"] = memory.peak_bytes / 2**30
        figures["processes_at_peak"] = memory.processes_at_peak
        for command in [["chmod", "-R", "u+w", scratch]] if options.cold else []:
            subprocess.run(command, check=False)
    for name, value in figures.items():
        print(f"{name:28} {value:10.2f}")
    if options.out:
        options.out.write_text(json.dumps({"cold": options.cold, "cores": os.cpu_count(), **figures}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
