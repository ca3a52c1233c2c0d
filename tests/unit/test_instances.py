"""The catalogue against the instance types that moto ships, which are the EC2 API's own answers.

moto 5.2.5 has every type of the catalogue, and none differs: there is no exception to list.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from importlib.resources import files
from typing import Any

import boto3
import pytest

from eks_fsdp.spec.instances import INSTANCE_TYPES, PEAK_BF16_TFLOPS


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, Any]]:
    data = files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()
    answer: dict[str, dict[str, Any]] = json.loads(gzip.decompress(data))
    return answer


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_a_type_is_as_ec2_described_it(name: str, described: dict[str, dict[str, Any]]) -> None:
    check(name, described[name])


@pytest.mark.aws
def test_every_type_is_as_ec2_describes_it_today() -> None:
    """Read only: DescribeInstanceTypes in the account and region of the environment."""
    if os.environ.get("EKS_FSDP_AWS_TESTS") != "1":
        pytest.skip("asks AWS itself: set EKS_FSDP_AWS_TESTS=1, with credentials and AWS_REGION")
    pages = boto3.client("ec2").get_paginator("describe_instance_types")
    # No region offers every type: a filter passes over those that it does not.
    wanted = [{"Name": "instance-type", "Values": list(INSTANCE_TYPES)}]
    offered = [theirs for page in pages.paginate(Filters=wanted) for theirs in page["InstanceTypes"]]
    assert offered, "the region offers none of the catalogue"
    for theirs in offered:
        check(theirs["InstanceType"], theirs)


def check(name: str, theirs: dict[str, Any]) -> None:
    """The catalogue's entry against one answer of DescribeInstanceTypes."""
    ours = INSTANCE_TYPES[name]
    gpus, network = theirs["GpuInfo"]["Gpus"], theirs["NetworkInfo"]
    speed = re.fullmatch(r"(?:Up to )?(?:(\d+)x )?(\d+) Gigabit", network["NetworkPerformance"])
    assert speed is not None
    assert [(g["Name"], g["Count"], g["MemoryInfo"]["SizeInMiB"]) for g in gpus] == [
        (ours.gpu, ours.gpus, ours.gpu_memory_mib)
    ]
    # Not the number of network cards: p6-b300 has one card more.
    assert ours.efa_interfaces == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert ours.addresses_per_interface == network["Ipv4AddressesPerInterface"]
    assert ours.network_cards == network["MaximumNetworkCards"]
    assert {ours.interfaces_per_card} == {card["MaximumNetworkInterfaces"] for card in network["NetworkCards"]}
    assert ours.network_gbps == int(speed[1] or 1) * int(speed[2])
    assert ours.vcpus == theirs["VCpuInfo"]["DefaultVCpus"]
    assert ours.memory_mib == theirs["MemoryInfo"]["SizeInMiB"]
    assert ours.nvme_gb == theirs["InstanceStorageInfo"]["TotalSizeInGB"]
    assert round(ours.ebs_gbps * 1000) == theirs["EbsInfo"]["EbsOptimizedInfo"]["BaselineBandwidthInMbps"]
    efa_cards = [card["NetworkCardIndex"] for card in network["NetworkCards"] if "efa" in card["InterfaceTypes"]]
    assert ours.efa_on_first_card == (0 in efa_cards)
    assert bool(ours.efa_interfaces) == network["EfaSupported"]
    assert len(efa_cards) == ours.efa_interfaces


def test_no_type_of_these_families_is_missing(described: dict[str, dict[str, Any]]) -> None:
    families = {"p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "g5", "g6", "g6e"}
    assert {name for name in described if name.split(".")[0] in families} == set(INSTANCE_TYPES)


def test_every_gpu_has_a_peak_and_no_peak_is_left_over() -> None:
    assert {instance.gpu for instance in INSTANCE_TYPES.values()} == set(PEAK_BF16_TFLOPS)
    assert all(i.peak_bf16_tflops == PEAK_BF16_TFLOPS[i.gpu] for i in INSTANCE_TYPES.values())
