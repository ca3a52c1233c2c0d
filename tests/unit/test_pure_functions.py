"""What the components compute before they declare: golden files, and the rules that the files must keep to."""

from __future__ import annotations

import csv
import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_fsdp.components import device_plugins, etcd, monitoring, storage, training_operator
from eks_fsdp.components.cluster import SYSTEM_NODES
from eks_fsdp.components.network import plan_subnets
from eks_fsdp.components.objects import declare
from eks_fsdp.components.training_job import NAME_LIMIT, JobPlan
from eks_fsdp.spec import versions
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import TRAINER_METRICS, TRAINER_METRICS_PORT, repository_name
from eks_fsdp.spec.settings import JobSettings

Golden = Callable[[str, str], None]


def text(*manifests: Any) -> str:
    return yaml.safe_dump_all(manifests, sort_keys=False, width=120)


# Network


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.16.16.0/20"])
def test_subnet_plan(cidr: str, golden: Golden) -> None:
    plans = plan_subnets(cidr, ["a", "b", "c", "d"])
    golden(f"subnets-{cidr.rpartition('/')[2]}.txt", "".join(f"{p.zone} {p.private} {p.public}\n" for p in plans))
    ranges = [ipaddress.IPv4Network(block) for plan in plans for block in (plan.private, plan.public)]
    assert all(block.subnet_of(ipaddress.IPv4Network(cidr)) for block in ranges)
    assert not any(a.overlaps(b) for i, a in enumerate(ranges) for b in ranges[i + 1 :])
    # AWS takes nothing smaller than a /28.
    assert max(block.prefixlen for block in ranges) <= 28


def test_a_further_zone_moves_no_other() -> None:
    assert plan_subnets("10.0.0.0/16", ["a", "b", "c"])[:2] == plan_subnets("10.0.0.0/16", ["a", "b"])


# In the cluster


def in_cluster() -> dict[str, list[Any]]:
    return {
        "device-plugins": [device_plugins.nvidia_device_plugin(), device_plugins.efa_device_plugin()],
        "etcd": [etcd.etcd_stateful_set(SYSTEM_NODES), etcd.etcd_service()],
        "dcgm-exporter": monitoring.dcgm_exporter(),
        "prometheus": monitoring.prometheus(SYSTEM_NODES),
        "grafana": monitoring.grafana(SYSTEM_NODES),
        "storage": [
            storage.persistent_volume("training-checkpoints", 1200, "fs-1", "fs-1.fsx.us-west-2.amazonaws.com", "abcd"),
            storage.persistent_volume_claim("checkpoints", "training", "training-checkpoints", 1200),
        ],
    }


@pytest.mark.parametrize("part", in_cluster())
def test_manifests(part: str, golden: Golden) -> None:
    golden(f"{part}.yaml", text(*in_cluster()[part]))


def pods() -> dict[str, dict[str, Any]]:
    objects = [manifest for manifests in in_cluster().values() for manifest in manifests]
    return {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in objects if "template" in m.get("spec", {})}


def test_daemons_of_gpu_nodes_tolerate_their_taint_and_run_nowhere_else() -> None:
    for name in ("nvidia-device-plugin", "aws-efa-device-plugin", "dcgm-exporter"):
        pod = pods()[name]
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
        assert any(label.endswith(".present") for label in pod["nodeSelector"])
    for name in ("etcd", "prometheus", "grafana"):
        assert "tolerations" not in pods()[name]
        assert pods()[name]["nodeSelector"] == {"eksfsdp/role": "system"}


def test_every_container_asks_for_memory_and_is_limited_in_it_alone() -> None:
    for pod in pods().values():
        for container in pod["containers"]:
            assert set(container["resources"]["limits"]) == {"memory"}
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert pods()["dcgm-exporter"]["containers"][0]["resources"]["limits"]["memory"] == "1Gi"


def test_the_exporters_list_has_three_fields_in_each_line() -> None:
    # It ends on a line of any other number.
    assert all(len(line) == 3 for line in csv.reader(monitoring.dcgm_counters_csv().splitlines()))


@pytest.mark.parametrize(("stack", "folder"), [("sandbox", "sandbox/"), ("P5_16.west-", "p5-16-west/"), ("_", "")])
def test_the_registrys_name_is_one_that_ecr_takes(stack: str, folder: str) -> None:
    assert repository_name(stack, "eks-fsdp/trainer") == f"{folder}eks-fsdp/trainer"


def test_the_board_shows_what_is_measured() -> None:
    expressions = [panel["targets"][0]["expr"] for panel in monitoring.dashboard()["panels"]]
    measured = {name for name, _ in TRAINER_METRICS.values()} | set(monitoring.DCGM_COUNTERS)
    for expression in expressions:
        names = set(re.findall(r"(?:eksfsdp_|DCGM_)\w+", expression))
        assert names
        assert names <= measured


def test_a_kind_that_the_platform_does_not_use_is_refused() -> None:
    with pytest.raises(KeyError):
        declare("x", {"apiVersion": "v1", "kind": "Pod"}, None)  # type: ignore[arg-type]


# Operator


def test_the_kustomization_has_the_pinned_versions() -> None:
    kustomization = yaml.safe_load((training_operator.KUSTOMIZATION / "kustomization.yaml").read_text())
    assert kustomization["resources"][0] == versions.TRAINING_OPERATOR_MANIFESTS
    image = kustomization["images"][0]
    assert f"{image['name']}:{image['newTag']}" == versions.TRAINING_OPERATOR_IMAGE


