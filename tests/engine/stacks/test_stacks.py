"""Every stack file: previewed with no credentials and with the policy pack on, brought up in a sandbox, and counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import POLICIES, ROOT, MakeStack, Sandbox, Stack

pytestmark = pytest.mark.engine
TABLES: dict[str, Path] = {
    "p5-16": ROOT / "docs" / "p5-stack.md",
    **{
        name: Path(__file__).parent / "tables" / f"{name}.md"
        for name in ("p4de-odcr", "p5-capacity-block", "p5-existing-cluster", "g5-dev", "ci")
    },
}
OPERATOR = {"manifests": "build/training-operator/base"}
"""In place of a URL, for which the network is needed."""
IDLE_IMAGE = "registry.example.com/idle:1"
"""Of which the sandbox knows nothing: its containers run, and do nothing. No machine here runs 128 ranks."""


def config_of(name: str) -> dict[str, Any]:
    """A stack file's settings by name."""
    content = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"]
    return {key.partition(":")[2]: value for key, value in content.items()}


def idle_jobs(config: Mapping[str, Any]) -> dict[str, Any]:
    """The jobs of a stack, with an image that does nothing."""
    return {name: {**job, "image": IDLE_IMAGE} for name, job in config.get("jobs", {}).items()}


def up(stack: Stack, **config: Any) -> None:
    """Preview and update in one, both under the policies."""
    stack.configure(jobs=idle_jobs(config_of(stack.name)), **config)
    stack.pulumi("up", "--yes", "--policy-pack", str(POLICIES))


def compare(stack: Stack) -> None:
    """The table of what was made is the one that is kept; with ``EKS_FSDP_UPDATE_GOLDEN=1`` it is written."""
    state = stack.pulumi("stack", "export")
    made = stack.sandbox.run(sys.executable, str(ROOT / "scripts" / "stack-table"), stack.name, text=state)
    file = TABLES[stack.name]
    if os.environ.get("EKS_FSDP_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(made)
    assert file.exists(), f"{file} is missing: make it with EKS_FSDP_UPDATE_GOLDEN=1 and read it"
    assert made == file.read_text(), f"{file} differs: after reading the difference, EKS_FSDP_UPDATE_GOLDEN=1"


def test_every_stack_file_is_brought_up_somewhere() -> None:
    files = {
        file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in (ROOT / "stacks").glob("Pulumi.*.yaml")
    }
    # The sandbox's own is up in tests/e2e.
    assert files == {*TABLES, "sandbox"}


def test_the_p5_stack_and_a_team_on_its_cluster(empty_sandbox: Sandbox, make_stack: MakeStack) -> None:
    platform = make_stack("p5-16")
    up(platform, training_operator=OPERATOR)
    compare(platform)
    nodes = json.loads(empty_sandbox.run("kubectl", "get", "nodes", "-l", "eksfsdp/role=gpu", "-o", "json"))["items"]
    assert len(nodes) == 16

    empty_sandbox.run("kubectl", "create", "namespace", "ml-research")
    team = make_stack("p5-existing-cluster")
    cluster = {"mode": "existing", "kubeconfig": empty_sandbox.environment["KUBECONFIG"]}
    up(team, cluster=cluster)
    compare(team)
    found = empty_sandbox.run("kubectl", "get", "pytorchjobs", "-A", "-o", "name")
    assert found.count("pytorchjob") == 2


def no_seed(sandbox: Sandbox) -> dict[str, Any]:
    """Nothing beyond the stack file."""
    return {}


@pytest.mark.parametrize(
    ("name", "seed"), [("g5-dev", no_seed), ("ci", no_seed), ("p4de-odcr", no_seed), ("p5-capacity-block", no_seed)]
)
def test_a_stack(
    name: str, seed: Callable[[Sandbox], dict[str, Any]], empty_sandbox: Sandbox, make_stack: MakeStack
) -> None:
    stack = make_stack(name)
    up(stack, training_operator=OPERATOR, **seed(empty_sandbox))
    compare(stack)
