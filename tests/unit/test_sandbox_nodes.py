"""Node objects."""

from __future__ import annotations

import pytest

from eks_fsdp.sandbox.images import EFA_PLUGIN, GPU_PLUGIN
from eks_fsdp.sandbox.nodes import Node, NodeGroup, NodeGroupError, node_address, reserved_millicpu

P5 = {"desired": 2, "instance_type": "p5.48xlarge", "cpu": 192, "memory_mib": 2097152, "gpus": 8, "efa_interfaces": 32}


def node(**changes: object) -> Node:
    return Node(NodeGroup.parse("workers", {**P5, **changes}), 0, "10.244.130.1")


def test_devices_are_there_only_while_their_plugin_runs() -> None:
    machine = node()
    assert machine.capacity()["nvidia.com/gpu"] == "0"
    machine.devices = frozenset({GPU_PLUGIN})
    assert (machine.capacity()["nvidia.com/gpu"], machine.allocatable()["vpc.amazonaws.com/efa"]) == ("8", "0")
    machine.devices = frozenset({GPU_PLUGIN, EFA_PLUGIN})
    assert machine.allocatable()["vpc.amazonaws.com/efa"] == "32"


def test_a_node_without_gpus_names_none() -> None:
    assert not {"nvidia.com/gpu", "vpc.amazonaws.com/efa"} & node(gpus=0, efa_interfaces=0).capacity().keys()


@pytest.mark.parametrize(("cpus", "left"), [(192, 191450), (96, 95690), (4, 3920), (1, 940)])
def test_allocatable_cpu_is_what_eks_leaves(cpus: int, left: int) -> None:
    assert cpus * 1000 - reserved_millicpu(cpus) == left


def test_the_manifest() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    manifest = node(labels={"eksfsdp/role": "gpu"}, taints=[taint], zone="us-east-2c").manifest()
    assert manifest["metadata"]["name"] == "ip-10-244-130-1.us-east-2.compute.internal"
    assert manifest["spec"]["taints"] == [taint]
    labels = manifest["metadata"]["labels"]
    assert labels["eksfsdp/simulated"] == "true"
    assert labels["eksfsdp/role"] == "gpu"
    assert labels["node.kubernetes.io/instance-type"] == "p5.48xlarge"
    assert labels["topology.kubernetes.io/region"] == "us-east-2"


def test_addresses_are_stable_and_never_shared() -> None:
    first = node_address("workers", 0, set())
    assert node_address("workers", 0, set()) == first
    assert node_address("workers", 0, {first}) != first
    assert first.startswith("10.244.")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**P5, "desierd": 1}, "desierd: unknown key"),
        ({**P5, "gpus": -1}, "gpus: -1 is not a whole number"),
        ({"desired": 1}, "instance_type"),
    ],
)
def test_a_wrong_description_is_refused_by_key(body: dict[str, object], message: str) -> None:
    with pytest.raises(NodeGroupError, match=message):
        NodeGroup.parse("workers", body)
