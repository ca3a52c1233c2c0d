"""What an existing cluster has already, and the lines to set."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from eks_fsdp.launcher.aws import AwsError
from eks_fsdp.launcher.kube import ApiError
from eks_fsdp.launcher.preflight import ask_aws, uses_aws
from eks_fsdp.launcher.preflight.cluster import (
    CLUSTER_QUEUES,
    NODE_POOLS,
    PROMETHEUSES,
    PYTORCHJOBS,
    Inventory,
    cluster_checks,
    detect,
    group_checks,
    identity_check,
    part_check,
    read_inventory,
    settings_lines,
    version_checks,
)
from eks_fsdp.spec.settings import Settings

from .account_doubles import ScriptedAws, context, settings

EXISTING: dict[str, Any] = {"cluster": {"mode": "existing", "kubeconfig": "/tmp/none"}}
EFA_IMAGE = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20"


def full() -> Inventory:
    return Inventory(
        kinds=frozenset({PYTORCHJOBS, PROMETHEUSES, CLUSTER_QUEUES, NODE_POOLS}),
        images={
            "kubeflow/deployment/training-operator": "ghcr.io/kubeflow/training-v1/training-operator:v1@sha256:0",
            "kube-system/daemonset/efa": EFA_IMAGE,
            "gpu/daemonset/dcgm-exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2",
            "monitoring/deployment/kps-operator": "quay.io/prometheus-operator/prometheus-operator:v0.88",
            "kueue-system/deployment/kueue-controller-manager": "registry.k8s.io/kueue/kueue:v0.17.0",
        },
        services=frozenset({"eks-fsdp-system/etcd"}),
        namespaces=frozenset({"training"}),
        nodes=({"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}},),
    )


def by_setting(inventory: Inventory, wanted: Settings) -> dict[str, Any]:
    return {part.setting: part for part in detect(inventory, wanted)}


def test_everything_that_is_there_is_found() -> None:
    parts = by_setting(full(), settings(**EXISTING))
    assert "kubeflow/deployment/training-operator" in parts["training_operator"].found
    assert parts["device_plugins.nvidia"].found == "8 GPUs are allocatable"
    assert parts["device_plugins.efa"].found == "kube-system/daemonset/efa"
    assert "kps-operator" in parts["monitoring"].found
    assert "kueue-controller-manager" in parts["queue"].found
    assert parts["etcd"].found
    assert parts["namespace"].found


def test_the_efa_plugins_image_is_not_taken_for_nvidias() -> None:
    only_efa = Inventory(images={"kube-system/daemonset/efa": EFA_IMAGE})
    assert by_setting(only_efa, settings(**EXISTING))["device_plugins.nvidia"].found is None


def test_the_lines_to_set_make_the_settings_fit() -> None:
    wanted = settings(**EXISTING)
    lines = settings_lines(detect(full(), wanted))
    config = yaml.safe_load("\n".join(lines))
    assert config["eks-fsdp:training_operator"] == {"mode": "existing"}
    assert config["eks-fsdp:device_plugins"]["nvidia"] == {"mode": "existing"}
    fitting = settings(**EXISTING, **{key.partition(":")[2]: value for key, value in config.items()})
    parts = detect(full(), fitting)
    assert settings_lines(parts) == []
    assert {part_check(part).state for part in parts} == {"ok"}


def test_what_is_not_there_and_should_be_fails() -> None:
    wanted = settings(**EXISTING, training_operator={"mode": "existing"}, monitoring={"mode": "existing"})
    states = {part.setting: part_check(part).state for part in detect(Inventory(), wanted)}
    assert states["training_operator"] == "failed"
    assert states["monitoring"] == "warning"
    assert states["etcd"] == "ok", "it will be installed"
    assert "eks-fsdp:training_operator:" in settings_lines(detect(Inventory(), wanted))


@pytest.mark.parametrize("mode", ["install", "existing"])
@pytest.mark.parametrize(
    ("kinds", "image", "missing"),
    [
        ({PROMETHEUSES}, "ghcr.io/other/thing:v1", "no DCGM exporter"),
        (set(), "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2", "no Prometheus"),
    ],
)
def test_half_of_the_monitoring_is_not_taken_for_the_whole(
    kinds: set[str], image: str, missing: str, mode: str
) -> None:
    inventory = Inventory(kinds=frozenset(kinds), images={"gpu/daemonset/x": image})
    part = by_setting(inventory, settings(**EXISTING, monitoring={"mode": mode}))["monitoring"]
    check = part_check(part)
    assert check.state == "warning"
    assert missing in check.seen
    assert part.right_mode == "install"


@pytest.mark.parametrize(
    ("server", "image", "states"),
    [
        ("v1.34.4-eksbuild.2", "x/amazon-k8s-cni:v1.18.5-eksbuild.1@sha256:0", ["ok", "ok"]),
        ("v1.32.9", "x/amazon-k8s-cni:v1.18.4", ["warning", "failed"]),
        ("v1.33.0", "x/cilium:v1", ["ok", "unchecked"]),
        ("v1.33.0", "x/amazon-k8s-cni:latest", ["ok", "unchecked"]),
        ("", "x/amazon-k8s-cni:v1.20.0", ["unchecked", "ok"]),
    ],
)
def test_versions_that_efa_needs(server: str, image: str, states: list[str]) -> None:
    inventory = Inventory(images={"kube-system/daemonset/aws-node": f"{image} x/aws-network-policy-agent:v1.0.0"})
    assert [check.state for check in version_checks(inventory, settings(**EXISTING), server)] == states
    plain = settings(**EXISTING, gpu_nodes=[{"name": "g", "instance_type": "g5.xlarge", "zone": "us-west-2a"}])
    assert not list(version_checks(inventory, plain, server))


def test_buckets_need_the_pod_identity_agent() -> None:
    named = {"cluster": {"mode": "existing", "name": "theirs"}}
    buckets = settings(**named, storage={"checkpoint_bucket": "some-checkpoints"})
    assert identity_check(Inventory(), buckets).state == "failed"
    assert "--cluster-name theirs" in identity_check(Inventory(), buckets).do
    assert identity_check(Inventory(), settings(**named)).state == "ok"
    there = Inventory(images={"kube-system/daemonset/eks-pod-identity-agent": "x/eks-pod-identity-agent:v0.1"})
    assert identity_check(there, buckets).state == "ok"


def test_nodes_lack_the_labels_that_the_installed_plugins_go_by() -> None:
    labels = {"eksfsdp/gpu-group": "p5", "nvidia.com/gpu.present": "true"}
    inventory = Inventory(nodes=({"metadata": {"name": "n", "labels": labels}},))
    (check,) = group_checks(inventory, settings(**EXISTING))
    assert (check.state, "vpc.amazonaws.com/efa.present" in check.seen) == ("failed", True)
    theirs = settings(**EXISTING, device_plugins={"efa": {"mode": "existing"}})
    assert [check.state for check in group_checks(inventory, theirs)] == ["ok"]


class Api:
    source = "kubeconfig"

    def __init__(self, lists: dict[str, Any]) -> None:
        self.lists = lists

    def request(self, method: str, path: str) -> dict[str, Any]:
        answer = self.lists.get(path, {})
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def items(self, path: str) -> list[Any]:
        answer = self.lists.get(path.rsplit("/", 1)[-1], [])
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def workload(namespace: str, name: str, image: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"image": image}]}}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"template": template}}


def test_an_inventory_of_what_may_be_read() -> None:
    api: Any = Api(
        {
            "customresourcedefinitions": ApiError(403, "forbidden"),
            "daemonsets": [workload("gpu", "plugin", "nvcr.io/nvidia/k8s-device-plugin:v1")],
        }
    )
    inventory = read_inventory(api)
    assert inventory.kinds == frozenset()
    assert inventory.workload("k8s-device-plugin") == "gpu/daemonset/plugin"


def test_karpenter_and_unlabelled_nodes_are_worth_a_word() -> None:
    crd = {"metadata": {"name": NODE_POOLS}}
    api: Any = Api({"/version": {"gitVersion": "v1.34.4"}, "customresourcedefinitions": [crd]})
    checks, lines = cluster_checks(context(ScriptedAws({}), **EXISTING), api)
    found = {check.name: check for check in checks}
    assert "v1.34.4" in found["Kubernetes API"].seen
    assert found["Karpenter"].state == "warning"
    assert found["Nodes of p5"].state == "warning"
    assert "eksfsdp/gpu-group=p5" in found["Nodes of p5"].do
    assert lines == []


def test_a_cluster_that_does_not_answer_fails_alone() -> None:
    api: Any = Api({"/version": ApiError(0, "https://x does not answer")})
    checks, lines = cluster_checks(context(ScriptedAws({}), **EXISTING), api)
    assert [(check.name, check.state) for check in checks] == [("Kubernetes API", "failed")]
    assert lines == []


def test_aws_is_asked_of_an_existing_cluster_only_what_concerns_it() -> None:
    aws = ScriptedAws({"get_caller_identity": AwsError("NoCredentials", "none")})
    by_name = {"cluster": {"mode": "existing", "name": "theirs"}}
    names = [check.name for check in ask_aws(context(aws, **by_name))]
    assert names == ["AWS account", "API access", "Catalogue", "Trainer image", "Hugging Face token"]
    assert not uses_aws(settings(**EXISTING))
    ecr = {"repository": "123456789012.dkr.ecr.us-west-2.amazonaws.com/trainer"}
    assert uses_aws(settings(**EXISTING, image=ecr))
