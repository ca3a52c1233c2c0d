"""How much longer a preview takes than one of a bare program with as many resources of the same types.

    python benchmarks/preview.py [--stack p5-16] [--repeats 5]

In a sandbox of its own. The bare program (`bare_program.py`) declares what the stack's preview says, one by one and flat: the
same types, names and inputs, with the same SDK classes loaded and nothing else. Prints both medians and their ratio; exit
code 1 above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CLI = [sys.executable, "-m", "eks_fsdp.launcher.cli", "sandbox"]
LIMIT = 1.5
"""Times the bare program's, that the stack's preview may take."""


def sandbox_environment(folder: Path) -> dict[str, str]:
    """What `eks-fsdp sandbox env` sets, on top of this environment."""
    told = subprocess.run([*CLI, "env", "--dir", str(folder)], check=True, capture_output=True, text=True).stdout
    shell = ["bash", "-c", 'eval "$1"; env -0', "bash", told]
    printed = subprocess.run(shell, check=True, capture_output=True, text=True).stdout
    return dict(item.split("=", 1) for item in printed.split("\0") if re.match(r"\w+=", item))


def project(folder: Path, main: Path, stack: str) -> None:
    """A project that runs the program in ``main``, with a stack file of the checkout's."""
    folder.mkdir()
    content = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    content |= {"main": str(main), "stackConfigDir": "."}
    content["runtime"]["options"]["virtualenv"] = sys.prefix
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    shutil.copy(ROOT / "stacks" / f"Pulumi.{stack}.yaml", folder)


def pulumi(folder: Path, environment: Mapping[str, str], *arguments: str) -> str:
    """Run the command line; what it prints on standard output."""
    more = {"PULUMI_BACKEND_URL": f"file://{folder}"}
    command = ["pulumi", *arguments, "--non-interactive", "--color=never"]
    done = subprocess.run(command, cwd=folder, env={**environment, **more}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def declared(previewed: str) -> list[dict[str, Any]]:
    """The resources of a preview's JSON, in its order: type, name, inputs, provider."""
    found = []
    for step in json.loads(previewed)["steps"]:
        state = step["newState"]
        if state["type"] in ("pulumi:pulumi:Stack", "pulumi:providers:eks", "pulumi:providers:pulumi"):
            continue
        inputs = {key: value for key, value in state.get("inputs", {}).items() if not key.startswith("__")}
        found.append(
            {
                "type": state["type"],
                "name": state["urn"].rpartition("::")[2],
                "urn": state["urn"],
                "custom": state.get("custom", False),
                "inputs": inputs,
                "provider": state.get("provider", "").rpartition("::")[0],
            }
        )
    return sorted(found, key=lambda told: not told["type"].startswith("pulumi:providers:"))


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stack", default="p5-16")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-preview-") as temporary:
        place = Path(temporary)
        subprocess.run([*CLI, "up", "--dir", str(place / "sandbox")], check=True)
        try:
            environment = {**os.environ, **sandbox_environment(place / "sandbox"), "PULUMI_SKIP_UPDATE_CHECK": "true"}
            project(place / "ours", ROOT, arguments.stack)
            pulumi(place / "ours", environment, "stack", "init", arguments.stack)
            resources = declared(pulumi(place / "ours", environment, "preview", "--json"))
            bare = place / "program"
            bare.mkdir()
            shutil.copy(ROOT / "benchmarks" / "bare_program.py", bare / "__main__.py")
            (bare / "resources.json").write_text(json.dumps(resources))
            project(place / "bare", bare, arguments.stack)
            pulumi(place / "bare", environment, "stack", "init", arguments.stack)
            seconds: dict[str, list[float]] = {"ours": [], "bare": []}
            for _ in range(arguments.repeats):
                # In turns, so that what else the machine does falls on both.
                for which, taken in seconds.items():
                    began = time.monotonic()
                    pulumi(place / which, environment, "preview")
                    taken.append(time.monotonic() - began)
        finally:
            subprocess.run([*CLI, "down", "--dir", str(place / "sandbox")], check=True)
    ours, theirs = (statistics.median(seconds[which]) for which in ("ours", "bare"))
    print(f"{arguments.stack}: {len(resources)} resources and components, medians of {arguments.repeats}")
    print(
        f"preview of the stack {ours:.2f} s, of the bare program {theirs:.2f} s: ratio {ours / theirs:.2f} (limit {LIMIT})"
    )
    return int(ours / theirs > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
