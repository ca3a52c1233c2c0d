"""Values that AWS or Kubernetes would refuse long after the preview: each is refused by name, with what is accepted."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from eks_fsdp.components.idle_guard import idle_nodes
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.rules.cluster import extended_support
from eks_fsdp.spec.settings import GpuNodeGroupSettings, Settings
from eks_fsdp.spec.subnets import zone_prefix

GROUP = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}
SESSION = "arn:aws:sts::123456789012:assumed-role/team/me"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"gpu_nodes": [{**GROUP, "max": 3, "idle": 20}]}, r"gpu_nodes\[0\]\.idle: 20 is more than max 3"),
        ({"gpu_nodes": [{**GROUP, "max_pods": 737}]}, r"gpu_nodes\[0\]\.max_pods: 737 .* accepted: at most 250"),
        ({"gpu_nodes": [{**GROUP, "taints": [{"key": "bad key!"}]}]}, r"gpu_nodes\[0\]\.taints\[0\]\.key: "),
        (
            {"gpu_nodes": [{**GROUP, "tags": {"eksfsdp:stack": "x"}}]},
            r"gpu_nodes\[0\]\.tags: 'eksfsdp:stack' is set by the program",
        ),
        ({"tags": {"aws:x": "y"}}, r"tags: 'aws:x' is set by AWS"),
        ({"cluster": {"access": {"me": {"principal_arn": SESSION}}}}, r"cluster\.access\.me\.principal_arn: "),
        ({"teams": {"a": {"principal_arns": [SESSION]}}}, r"teams\.a\.principal_arns\[0\]: "),
        (
            {"system_nodes": {"instance_type": "banana"}},
            r"system_nodes\.instance_type: 'banana'; accepted: an x86 type",
        ),
        ({"system_nodes": {"instance_type": "p5.48xlarge"}}, r"system_nodes\.instance_type: 'p5\.48xlarge'"),
        ({"system_nodes": {"instance_type": "m7g.xlarge"}}, r"system_nodes\.instance_type: 'm7g\.xlarge'"),
        ({"network": {"zones": ["us-west-2a", "usw2-az2"]}}, r"network\.zones: .* mixes names and ids"),
        ({"network": {"zones": ["use1-az1", "use1-az2"]}}, r"network\.zones: 'use1-az1' is not in region 'us-west-2'"),
        ({"network": {"cidr": "8.8.0.0/16"}}, r"network\.cidr: '8\.8\.0\.0/16' is a range of the public internet"),
        (
            {"network": {"existing": {"vpc_id": "x", "private_subnets": {"us-west-2a": "subnet-01234567"}}}},
            r"network\.existing\.vpc_id: ",
        ),
        (
            {
                "network": {
                    "existing": {
                        "vpc_id": "vpc-01234567",
                        "private_subnets": {"us-west-2a": "subnet-01234567", "us-west-2b": "subnet-01234567"},
                    }
                }
            },
            r"network\.existing\.private_subnets\.us-west-2a: 'subnet-01234567' is named twice",
        ),
    ],
)
def test_refused_at_preview(values: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Settings.parse(values)


@pytest.mark.parametrize("instance_type", ["m6i.xlarge", "c7i-flex.large", "m5dn.2xlarge", "t3.large"])
def test_x86_types_are_accepted_for_system_nodes(instance_type: str) -> None:
    assert (
        Settings.parse({"system_nodes": {"instance_type": instance_type}}).system_nodes.instance_type == instance_type
    )


@pytest.mark.parametrize(
    ("region", "prefix"),
    [("us-west-2", "usw2-"), ("us-east-1", "use1-"), ("ap-southeast-1", "apse1-"), ("us-gov-west-1", "usgw1-")],
)
def test_ids_of_zones_begin_with_their_region(region: str, prefix: str) -> None:
    assert zone_prefix(region) == prefix


def test_a_capacity_block_keeps_its_nodes() -> None:
    """It is paid for whole; nobody would start them again."""
    block = {
        "kind": "capacity-block",
        "reservation_id": "cr-0123456789abcdef0",
        "starts": "2031-01-01T11:30:00Z",
        "ends": "2031-01-08T11:30:00Z",
        "scheduled_nodes": 16,
    }
    assert idle_nodes(GpuNodeGroupSettings.model_validate({**GROUP, "capacity": block})) == 16
    assert idle_nodes(GpuNodeGroupSettings.model_validate({**GROUP, "desired": 4, "idle": 1})) == 1


@pytest.mark.parametrize(
    ("today", "told"), [(date(2026, 12, 2), False), (date(2026, 12, 3), True), (date(2027, 12, 2), True)]
)
def test_extended_support_is_told(today: date, told: bool) -> None:
    settings = Settings.parse({"cluster": {"kubernetes_version": "1.34"}})
    assert (extended_support(settings, today) is not None) is told