def test_a_local_folder_takes_the_place_of_the_url(tmp_path: Path) -> None:
    assert training_operator.kustomization_folder(versions.TRAINING_OPERATOR_MANIFESTS, tmp_path) == (
        training_operator.KUSTOMIZATION
    )
    base = tmp_path / "real" / "base"
    base.mkdir(parents=True)
    (base / "kustomization.yaml").write_text("resources: []\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = training_operator.kustomization_folder("link/base", tmp_path)
    named = Path(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"][0])
    assert not named.is_absolute()
    assert (folder / named).resolve() == base.resolve()
    assert {file.name for file in folder.iterdir()} == {file.name for file in training_operator.KUSTOMIZATION.iterdir()}


def test_a_folder_without_a_kustomization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"training_operator\.manifests: 'nowhere' has no kustomization"):
        training_operator.kustomization_folder("nowhere", tmp_path)


# Jobs


def plan(job: str = "llama", instance: str = "p5.48xlarge", **changes: Any) -> JobPlan:
    settings: dict[str, Any] = {
        "nodes": 16,
        "trainer": {"global_batch_size": 128, "metrics_port": TRAINER_METRICS_PORT},
    }
    return JobPlan(
        job=job,
        settings=JobSettings.parse({**settings, **changes}),
        instance=INSTANCE_TYPES[instance],
        namespace="training",
        node_selector={"eksfsdp/gpu-group": "p5"},
        image_version="eks-fsdp/trainer:0.1.0",
        claim="checkpoints",
    )


@pytest.mark.parametrize("transport", ["efa", "tcp", "gloo"])
def test_pytorch_job(transport: str, golden: Golden) -> None:
    made = plan(transport=transport)
    golden(f"job-{transport}.yaml", text(made.pytorch_job("llama-1-01234567", "registry.example/trainer:0.1.0")))


def test_trainer_configuration_file(golden: Golden) -> None:
    golden("trainer.json", plan().trainer_json())


def test_a_job_with_c10d_leaves_the_endpoint_to_the_operator() -> None:
    elastic = plan(rendezvous="c10d").pytorch_job("x", "i")["spec"]["elasticPolicy"]
    assert "rdzvHost" not in elastic


def test_as_many_workers_at_least_as_at_most_and_nothing_that_scales_by_itself() -> None:
    elastic = plan().pytorch_job("x", "i")["spec"]["elasticPolicy"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == 16
    assert "metrics" not in elastic
    assert "ttlSecondsAfterFinished" not in json.dumps(plan().pytorch_job("x", "i"))


def test_the_same_job_has_the_same_name_and_any_change_makes_another() -> None:
    names = [
        plan().resource_name,
        plan(nodes=8).resource_name,
        plan(run="2").resource_name,
        plan(trainer={"global_batch_size": 256}).resource_name,
        plan(env={"A": "b"}).resource_name,
        plan(instance="p4de.24xlarge").resource_name,
    ]
    assert plan().resource_name == names[0]
    assert len(set(names)) == len(names)
    assert re.fullmatch(r"llama-1-[0-9a-f]{8}", names[0])


@pytest.mark.parametrize("job", ["a", "a" * 32, "a-" * 15 + "b"])
@pytest.mark.parametrize("run", ["1", "r" * 16])
def test_names_of_jobs_and_pods_fit_a_label(job: str, run: str) -> None:
    name = plan(job, run=run).resource_name
    assert len(name) <= NAME_LIMIT
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", f"{name}-worker-1023")
    assert len(f"{name}-worker-1023") <= 63


@pytest.mark.parametrize("instance", INSTANCE_TYPES)
def test_a_worker_takes_all_devices_of_a_node_and_less_than_all_of_the_rest(instance: str) -> None:
    made = plan(instance=instance)
    container = made.pod("x", "i")["containers"][0]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert limits == made.devices() == {key: requests[key] for key in limits}
    assert int(limits["nvidia.com/gpu"]) == made.instance.gpus
    assert int(limits.get("vpc.amazonaws.com/efa", "0")) == made.instance.efa_interfaces
    assert 0 < int(requests["cpu"]) < made.instance.vcpus
    assert int(requests["memory"].removesuffix("Mi")) < made.instance.memory_mib


@pytest.mark.parametrize(
    ("instance", "cpu_millis", "memory_kib"),
    # What nodes of these types were seen to have left for pods.
    [("p4de.24xlarge", 95_690, 1.146e9), ("p5.48xlarge", 191_450, 2.052e9)],
)
def test_a_worker_fits_what_real_nodes_have_left(instance: str, cpu_millis: int, memory_kib: float) -> None:
    requests = plan(instance=instance).pod("x", "i")["containers"][0]["resources"]["requests"]
    daemons_cpu, daemons_memory_mib = 500, 2048
    assert int(requests["cpu"]) * 1000 + daemons_cpu < cpu_millis
    assert int(requests["memory"].removesuffix("Mi")) + daemons_memory_mib < memory_kib / 1024


def test_the_users_environment_wins_and_no_name_comes_twice() -> None:
    environment = plan(env={"NCCL_SOCKET_IFNAME": "eth1", "NODE_NAME": "mine", "A": "b"}).environment()
    values = {item["name"]: item.get("value") for item in environment}
    assert len(values) == len(environment)
    assert (values["NCCL_SOCKET_IFNAME"], values["NODE_NAME"], values["A"]) == ("eth1", "mine", "b")
