"""The function of the cost guard, against moto's EKS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from eks_fsdp.components.guards import expire
from eks_fsdp.spec.names import TAG_GPU_GROUP, TAG_STACK

ROLE = "arn:aws:iam::123456789012:role/nodes"
GPU = {TAG_STACK: "p5-16", TAG_GPU_GROUP: "p5"}


@pytest.fixture
def eks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("CLUSTER", "c")
    monkeypatch.setenv("STACK", "p5-16")
    with mock_aws():
        client: Any = boto3.client("eks")
        client.create_cluster(name="c", roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["subnet-1", "subnet-2"]})
        yield client


def make(eks: Any, name: str, tags: dict[str, str], desired: int = 4, least: int = 1) -> None:
    eks.create_nodegroup(
        clusterName="c",
        nodegroupName=name,
        nodeRole=ROLE,
        subnets=["subnet-1"],
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


class Gone:
    """An EKS without the cluster; moto itself fails there."""

    def get_paginator(self, operation: str) -> Any:
        raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "ListNodegroups")


def test_a_cluster_that_is_gone_has_nothing_left_to_end() -> None:
    assert end(Gone(), [600])["done"] == {}


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
