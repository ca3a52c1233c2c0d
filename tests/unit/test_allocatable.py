"""What a node has left for pods, against what was seen on real nodes."""

from __future__ import annotations

import pytest

from eks_fsdp.spec.instances import INSTANCE_TYPES, reserved_cpu_millis


@pytest.mark.parametrize(
    ("name", "cpu_millis", "memory_kib", "hugepages_mib"),
    [
        ("p4de.24xlarge", 95_690, 1_146_004_920, 21_122),
        # The memory of this one was told in four digits.
        ("p5.48xlarge", 191_450, 2_052_000_000, 42_242),
    ],
)
def test_a_type_has_what_a_real_node_of_it_showed(
    name: str, cpu_millis: int, memory_kib: int, hugepages_mib: int
) -> None:
    instance = INSTANCE_TYPES[name]
    assert instance.allocatable_cpu_millis == cpu_millis
    assert instance.hugepages_2mib * 2 == hugepages_mib
    assert instance.allocatable_memory_mib * 1024 == pytest.approx(memory_kib, rel=0.003)


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_every_type_leaves_most_of_itself(name: str) -> None:
    instance = INSTANCE_TYPES[name]
    assert 0.97 * instance.vcpus * 1000 < instance.allocatable_cpu_millis < instance.vcpus * 1000
    assert 0.8 * instance.memory_mib < instance.allocatable_memory_mib < 0.975 * instance.memory_mib


def test_a_type_without_efa_has_no_huge_pages() -> None:
    assert all((instance.hugepages_2mib == 0) == (instance.efa_interfaces == 0) for instance in INSTANCE_TYPES.values())


@pytest.mark.parametrize(("vcpus", "millis"), [(1, 60), (2, 70), (4, 80), (96, 310), (192, 550)])
def test_the_kubelets_share_of_the_cpus(vcpus: int, millis: int) -> None:
    assert reserved_cpu_millis(vcpus) == millis
