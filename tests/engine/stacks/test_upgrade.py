"""What earlier releases have made is upgraded in place: the state of each, as its own program left it, is previewed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import MakeStack, Sandbox, Stack, foreign_cluster

pytestmark = pytest.mark.engine
STATES = sorted((Path(__file__).parent / "states").glob("*.json.gz"))
KEPT = (
    "aws:ec2/vpc:Vpc",
    "aws:ec2/subnet:Subnet",
    "aws:eks/cluster:Cluster",
    "aws:eks/nodeGroup:NodeGroup",
    "aws:ec2/launchTemplate:LaunchTemplate",
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    "aws:ecr/repository:Repository",
    "kubernetes:core/v1:Namespace",
    "kubernetes:core/v1:PersistentVolume",
    "kubernetes:core/v1:PersistentVolumeClaim",
    "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
    "pulumi:providers:kubernetes",
)
"""Replacing or deleting one of these ends jobs or loses data."""
REPLACED: dict[str, tuple[str, ...]] = {
    # The system nodes get a launch template (encrypted volumes, tags), and EKS gives none to a group that has none. The new
    # group is there before the old one goes; jobs run on other nodes.
    "0.1.0": ("eks-fsdp-cluster-system",),
}
"""Resources that the upgrade from a release replaces knowingly; docs/upgrades.md tells of each."""


@pytest.mark.parametrize("file", STATES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_the_state_of_an_earlier_release_is_kept(file: Path, empty_sandbox: Sandbox, make_stack: MakeStack) -> None:
    stack = make_stack("sandbox")
    state = _moved(json.loads(gzip.decompress(file.read_bytes())), empty_sandbox)
    stack.pulumi("stack", "import", text=json.dumps(state))
    _make_objects(state, empty_sandbox)
    assert {r["type"] for r in state["deployment"]["resources"]} >= set(KEPT), "the state holds one of each"
    known = REPLACED.get(file.name.removesuffix(".json.gz"), ())
    assert [step for step in _lost(stack) if _name(step) not in known] == []
    groups = yaml.safe_load(stack.file.read_text())["config"]["eks-fsdp:gpu_nodes"]
    stack.configure(gpu_nodes=[{**groups[0], "zone": "us-west-2b"}])
    assert any("GpuNodeGroup" in step for step in _lost(stack)), "a group that is replaced is seen"


def _lost(stack: Stack) -> list[str]:
    """What a preview would replace or delete, of what must be kept."""
    previewed = stack.pulumi("preview", "--json", "--suppress-outputs")
    steps = json.loads(previewed[previewed.index("{\n") :])["steps"]
    return [
        f"{step['op']} {step['urn']} for {step.get('replaceReasons')}"
        for step in steps
        if _kind(step) in KEPT and step["op"] not in ("update", "create")
    ]


def _name(step: str) -> str:
    return step.partition(" for ")[0].rpartition("::")[2]


def _kind(step: dict[str, Any]) -> str:
    return str(step["urn"].split("::")[2].rpartition("$")[2])


def _make_objects(state: dict[str, Any], sandbox: Sandbox) -> None:
    """What the state has in the cluster: a preview of a changed object begins with the live one."""
    order = {"Namespace": 0, "CustomResourceDefinition": 1}
    objects = [
        {key: value for key, value in r["inputs"].items() if not key.startswith("__")}
        for r in state["deployment"]["resources"]
        if r["type"].startswith("kubernetes:") and "apiVersion" in r.get("inputs", {})
    ]
    for thing in objects:
        if thing["kind"] == "Secret":
            thing.pop("data", thing.pop("stringData", None))
        for webhook in thing.get("webhooks", []):
            # There is no node for the operator that would answer.
            webhook["failurePolicy"] = "Ignore"
    objects.sort(key=lambda thing: order.get(thing["kind"], 2))
    for kinds in ({0, 1}, {2}):
        some = [thing for thing in objects if order.get(thing["kind"], 2) in kinds]
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": some})
        sandbox.run("kubectl", "create", "--field-manager=pulumi-kubernetes", "-f", "-", text=items)
        if 1 in kinds:
            sandbox.run("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def _moved(state: dict[str, Any], sandbox: Sandbox) -> dict[str, Any]:
    """The state with its cluster's API where a live one is: the provider asks the server what an object would become."""
    cluster = next(r for r in state["deployment"]["resources"] if r["type"] == "aws:eks/cluster:Cluster")["outputs"]
    live = foreign_cluster(sandbox, cluster["name"], cluster["version"])
    text = json.dumps(state).replace(cluster["endpoint"], live.endpoint)
    moved: dict[str, Any] = json.loads(
        text.replace(cluster["certificateAuthority"]["data"], live.certificate_authority)
    )
    return moved
