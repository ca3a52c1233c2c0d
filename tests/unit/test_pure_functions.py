"""What the components compute before they declare: golden files, and the rules that the files must keep to."""

from __future__ import annotations

import csv
import ipaddress
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
from eks_fsdp.components.training_operator import OPERATOR
from eks_fsdp.spec import versions
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.names import TRAINER_METRICS, repository_name
from eks_fsdp.spec.settings import TaintSettings, TrainingOperatorSettings

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
        "etcd": [
            etcd.etcd_stateful_set(SYSTEM_NODES, persistent=False),
            etcd.disruption_budget(),
            etcd.etcd_service(),
        ],
        "etcd-persistent": [
            etcd.storage_class({"eksfsdp:owner": "team a", "eksfsdp:stack": "p5-16"}),
            etcd.data_claim(8),
            etcd.etcd_stateful_set(SYSTEM_NODES, persistent=True),
        ],
        "dcgm-exporter": monitoring.dcgm_exporter(),
        "prometheus": monitoring.prometheus(SYSTEM_NODES),
        "grafana": monitoring.grafana(SYSTEM_NODES),
        "storage": [
            storage.persistent_volume("training-checkpoints", 1200, "fs-1", "fs-1.fsx.us-west-2.amazonaws.com", "abcd"),
            storage.persistent_volume_claim("checkpoints", "training", "training-checkpoints", 1200),
            storage.open_job("checkpoints", "training", {"eksfsdp/role": "system"}),
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


def test_daemons_of_gpu_nodes_also_run_where_a_group_has_taints_of_its_own() -> None:
    taints = [TaintSettings(key="team", value="a"), TaintSettings(key="spot", effect="NoExecute")]
    daemons = [
        device_plugins.nvidia_device_plugin(taints),
        device_plugins.efa_device_plugin(taints),
        monitoring.dcgm_exporter(taints)[1],
    ]
    for daemon in daemons:
        tolerated = daemon["spec"]["template"]["spec"]["tolerations"]
        assert {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"} in tolerated
        assert {"key": "spot", "operator": "Exists", "effect": "NoExecute"} in tolerated


def test_no_plugin_is_taken_from_a_running_node_for_anything_less_than_the_nodes_end() -> None:
    for name in ("nvidia-device-plugin", "aws-efa-device-plugin"):
        assert pods()[name]["priorityClassName"] == "system-node-critical"
    for plugin in (device_plugins.nvidia_device_plugin(), device_plugins.efa_device_plugin()):
        assert plugin["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_etcds_volume_is_encrypted_tagged_and_goes_with_its_claim() -> None:
    kind = etcd.storage_class({"b": "2", "a": "1=1"})
    assert kind["parameters"] == {
        "type": "gp3",
        "encrypted": "true",
        "tagSpecification_1": "a=1=1",
        "tagSpecification_2": "b=2",
    }
    assert (kind["reclaimPolicy"], kind["volumeBindingMode"]) == ("Delete", "WaitForFirstConsumer")
    # A template's claim would outlive the StatefulSet, and its volume the stack.
    assert "volumeClaimTemplates" not in etcd.etcd_stateful_set({}, persistent=True)["spec"]


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
    kustomization = yaml.safe_load((OPERATOR.folder / "kustomization.yaml").read_text())
    assert kustomization["resources"][0] == versions.TRAINING_OPERATOR_MANIFESTS
    image = kustomization["images"][0]
    assert f"{image['name']}:{image['newTag']}" == versions.TRAINING_OPERATOR_IMAGE


def test_a_local_folder_takes_the_place_of_the_url(tmp_path: Path) -> None:
    assert OPERATOR.built_from(versions.TRAINING_OPERATOR_MANIFESTS, tmp_path) == OPERATOR.folder
    base = tmp_path / "real" / "base"
    base.mkdir(parents=True)
    (base / "kustomization.yaml").write_text("resources: []\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folder = OPERATOR.built_from("link/base", tmp_path)
    named = Path(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"][0])
    assert not named.is_absolute()
    assert (folder / named).resolve() == base.resolve()
    assert {file.name for file in folder.iterdir()} == {file.name for file in OPERATOR.folder.iterdir()}


def test_the_operators_resources_are_the_settings() -> None:
    def resources(kustomization: Any) -> Any:
        text = kustomization.files.get("operator.yaml") or (OPERATOR.folder / "operator.yaml").read_text()
        return yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["resources"]

    settings = TrainingOperatorSettings()
    usual = training_operator.kustomization(settings.cpu, settings.memory)
    assert usual is OPERATOR, "the pinned URL is then built as it is"
    assert resources(usual) == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}
    more = resources(training_operator.kustomization("500m", "1Gi"))
    assert more == {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}


def test_a_folder_without_a_kustomization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"training_operator\.manifests: 'nowhere' has no kustomization"):
        OPERATOR.built_from("nowhere", tmp_path)
