"""The idle guard: what counts as use, when a group goes to its idle count, and what its pod may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from eks_fsdp.components.guards import idle
from eks_fsdp.components.guards.idle import Decision, Group, Idle, decide, users
from eks_fsdp.components.idle_guard import STATE, access, configuration, deployment, rights
from eks_fsdp.spec.names import GPU_GROUP_LABEL, GPU_RESOURCE, OPERATOR_JOB_NAME_LABEL

NOW = 1_800_000_000.0
P5 = Group("p5", "p5-1", desired=4, minimum=0, idle=0)


def decided(group: Group = P5, used: str | None = None, before: Idle | None = None, seconds: float = 1200) -> Decision:
    (decision,) = decide(
        NOW, [group], {group.name: used} if used else {}, {group.name: before} if before else {}, seconds
    )
    return decision


def test_a_group_goes_to_its_idle_count_after_the_whole_time_without_a_job() -> None:
    first = decided()
    assert (first.action, first.to, first.idle) == ("wait", None, Idle(NOW, 4))
    assert decided(before=Idle(NOW - 1199, 4)).action == "wait"
    late = decided(before=Idle(NOW - 1200, 4))
    assert (late.action, late.to) == ("scale", 0)
    assert late.idle == Idle(NOW - 1200, 4), "remembered until AWS has done it"


def test_use_begins_the_time_anew() -> None:
    used = decided(used="pod training/a", before=Idle(NOW - 9999, 4))
    assert (used.action, used.why, used.idle) == ("used", "pod training/a", None)


def test_nodes_that_were_just_added_have_the_whole_time() -> None:
    grown = decided(before=Idle(NOW - 9999, 2))
    assert (grown.action, grown.idle) == ("wait", Idle(NOW, 4))
    assert decided(before=Idle(NOW - 9999, 8)).action == "scale", "fewer nodes than before are no reason to wait"


@pytest.mark.parametrize(("least", "count", "to"), [(0, 1, 1), (2, 0, 2), (2, 1, 2)])
def test_it_never_goes_below_the_minimum_or_the_idle_count(least: int, count: int, to: int) -> None:
    group = Group("p5", "p5-1", desired=4, minimum=least, idle=count)
    assert decided(group, before=Idle(NOW - 9999, 4)).to == to
    small = Group("p5", "p5-1", desired=to, minimum=least, idle=count)
    assert decided(small, before=Idle(NOW - 9999, 4)) == Decision("p5", "small", f"{to} nodes")


def node(name: str, group: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {GPU_GROUP_LABEL: group}}}


def pod(
    on: str | None, *, phase: str = "Running", gpus: int = 8, group: str | None = None, **labels: str
) -> dict[str, Any]:
    asked = {"resources": {"limits": {GPU_RESOURCE: str(gpus)}}} if gpus else {}
    spec: dict[str, Any] = {"containers": [{"name": "c", **asked}]}
    spec |= {"nodeName": on} if on else {}
    spec |= {"nodeSelector": {GPU_GROUP_LABEL: group}} if group else {}
    return {"metadata": {"namespace": "n", "name": "p", "labels": labels}, "spec": spec, "status": {"phase": phase}}


NODES = [node("a", "p5"), node("b", "g5")]


def used(*pods: dict[str, Any], workloads: Any = (), jobs: Any = ()) -> dict[str, str]:
    return users(["p5", "g5"], NODES, pods, workloads, jobs)


def test_a_jobs_pod_uses_the_group_of_its_node() -> None:
    assert used(pod("a")) == {"p5": "pod n/p"}
    assert used(pod("a", gpus=0, **{OPERATOR_JOB_NAME_LABEL: "j"})) == {"p5": "pod n/p"}
    assert used(pod("a", phase="Succeeded"), pod("b", phase="Failed")) == {}
    assert used(pod("a", gpus=0)) == {}, "a daemon's pod is on every node"
    assert used(pod("system")) == {}


def test_what_waits_for_nodes_uses_the_group_that_it_means_or_every_one() -> None:
    assert used(pod(None, group="g5", phase="Pending")) == {"g5": "pod n/p, pending"}
    assert used(pod(None, phase="Pending")).keys() == {"p5", "g5"}
    template = {"template": {"spec": {"nodeSelector": {GPU_GROUP_LABEL: "p5"}}}}
    metadata = {"namespace": "n", "name": "w"}

    def workload(**spec: Any) -> dict[str, Any]:
        return {"metadata": metadata, "spec": {"podSets": [template], **spec}}

    done = {"status": {"conditions": [{"type": "Finished", "status": "True"}]}}
    assert used(workloads=[workload()]) == {"p5": "workload n/w"}
    assert used(workloads=[{**workload(), **done}, workload(active=False)]) == {}

    def job(condition: str = "Created", **policy: Any) -> dict[str, Any]:
        status = {"conditions": [{"type": condition, "status": "True"}]}
        spec = {"runPolicy": policy, "pytorchReplicaSpecs": {"Worker": template}}
        return {"metadata": metadata, "spec": spec, "status": status}

    assert used(jobs=[job()]) == {"p5": "job n/w"}
    assert used(jobs=[job("Succeeded"), job("Failed"), job(suspend=True)]) == {}


class Cluster:
    """An API server and an EKS with one idle group."""

    def __init__(self, state: str | None = None, broken: str = "") -> None:
        self.data = {} if state is None else {"data": {"idle": state}}
        self.broken = broken
        self.scaled: list[Any] = []

    def request(self, method: str, path: str, body: Any = None) -> Any:
        assert path == f"/api/v1/namespaces/eks-fsdp-system/configmaps/{STATE}"
        if method == "PATCH":
            self.data = body
        return self.data

    def items(self, path: str) -> list[Any]:
        if self.broken and self.broken in path:
            raise OSError("refused")
        return []

    def custom(self, api: str, plural: str) -> list[Any]:
        return self.items(f"/apis/{api}/{plural}")

    def describe_nodegroup(self, **request: Any) -> Any:
        if request["nodegroupName"] == "gone-1":
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "DescribeNodegroup")
        return {"nodegroup": {"scalingConfig": {"minSize": 0, "desiredSize": 4, "maxSize": 4}}}

    def update_nodegroup_config(self, **request: Any) -> None:
        if request["nodegroupName"] == "busy-1":
            raise ClientError({"Error": {"Code": "ResourceInUseException"}}, "UpdateNodegroupConfig")
        self.scaled.append(request)


CONFIG = configuration("c", "us-west-2", [("p5", "p5-1", 0)], idle_minutes=20)


def test_what_it_knows_outlives_it() -> None:
    cluster = Cluster()
    kube: Any = cluster
    assert [d.action for d in idle.round_(CONFIG, kube, cluster, NOW)] == ["wait"]
    # Another process, the same ConfigMap.
    assert [d.action for d in idle.round_(CONFIG, kube, cluster, NOW + 1200)] == ["scale"]
    scaled = {"clusterName": "c", "nodegroupName": "p5-1", "scalingConfig": {"desiredSize": 0}}
    assert cluster.scaled == [scaled]


@pytest.mark.parametrize("broken", ["pods", "nodes", "workloads", "pytorchjobs"])
def test_on_half_of_what_there_is_nothing_is_scaled(broken: str) -> None:
    cluster = Cluster(json.dumps({"p5": {"since": 0, "nodes": 4}}), broken)
    kube: Any = cluster
    with pytest.raises(OSError, match="refused"):
        idle.round_(CONFIG, kube, cluster, NOW)
    assert cluster.scaled == []


def test_a_group_that_is_gone_or_busy_holds_up_no_other() -> None:
    groups = [("gone", "gone-1", 0), ("busy", "busy-1", 0), ("p5", "p5-1", 0)]
    since = {"since": 0, "nodes": 4}
    cluster = Cluster(json.dumps({"busy": since, "p5": since}))
    kube: Any = cluster
    decisions = idle.round_(configuration("c", "us-west-2", groups, idle_minutes=20), kube, cluster, NOW)
    assert [(d.group, d.action) for d in decisions] == [("busy", "failed"), ("p5", "scale")]
    assert "ResourceInUseException" in decisions[0].why
    assert [request["nodegroupName"] for request in cluster.scaled] == ["p5-1"]


def test_names_are_the_programs() -> None:
    assert (idle.GROUP_LABEL, idle.JOB_NAME_LABEL, idle.GPU_RESOURCE) == (
        GPU_GROUP_LABEL,
        OPERATOR_JOB_NAME_LABEL,
        GPU_RESOURCE,
    )


def test_the_pod_and_its_rights(golden: Callable[[str, str], None]) -> None:
    manifests = [*access(), deployment({"eksfsdp/role": "system"}, "source")]
    golden("idle-guard.yaml", yaml.safe_dump_all(manifests, sort_keys=False))
    assert json.loads(rights(["arn:1", "arn:2"]))["Statement"][0]["Resource"] == ["arn:1", "arn:2"]
