"""What EC2 and EKS refuse, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.sandbox.refusals import (
    efa_interfaces,
    gpus,
    interface_problems,
    launch_template_problems,
    max_pods,
    scaling_problem,
    vcpus,
)


def instance(name: str) -> dict[str, Any]:
    from eks_fsdp.sandbox.account_ec2 import instance_type

    found = instance_type(name)
    assert found is not None
    return found


def interfaces(count: int, device: int = 1) -> list[dict[str, Any]]:
    first = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "efa"}
    rest = [{"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": "efa-only"} for card in range(1, count)]
    return [first, *rest]


def test_all_interfaces_of_a_p5_are_accepted() -> None:
    data = {"NetworkInterfaces": interfaces(32)}
    assert launch_template_problems(data, instance("p5.48xlarge")) == []
    assert efa_interfaces(data) == 32


def test_a_device_index_over_the_cards_limit_is_refused() -> None:
    problems = interface_problems(interfaces(2, device=2), instance("p5.48xlarge"))
    assert [path for path, _ in problems] == ["NetworkInterfaces[1].DeviceIndex"]
    assert "over the limit of network card 1 of p5.48xlarge" in problems[0][1]


def test_efa_on_a_type_without_it_is_refused() -> None:
    problems = interface_problems(interfaces(1), instance("m6i.xlarge"))
    assert problems == [("NetworkInterfaces[0].InterfaceType", "EFA interfaces are not supported on m6i.xlarge")]


def test_a_card_that_is_not_there_is_refused() -> None:
    problems = interface_problems(interfaces(5), instance("p4d.24xlarge"))
    assert (
        "NetworkInterfaces[4].NetworkCardIndex",
        "p4d.24xlarge has no network card 4; it has cards 0 to 3",
    ) in problems


def test_the_first_card_of_p6_b300_has_no_efa() -> None:
    problems = interface_problems(interfaces(1), instance("p6-b300.48xlarge"))
    assert problems == [
        ("NetworkInterfaces[0].InterfaceType", "network card 0 of p6-b300.48xlarge takes interface, not efa")
    ]


def test_more_efa_interfaces_than_the_type_has_are_refused() -> None:
    more = [*interfaces(16), {"NetworkCardIndex": 1, "DeviceIndex": 2, "InterfaceType": "efa-only"}]
    assert ("NetworkInterfaces", "17 EFA interfaces are more than the 16 of p5en.48xlarge") in interface_problems(
        more, instance("p5en.48xlarge")
    )


def test_both_lists_of_security_groups_are_refused() -> None:
    data = {"NetworkInterfaces": interfaces(1), "SecurityGroupIds": ["sg-1"]}
    assert [path for path, _ in launch_template_problems(data)] == ["SecurityGroupIds"]


def test_a_public_address_with_several_interfaces_is_refused() -> None:
    several = interfaces(2)
    several[0]["AssociatePublicIpAddress"] = True
    assert [path for path, _ in launch_template_problems({"NetworkInterfaces": several})] == [
        "NetworkInterfaces[0].AssociatePublicIpAddress"
    ]
    assert launch_template_problems({"NetworkInterfaces": several[:1]}) == []


def test_two_interfaces_in_one_place_are_refused() -> None:
    twice = [interfaces(1)[0], interfaces(1)[0]]
    assert [path for path, _ in launch_template_problems({"NetworkInterfaces": twice})] == [
        "NetworkInterfaces[1].DeviceIndex"
    ]


@pytest.mark.parametrize(
    ("scaling", "accepted"),
    [
        ({"minSize": 0, "maxSize": 4, "desiredSize": 0}, True),
        ({"minSize": 0, "maxSize": 0, "desiredSize": 0}, False),
        ({"minSize": 2, "maxSize": 4, "desiredSize": 1}, False),
        ({"minSize": 0, "maxSize": 4, "desiredSize": 5}, False),
        ({"minSize": 5, "maxSize": 4}, False),
        ({"desiredSize": 2}, True),
    ],
)
def test_sizes_of_a_node_group(scaling: dict[str, int], accepted: bool) -> None:
    assert (scaling_problem(scaling) is None) is accepted


def test_capacity_of_an_instance_type() -> None:
    assert (vcpus(instance("p5.48xlarge")), gpus(instance("p5.48xlarge"))) == (192, 8)
    assert (max_pods(instance("p5.48xlarge")), max_pods(instance("m6i.xlarge"))) == (100, 58)
