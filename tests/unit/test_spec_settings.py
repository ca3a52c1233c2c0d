"""What a stack file may say, and the one clear error for what it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eks_fsdp.spec.settings import Settings, SettingsError

GROUP: dict[str, Any] = {
    "name": "p5",
    "instance_type": "p5.48xlarge",
    "zone": "us-west-2a",
    "desired": 2,
    "max": 4,
}
JOB: dict[str, Any] = {"nodes": 2, "processes_per_node": 1, "transport": "gloo"}


def settings(**values: Any) -> Settings:
    return Settings.parse({"gpu_nodes": [GROUP], "jobs": {"first": JOB}, **values})


def refusal(**values: Any) -> str:
    with pytest.raises(SettingsError) as error:
        settings(**values)
    return str(error.value)


def test_a_sound_stack_is_accepted() -> None:
    accepted = settings()
    assert accepted.group_of("first").instance.gpus == 8
    assert accepted.jobs["first"].trainer.accumulation(2) == 4


@pytest.mark.parametrize(
    ("values", "path", "hint"),
    [
        ({"gpu_node": []}, "gpu_node: unknown key", "'gpu_nodes'"),
        ({"network": {"zonse": []}}, "network.zonse: unknown key", "'zones'"),
        ({"gpu_nodes": [{**GROUP, "instnce_type": "x"}]}, "gpu_nodes[0].instnce_type: unknown key", "'instance_type'"),
        ({"jobs": {"first": {**JOB, "node": 1}}}, "jobs.first.node: unknown key", "'nodes'"),
        ({"jobs": {"first": {**JOB, "trainer": {"stepz": 1}}}}, "jobs.first.trainer.stepz: unknown key", "'steps'"),
        (
            {"jobs": {"first": {**JOB, "trainer": {"data": {"sequence_lenght": 8}}}}},
            "jobs.first.trainer.data.sequence_lenght: unknown key",
            "'sequence_length'",
        ),
        ({"device_plugins": {"nvidia": {"mod": "none"}}}, "device_plugins.nvidia.mod: unknown key", "'mode'"),
    ],
)
def test_a_misspelt_key_at_any_depth_is_named_with_the_nearest(values: dict[str, Any], path: str, hint: str) -> None:
    message = refusal(**values)
    assert message.startswith(path)
    assert hint in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"jobs": {"first": {**JOB, "nodes": 0}}}, ["jobs.first.nodes", "greater than or equal to 1", "0"]),
        ({"jobs": {"first": {**JOB, "nodes": 5}}}, ["jobs.first.nodes", "5", "max 4"]),
        (
            {"gpu_nodes": [{**GROUP, "instance_type": "p9.48xlarge"}]},
            ["gpu_nodes[0].instance_type", "p9.48xlarge", "p5.48xlarge", "p4de.24xlarge"],
        ),
        (
            {"jobs": {"first": {**JOB, "trainer": {"model": "llama9"}}}},
            ["jobs.first.trainer.model", "llama9", "llama2-7b"],
        ),
        ({"gpu_nodes": [{**GROUP, "zone": "us-west-2f"}]}, ["gpu_nodes[0].zone", "us-west-2f", "us-west-2a"]),
        ({"gpu_nodes": [{**GROUP, "desired": 9}]}, ["gpu_nodes[0].desired", "9", "max 4"]),
        ({"gpu_nodes": [GROUP, GROUP]}, ["gpu_nodes", "'p5'", "twice"]),
        ({"gpu_nodes": [{**GROUP, "labels": {"team": "a b"}}]}, ["gpu_nodes[0].labels.team", "'a b'", "pattern"]),
        ({"system_nodes": {"labels": {"x" * 64: ""}}}, ["system_nodes.labels.x", "63"]),
        (
            {"gpu_nodes": [{**GROUP, "labels": {"node-role.kubernetes.io/gpu": "true"}}]},
            ["gpu_nodes[0].labels", "'node-role.kubernetes.io/gpu'", "never join", "a domain of your own"],
        ),
        ({"owner": "a&b"}, ["owner", "'a&b'", "pattern"]),
        ({"image": {"tag": "latest"}}, ["image.tag", "latest", "immutable"]),
        ({"etcd": {"mode": "none"}}, ["jobs.first.rendezvous", "etcd.mode", "c10d"]),
        ({"storage": {"capacity_gib": 1500}}, ["storage.capacity_gib", "1500", "2400"]),
        ({"cluster": {"mode": "existing"}}, ["cluster.kubeconfig", "missing"]),
        ({"network": {"cidr": "10.0.0.0/28"}}, ["network.cidr", "/28", "/16 to /20"]),
        (
            {"jobs": {"first": {**JOB, "trainer": {"global_batch_size": 7}}}},
            ["jobs.first.trainer.global_batch_size", "7", "multiples of 2"],
        ),
        (
            {"jobs": {"first": {**JOB, "trainer": {"checkpoint": {"directory": "/mnt/checkpoints"}}}}},
            ["jobs.first.trainer.checkpoint.directory", "storage.mode", "fsx"],
        ),
        ({"jobs": {"first": {**JOB, "group": "p6"}}}, ["jobs.first.group", "'p6'", "accepted: p5"]),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_what_is_accepted(values: dict[str, Any], words: list[str]) -> None:
    message = refusal(**values)
    assert all(word in message for word in words), message


def test_every_problem_is_reported_at_once() -> None:
    message = refusal(jobs={"first": {**JOB, "nodes": 0}}, regoin="x")
    assert {line.split(":")[0] for line in message.splitlines()} == {"jobs.first.nodes", "regoin"}


def test_configuration_values_are_json_or_text_and_other_namespaces_are_left_alone() -> None:
    config = {
        "aws:region": "us-east-1",
        "eks-fsdp:region": "us-east-1",
        "eks-fsdp:gpu_nodes": json.dumps([GROUP | {"zone": "us-east-1a"}]),
        "eks-fsdp:network": json.dumps({"zones": ["us-east-1a", "us-east-1b"]}),
    }
    parsed = Settings.from_config(config)
    assert parsed.region == "us-east-1"
    assert parsed.gpu_nodes[0].zone == "us-east-1a"


def test_the_view_of_jobs_alone_installs_nothing_and_keeps_what_is_off() -> None:
    platform = settings(monitoring={"mode": "none"}, storage={"mode": "fsx"})
    job = platform.jobs["first"]
    view = platform.on_existing_cluster("/run/kubeconfig", {"point": job})
    assert view.cluster.mode == "existing"
    assert (view.etcd.mode, view.monitoring.mode, view.storage.mode) == ("existing", "none", "existing")
    assert list(view.jobs) == ["point"]
