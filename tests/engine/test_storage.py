"""A file system's life on the real engine: made, protected, kept by a teardown, found again, attached by its id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi import automation

from eks_fsdp.components.storage import Storage, StorageArgs
from eks_fsdp.sandbox.account import account_client
from eks_fsdp.spec.settings import DataRepositorySettings

from . import test_providers as engine

pytestmark = engine.pytestmark
stand = engine.stand
TAGS = {"eksfsdp:owner": "me"}


class Wanted:
    """What the program below changes between runs."""

    retain = True
    file_system_id: str | None = None
    repository: DataRepositorySettings | None = None
    network = True


def _program(wanted: Wanted) -> Callable[[], None]:
    def program() -> None:
        aws = engine.aws
        vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", tags=TAGS)
        subnet = aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.0.0.0/24")
        # They stand for the cluster: nothing that is kept may hold them.
        nodes = aws.ec2.SecurityGroup("nodes", vpc_id=vpc.id, tags=TAGS)
        aws.ec2.Eip("address", domain="vpc", tags=TAGS)
        storage = Storage(
            "s",
            StorageArgs(
                claim="checkpoints",
                namespaces=[],
                file_system_id=wanted.file_system_id,
                data_repository=wanted.repository,
                retain=wanted.retain,
                vpc_id=vpc.id,
                subnet_id=subnet.id,
                node_security_group_id=nodes.id,
                tags=TAGS,
            ),
        )
        pulumi.export("file_system", storage.file_system_id)

    return program


def test_a_kept_file_system_outlives_the_rest_and_is_used_again(
    stand: engine.Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = account_client(stand.ports["account_url"], "fsx")
    account_client(stand.ports["account_url"], "s3").create_bucket(  # type: ignore[attr-defined]
        Bucket="corpus", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    wanted = Wanted()
    wanted.repository = DataRepositorySettings(bucket="corpus", prefix="clean", export=True)
    stack = engine.Inline(stand, _program(wanted), monkeypatch)
    made = stack.up()["create"]
    first = stack.outputs()["file_system"]
    assert stack.up() == {"same": made}
    (association,) = client.describe_data_repository_associations()["Associations"]
    assert association["DataRepositoryPath"] == "s3://corpus/clean"
    assert association["S3"]["AutoExportPolicy"]["Events"] == ["NEW", "CHANGED", "DELETED"]

    # Refused whole: nothing is gone.
    before = stand.left()
    folder = Path(stack.stack.workspace.work_dir)
    refused = stand.pulumi(folder, "destroy", "--yes", "--stack", "test", fails=True)
    assert "s-lustre" in refused
    assert "protect" in refused
    assert stand.left() == before

    # All but the file system and what it stands in.
    stack.stack.destroy(exclude_protected=True)
    left = [line for line in stand.left() if not line.startswith(("route table", "network interface", "bucket"))]
    assert {line.split(" (")[0].rsplit(" ", 1)[0] for line in left} == {
        "VPC",
        "subnet",
        "security group",
        "FSx file system",
    }
    assert not any("elastic IP" in line for line in left)
    assert [s["FileSystemId"] for s in client.describe_file_systems()["FileSystems"]] == [first]

    # The same settings find it again.
    stack.up()
    assert stack.outputs()["file_system"] == first

    # Given up in two steps.
    wanted.retain = False
    assert stack.up() == {"same": made}
    stack.stack.destroy()
    assert [line for line in stand.left() if not line.startswith("bucket")] == []


def test_a_file_system_that_is_there_is_attached_and_never_deleted(
    stand: engine.Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2: Any = account_client(stand.ports["account_url"], "ec2")
    fsx: Any = account_client(stand.ports["account_url"], "fsx")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24")["Subnet"]["SubnetId"]
    lustre = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}
    made = fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=2400, SubnetIds=[subnet], LustreConfiguration=lustre
    )["FileSystem"]
    wanted = Wanted()
    wanted.file_system_id = made["FileSystemId"]
    stack = engine.Inline(stand, _program(wanted), monkeypatch)
    stack.up()
    assert stack.outputs()["file_system"] == made["FileSystemId"]
    stack.stack.destroy()
    assert [s["FileSystemId"] for s in fsx.describe_file_systems()["FileSystems"]] == [made["FileSystemId"]]
    wanted.file_system_id = "fs-0123456789"
    with pytest.raises(automation.CommandError, match="fs-0123456789"):
        stack.up()
