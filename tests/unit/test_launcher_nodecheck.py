"""check-nodes: who is measured with whom, what is wrong with a measurement, and which node is to blame."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from eks_fsdp.launcher.nodecheck import SIZES, CheckRequest, Findings, check_nodes
from eks_fsdp.launcher.nodecheck.plan import Measure, device_faults, fault, judge, node_faults, rounds
from eks_fsdp.launcher.nodecheck.pods import check_rows, measure_of, pod_manifest, side_by_side
from eks_fsdp.spec.bandwidth import GATES, bus_bandwidth
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.trainer import check_nodes as in_pod

from .account_doubles import P5, settings

P5_TYPE = INSTANCE_TYPES["p5.48xlarge"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 16])
def test_everybody_meets_everybody_once_and_nobody_is_in_two_places(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    made = rounds(names)
    pairs = [frozenset(pair) for round_ in made for pair in round_]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names, 2)))
    for round_ in made:
        here = [name for pair in round_ for name in pair]
        assert len(here) == len(set(here))
    assert len(made) == (count - 1 if count % 2 == 0 else count) * (count > 1)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # 1 GB in 10 ms over 16 ranks: algbw 100 GB/s, busbw 100 * 2 * 15 / 16.
    assert bus_bandwidth(10**9, 0.01, 16) == pytest.approx(187.5)
    assert bus_bandwidth(10**9, 0.01, 2) == pytest.approx(100.0)


def test_every_gate_is_of_a_known_type_and_names_its_source() -> None:
    for name, gate in GATES.items():
        assert name in INSTANCE_TYPES
        assert gate.source


def pair(a: str, b: str, speed: float | None = 400.0, transport: str = "efa", error: str = "") -> Measure:
    return Measure(nodes=(a, b), gb_per_second=speed, transport=transport, error=error)


def test_what_is_wrong_with_a_measurement() -> None:
    assert fault(pair("a", "b"), P5_TYPE, "nccl") == ""
    assert "must reach 300" in fault(pair("a", "b", 100.0), P5_TYPE, "nccl")
    assert "talked over tcp" in fault(pair("a", "b", transport="tcp"), P5_TYPE, "nccl")
    assert fault(pair("a", "b", 0.1, "gloo"), P5_TYPE, "gloo") == "", "gates are for NCCL"
    assert fault(Measure(nodes=("a",), gb_per_second=1.0), P5_TYPE, "nccl") == "", "and between nodes"
    ungated = INSTANCE_TYPES["p5en.48xlarge"]
    assert fault(pair("a", "b", 1.0), ungated, "nccl") == "", "a type without a source is not judged"
    assert fault(pair("a", "b", error="hung"), ungated, "gloo") == "hung"


def test_a_node_most_of_whose_pairs_fail_is_to_blame() -> None:
    nodes = ["a", "b", "c", "d"]
    wrong = {pair: "slow" for pair in combinations(nodes, 2) if "c" in pair}
    verdict = judge(nodes, {}, wrong)
    assert dict(verdict.bad) == {"c": "3 of 3 pairs with sound nodes fail: slow"}
    assert verdict.links == ()


def test_two_bad_nodes_do_not_take_sound_ones_with_them() -> None:
    nodes = [f"n{number}" for number in range(6)]
    wrong = {pair: "slow" for pair in combinations(nodes, 2) if {"n1", "n4"} & set(pair)}
    assert set(judge(nodes, {}, wrong).bad) == {"n1", "n4"}


def test_one_pair_alone_is_a_link_and_nobodys_fault() -> None:
    verdict = judge(["a", "b", "c", "d"], {}, {("a", "b"): "slow"})
    assert (dict(verdict.bad), verdict.links) == ({}, (("a", "b"),))
    verdict = judge(["a", "b"], {}, {("a", "b"): "slow"})
    assert (dict(verdict.bad), verdict.links) == ({}, (("a", "b"),)), "of two nodes, nothing tells which"


def test_what_a_node_is_by_itself_comes_first() -> None:
    verdict = judge(["a", "b", "c"], {"a": ["7 of 8 GPUs"]}, {("b",): "hung", ("a", "b", "c"): "slow"})
    assert dict(verdict.bad) == {"a": "7 of 8 GPUs", "b": "alone: hung"}
    assert verdict.notes == ()
    assert judge(["a", "b", "c"], {}, {("a", "b", "c"): "slow"}).notes == ("all 3 nodes together: slow",)


def node(gpus: int = 8, efas: int = 32, *conditions: dict[str, str], kind: str = "p5.48xlarge") -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": str(efas)}
    labels = {"node.kubernetes.io/instance-type": kind}
    return {
        "metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": allocatable, "conditions": list(conditions)},
    }


def test_a_nodes_own_object_speaks_against_it() -> None:
    assert node_faults(node(), P5_TYPE) == []
    assert node_faults(node(gpus=7, efas=1), P5_TYPE) == [
        "7 of 8 nvidia.com/gpu are allocatable",
        "1 of 32 vpc.amazonaws.com/efa are allocatable",
    ]
    xid = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error", "message": "GPU 3"}
    well = {"type": "NetworkingReady", "status": "True", "reason": "NetworkingIsReady"}
    assert node_faults(node(8, 32, xid, well), P5_TYPE) == ["NvidiaXID79Error: GPU 3"]
    assert "is a g5.8xlarge" in node_faults(node(kind="g5.8xlarge"), P5_TYPE)[0]


def test_what_the_pod_sees_is_compared_with_the_catalogue() -> None:
    assert device_faults({"gpus": 8, "efa_devices": 32, "efa_domains": 32}, P5_TYPE) == []
    assert "nvidia-smi lists 7 GPUs, not 8" in device_faults({"gpus": 7, "efa_devices": 32, "efa_domains": 32}, P5_TYPE)
    assert "1 of 32 /dev/infiniband" in device_faults({"gpus": 8, "efa_devices": 1, "efa_domains": 1}, P5_TYPE)[0]
    assert (
        "fi_info is not in the image" in device_faults({"gpus": 8, "efa_devices": 32, "efa_domains": None}, P5_TYPE)[0]
    )
    assert (
        "nvidia-smi is not in the pod"
        in device_faults({"gpus": None, "efa_devices": 32, "efa_domains": 32}, P5_TYPE)[0]
    )
    assert device_faults({"gpus": 1, "efa_devices": 0, "efa_domains": None}, INSTANCE_TYPES["p5.4xlarge"])


def test_a_pod_takes_the_whole_node_and_is_no_jobs() -> None:
    group = settings(gpu_nodes=[{**P5, "taints": [{"key": "team", "value": "a"}]}]).gpu_nodes[0]
    manifest = pod_manifest(
        "check-nodes-c1-0", "ip-1", check="c1", image="r:t", namespace="training", group=group, instance=P5_TYPE,
        environment={"A": "b"},
    )  # fmt: skip
    spec = manifest["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}
    assert [toleration["key"] for toleration in spec["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert spec["activeDeadlineSeconds"] > 0, "it ends even where nobody is left to delete it"
    assert not any(label.startswith("training.kubeflow.org") for label in manifest["metadata"]["labels"])
    plain = pod_manifest(
        "x", "ip-1", check="c1", image="r:t", namespace="n", group=group.model_copy(update={"efa": "none"}),
        instance=P5_TYPE, environment={},
    )  # fmt: skip
    assert "vpc.amazonaws.com/efa" not in plain["spec"]["containers"][0]["resources"]["limits"]


ROW = json.dumps({"eksfsdp-check": "reduce", "ranks": 2, "gb_per_second": 1.5, "transport": "gloo"})


def test_commands_output_becomes_a_measurement() -> None:
    assert check_rows(f'W1201 warning {{\n{ROW}\n{{broken "eksfsdp-check"\n') == [json.loads(ROW)]
    assert measure_of(["a", "b"], [(0, ROW), (0, "")]) == Measure(nodes=("a", "b"), gb_per_second=1.5, transport="gloo")
    ended = measure_of(["a", "b"], [(0, ROW), (1, "x\nRuntimeError: connection closed\nlast")])
    assert ended.error == "torchrun on b ended with 1: RuntimeError: connection closed"
    assert measure_of(["a"], [(124, "")]).error == "torchrun on a did not end in time: it wrote nothing"
    assert "was killed" in measure_of(["a"], [(137, "")]).error
    assert "did not end" in measure_of(["a"], [(None, "")]).error


def test_side_by_side_keeps_the_order_and_raises_what_was_raised() -> None:
    assert side_by_side(lambda n: n * 2, [3, 1, 2]) == [6, 2, 4]
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda n: 1 // n, [1, 0])


def test_findings_judge_what_was_measured() -> None:
    found = Findings("p5", P5_TYPE, "nccl", nodes=["a", "b", "c"])
    found.measures = [pair("a", "b"), pair("a", "c", 100.0), pair("b", "c", 100.0)]
    assert set(found.verdict().bad) == {"c"}


def test_devices_of_a_machine_without_any(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_pod.shutil, "which", lambda name: None)
    in_pod.main(["devices"])
    (row,) = check_rows(capsys.readouterr().out)
    assert (row["gpus"], row["efa_domains"]) == (None, None)


def test_a_request_and_its_sizes() -> None:
    assert CheckRequest(stack="s").backend is None
    assert SIZES["nccl"][-1] >= 1024, "bandwidth is judged where latency no longer matters"
    assert callable(check_nodes)
