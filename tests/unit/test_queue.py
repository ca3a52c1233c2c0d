"""Kueue's objects, and what teams may do: golden files, and the rules that they must keep to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from eks_fsdp.components import queue, teams
from eks_fsdp.components.cluster import SYSTEM_NODES
from eks_fsdp.components.platform import job_plan
from eks_fsdp.spec import versions
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE, QUEUE_LABEL
from eks_fsdp.spec.settings import GpuNodeGroupSettings, QueueSettings, Settings, TeamSettings

Golden = Callable[[str, str], None]
GROUPS = [
    GpuNodeGroupSettings(name="p5", instance_type="p5.48xlarge", zone="us-west-2a", max=16),
    GpuNodeGroupSettings(name="dev", instance_type="g6.12xlarge", zone="us-west-2a", max=5, efa="none"),
]
TEAMS = {"research": {"p5": 6}, "product": {"p5": 4, "dev": 2}}


def text(*manifests: Any) -> str:
    return yaml.safe_dump_all(manifests, sort_keys=False, width=120)


def quotas(namespace: str, nodes: dict[str, int]) -> dict[tuple[str, str], str]:
    """Quota by flavor and resource."""
    spec = queue.cluster_queue(namespace, nodes, GROUPS, QueueSettings())["spec"]
    flavors = spec["resourceGroups"][0]["flavors"]
    return {(f["name"], r["name"]): r["nominalQuota"] for f in flavors for r in f["resources"]}


def test_the_objects_of_the_queue(golden: Golden) -> None:
    settings = QueueSettings(topology="network", order="strict", reclaim=True)
    nodes = queue.own_nodes(GROUPS, TEAMS, "training")
    golden(
        "queue.yaml",
        text(
            *queue.topologies(GROUPS, settings),
            *(queue.flavor(group, settings) for group in GROUPS),
            *(queue.cluster_queue(namespace, own, GROUPS, settings) for namespace, own in nodes.items()),
            *(queue.local_queue(namespace) for namespace in nodes),
        ),
    )


def test_what_of_kueues_manifests_depends_on_settings(golden: Golden) -> None:
    patch = queue.manager_patch(QueueSettings(wait_for_pods_minutes=20), SYSTEM_NODES)
    config, deployment = yaml.safe_load_all(patch)
    configuration = yaml.safe_load(config["data"]["controller_manager_config.yaml"])
    golden("kueue.yaml", text(configuration, deployment))
    other = list(yaml.safe_load_all(queue.manager_patch(QueueSettings(), SYSTEM_NODES)))[1]
    assert other != deployment, "a changed configuration is a changed pod"


def test_every_node_is_somebodys_own_and_nobodys_twice() -> None:
    nodes = queue.own_nodes(GROUPS, TEAMS, "training")
    assert nodes == {
        "training": {"p5": 6, "dev": 3},
        "research": {"p5": 6, "dev": 0},
        "product": {"p5": 4, "dev": 2},
    }
    for group in GROUPS:
        assert sum(own[group.name] for own in nodes.values()) == group.max


def test_quotas_are_what_the_nodes_have() -> None:
    quota = quotas("training", {"p5": 16, "dev": 5})
    assert quota["p5", GPU_RESOURCE] == "128"
    assert quota["p5", EFA_RESOURCE] == "512"
    assert quota["p5", "cpu"] == "3072"
    assert quota["p5", "memory"] == "32Ti"
    # Kueue wants every resource of every flavor.
    assert (quota["dev", GPU_RESOURCE], quota["dev", EFA_RESOURCE], quota["dev", "memory"]) == ("20", "0", "960Gi")


@pytest.mark.parametrize(("count", "written"), [(0, "0"), (7, "7"), (1000, "1k"), (24_000, "24k"), (3_000_000, "3M")])
def test_counts_are_written_as_the_api_server_keeps_them(count: int, written: str) -> None:
    assert queue.quantity(count) == written


def test_the_kustomization_has_the_pinned_versions() -> None:
    source = queue.kustomization(QueueSettings(), {})
    ours = yaml.safe_load((source.folder / "kustomization.yaml").read_text())
    assert ours["resources"][0] == source.pinned == versions.KUEUE_MANIFESTS
    image = ours["images"][0]
    assert f"{image['newName']}:{image['newTag']}" == versions.KUEUE_IMAGE
    here = {p["path"] for p in ours["patches"] if "path" in p}
    there = {file.name for file in source.folder.iterdir()} | set(source.files)
    assert here == there - {"kustomization.yaml"}


# Jobs


JOB = {"nodes": 2, "image": "registry.example/mine:1", "trainer": {"global_batch_size": 16}}


def settings(**changes: Any) -> Settings:
    group = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "max": 4}
    return Settings.parse({"gpu_nodes": [group], "jobs": {"llama": JOB}, **changes})


def test_a_job_names_its_queue_and_leaves_its_suspension_to_it() -> None:
    job = job_plan(settings(), "llama").pytorch_job("x", "image")
    assert job["metadata"]["labels"][QUEUE_LABEL] == "training"
    assert "suspend" not in job["spec"]["runPolicy"]
    # Both deadlines: the operator's counts from the day that the queue lets the job go.
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 86_400
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["activeDeadlineSeconds"] == 86_400
    assert QUEUE_LABEL not in template["metadata"]["labels"]


def test_without_a_queue_a_job_names_none() -> None:
    job = job_plan(settings(queue={"mode": "none"}), "llama").pytorch_job("x", "image")
    assert QUEUE_LABEL not in job["metadata"]["labels"]


@pytest.mark.parametrize(
    ("topology", "wanted", "annotations"),
    [
        ("nodes", "preferred", None),
        ("network", "none", None),
        ("network", "preferred", {"kueue.x-k8s.io/podset-preferred-topology": "topology.k8s.aws/network-node-layer-3"}),
        ("network", "required", {"kueue.x-k8s.io/podset-required-topology": "topology.k8s.aws/network-node-layer-3"}),
    ],
)
def test_how_close_a_jobs_nodes_are_is_asked_of_the_queue(
    topology: str, wanted: str, annotations: dict[str, str] | None
) -> None:
    jobs = {"llama": {**JOB, "topology": wanted}}
    plan = job_plan(settings(queue={"topology": topology}, jobs=jobs), "llama")
    template = plan.pytorch_job("x", "image")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["metadata"].get("annotations") == annotations


def test_a_teams_job_runs_in_the_teams_namespace() -> None:
    plan = job_plan(settings(teams={"research": {}}, jobs={"llama": {**JOB, "team": "research"}}), "llama")
    assert plan.pytorch_job("x", "image")["metadata"]["namespace"] == "research"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"teams": {"a": {}}, "queue": {"mode": "none"}}, ["queue.mode", "'none'", "teams a", "accepted: install"]),
        ({"teams": {"training": {}}}, ["teams.training", "namespace_name", "another name"]),
        ({"teams": {"a": {"nodes": {"p6": 1}}}}, ["teams.a.nodes.p6", "accepted: p5"]),
        ({"teams": {"a": {"nodes": {"p5": -1}}}}, ["teams.a.nodes.p5", "greater than or equal to 0"]),
        (
            {"teams": {"a": {"nodes": {"p5": 3}}, "b": {"nodes": {"p5": 2}}}},
            ["teams: 3 (a) + 2 (b)", "'p5'", "max 4", "accepted: at most 4"],
        ),
        (
            {"jobs": {"llama": {**JOB, "topology": "required"}}},
            ["jobs.llama.topology", "'required'", "queue.topology 'nodes'", "accepted: preferred"],
        ),
        ({"training_operator": {"mode": "none"}}, ["queue.mode", "training_operator.mode 'none'", "accepted: none"]),
        ({"queue": {"topolgy": "network"}}, ["queue.topolgy", "'topology'"]),
    ],
)
def test_what_the_queue_cannot_keep_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(**changes)
    assert all(word in str(refused.value) for word in words), str(refused.value)


# Teams


def test_what_a_team_has(golden: Golden) -> None:
    golden(
        "team.yaml",
        text(
            teams.job_namespace("research", queued=True, team="research"),
            teams.quota("research"),
            teams.job_quota("research", TeamSettings().max_jobs),
            teams.role("research"),
            teams.role_binding("research"),
        ),
    )


def test_a_team_may_not_get_past_its_queue_or_at_what_is_others() -> None:
    for rule in teams.role("research")["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"secrets", "nodes", "services", "serviceaccounts", "roles"} & set(rule["resources"])
        if {"pods", "workloads", "localqueues", "resourcequotas"} & set(rule["resources"]):
            assert rule["verbs"] == teams.READ
