"""Which updates take nodes from under a job, and what is said of it. The engine's part: tests/engine/test_gpu_nodes.py."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from pulumi.output import UNKNOWN

from eks_fsdp.components.disruption import SETTING_OF, Unreachable, disruptive_changes, jobs_on, refusal
from eks_fsdp.sandbox.cloud.compute import LAUNCH_TEMPLATE
from eks_fsdp.sandbox.cloud.eks import NODE_GROUP

OLD: dict[str, Any] = {
    "launchTemplate": {"id": "lt-1", "version": "1"},
    "releaseVersion": "1.34.9-20260801",
    "scalingConfig": {"desiredSize": 1},
    "labels": {"a": "b"},
    "tags": {"owner": "me"},
    "updateConfig": {"updateStrategy": "DEFAULT"},
    "nodeRepairConfig": {"enabled": True},
    "__defaults": [],
}


@pytest.mark.parametrize("key", ["scalingConfig", "labels", "tags", "updateConfig", "nodeRepairConfig", "__defaults"])
def test_what_eks_changes_in_place_disturbs_nobody(key: str) -> None:
    assert disruptive_changes(OLD, {**OLD, key: "other"}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"launchTemplate": {"id": "lt-1", "version": "2"}},
        {"launchTemplate": {"id": UNKNOWN, "version": UNKNOWN}},
        {"subnetIds": [UNKNOWN]},
        {"releaseVersion": "1.34.9-20260810"},
        {"version": "1.35"},
        {"taints": [{"key": "a", "effect": "NO_EXECUTE"}]},
    ],
)
def test_what_replaces_nodes_is_named(change: dict[str, Any]) -> None:
    assert disruptive_changes(OLD, {**OLD, **change}) == list(change)


def test_a_preview_leaves_the_version_that_it_cannot_know_to_the_template() -> None:
    # The provider says so of any change of the template, and of its tags too, for which there is no new version.
    assert disruptive_changes(OLD, {**OLD, "launchTemplate": {"id": "lt-1", "version": UNKNOWN}}) == []


def test_the_refusal_names_group_setting_jobs_and_remedy() -> None:
    told = refusal("p5", ["blockDeviceMappings", "version"], ["team-a/llama", "training/first"])
    for word in ("'p5'", "root_volume_gib", "kubernetes_version", "team-a/llama", "training/first", "allow_disruption"):
        assert word in told


def test_every_input_with_a_setting_is_one_of_the_two_resources() -> None:
    assert set(SETTING_OF) <= LAUNCH_TEMPLATE.properties | NODE_GROUP.properties


def test_a_cluster_that_is_not_there_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    with pytest.raises(Unreachable):
        jobs_on(json.dumps(config), "p5")
    with pytest.raises(Unreachable):
        jobs_on("no kubeconfig", "p5")
