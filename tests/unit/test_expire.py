"""The function of the cost guard, against the stand-in account: moto's EKS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from eks_fsdp.components.guards import expire
from eks_fsdp.sandbox.account import Account
from eks_fsdp.spec.names import TAG_GPU_GROUP, TAG_STACK

from .machine_room_double import FakeMachineRoom

ROLE = "arn:aws:iam::123456789012:role/nodes"
GPU = {TAG_STACK: "p5-16", TAG_GPU_GROUP: "p5"}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    account = Account(FakeMachineRoom(), cluster_port=6443)
    account.start()
    iam: Any = account.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    try:
        yield account
    finally:
        account.stop()


@pytest.fixture
def eks(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """EKS with the cluster ``c``, and the function's environment."""
    environment = {
        "AWS_ENDPOINT_URL": account.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": account.region,
        "CLUSTER": "c",
        "STACK": "p5-16",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client: Any = account.client("eks")
    client.create_cluster(name="c", roleArn=ROLE, resourcesVpcConfig={"subnetIds": subnets(account)})
    yield client
    for name in client.list_nodegroups(clusterName="c")["nodegroups"]:
        client.delete_nodegroup(clusterName="c", nodegroupName=name)
    client.delete_cluster(name="c")


def subnets(account: Account) -> list[str]:
    """One in each of two zones: a new account has them."""
    ec2: Any = account.client("ec2")
    return [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2]]


def make(eks: Any, name: str, tags: dict[str, str], desired: int = 4, least: int = 1) -> None:
    eks.create_nodegroup(
        clusterName="c",
        nodegroupName=name,
        nodeRole=ROLE,
        subnets=eks.describe_cluster(name="c")["cluster"]["resourcesVpcConfig"]["subnetIds"][:1],
        scalingConfig={"minSize": least, "desiredSize": desired, "maxSize": 8},
        tags=tags,
    )


def scaling(eks: Any, name: str) -> dict[str, int]:
    return dict(eks.describe_nodegroup(clusterName="c", nodegroupName=name)["nodegroup"]["scalingConfig"])


class Context:
    @staticmethod
    def get_remaining_time_in_millis() -> int:
        return 0


def test_the_tags_are_the_programs() -> None:
    assert (expire.STACK_TAG, expire.GROUP_TAG) == (TAG_STACK, TAG_GPU_GROUP)


def test_it_scales_gpu_groups_of_its_stack_to_zero_and_no_other(eks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(eks, "gpu", GPU)
    make(eks, "system", {TAG_STACK: "p5-16"})
    make(eks, "other", {**GPU, TAG_STACK: "other"})
    make(eks, "nobodys", {})
    report = expire.handler({"action": "scale"}, Context)
    assert scaling(eks, "gpu") == {"minSize": 0, "desiredSize": 0, "maxSize": 8}
    assert {scaling(eks, name)["desiredSize"] for name in ("system", "other", "nobodys")} == {4}
    assert report["done"] == {"gpu": "from 4 to 0"}
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [report], "one line that says what was done"
    assert expire.handler({"action": "scale"}, Context)["done"] == {"gpu": "is at 0"}


def test_it_deletes_gpu_groups_and_then_finds_none(eks: Any) -> None:
    make(eks, "gpu", GPU)
    make(eks, "system", {TAG_STACK: "p5-16"})
    assert expire.handler({"action": "delete"}, Context)["done"] == {"gpu": "deleted"}
    assert eks.list_nodegroups(clusterName="c")["nodegroups"] == ["system"]
    assert expire.handler({"action": "delete"}, Context)["done"] == {}


def test_a_cluster_that_is_gone_has_nothing_left_to_end(eks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "gone")
    assert expire.handler({"action": "scale"}, Context)["done"] == {}


def test_an_action_that_it_does_not_know_fails(eks: Any) -> None:
    with pytest.raises(KeyError):
        expire.handler({"action": "pause"}, Context)


class Busy:
    """An EKS whose node group ``gpu`` refuses its first changes."""

    def __init__(self, eks: Any, refusals: int) -> None:
        self._eks = eks
        self.left = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._eks, name)

    def update_nodegroup_config(self, **request: Any) -> Any:
        if request["nodegroupName"] == "gpu" and self.left:
            self.left -= 1
            error = {"Code": "ResourceInUseException", "Message": "cannot be updated as it is being updated"}
            raise ClientError({"Error": error}, "UpdateNodegroupConfig")  # type: ignore[typeddict-item]
        return self._eks.update_nodegroup_config(**request)


def end(eks: Any, seconds: list[float]) -> dict[str, Any]:
    return expire.end_groups(eks, "c", "p5-16", "scale", seconds_left=lambda: seconds.pop(0), sleep=lambda waited: None)


def test_a_busy_group_is_tried_again_and_holds_up_no_other(eks: Any) -> None:
    make(eks, "gpu", GPU)
    make(eks, "late", GPU)
    report = end(Busy(eks, 2), [600, 300])
    assert report["done"] == {"gpu": "from 4 to 0", "late": "from 4 to 0"}
    assert report["failed"] == {}


def test_what_stays_busy_is_told_and_raised(
    eks: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(eks, "gpu", GPU)
    make(eks, "late", GPU)
    monkeypatch.setattr(boto3, "client", lambda service: Busy(eks, 99))
    with pytest.raises(expire.Unfinished, match="scale of gpu"):
        expire.handler({"action": "scale"}, Context)
    assert json.loads(capsys.readouterr().out)["done"] == {"late": "from 4 to 0"}
