"""File systems, data repositories and image builds of the stand-in account, as an AWS SDK sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eks_fsdp.sandbox.account import Account, leftovers

from .machine_room_double import FakeMachineRoom

LUSTRE = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125}
EVENTS = {"AutoImportPolicy": {"Events": ["NEW"]}}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    made = Account(FakeMachineRoom(), cluster_port=6443)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client(account: Account) -> Any:
    return account.client


@pytest.fixture(scope="module")
def network(account: Account) -> tuple[str, str, str]:
    ec2: Any = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="lustre", Description="d", VpcId=vpc)["GroupId"]
    return vpc, subnet, group


def refusal(call: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def lustre(client: Any, subnet: str, group: str | None = None, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"StorageCapacity": 1200, "LustreConfiguration": LUSTRE, **more}
    groups = {"SecurityGroupIds": [group]} if group else {}
    return dict(
        client("fsx").create_file_system(FileSystemType="LUSTRE", SubnetIds=[subnet], **groups, **values)["FileSystem"]
    )


def test_a_file_system_keeps_its_network(client: Any, network: tuple[str, str, str]) -> None:
    vpc, subnet, group = network
    made = lustre(client, subnet, group)
    assert (made["VpcId"], made["Lifecycle"]) == (vpc, "AVAILABLE")
    assert len(made["LustreConfiguration"]["MountName"]) == 8
    assert any(line.startswith("network interface") for line in leftovers(client))
    assert refusal(lambda: client("ec2").delete_subnet(SubnetId=subnet)).startswith("DependencyViolation")
    assert refusal(lambda: client("ec2").delete_security_group(GroupId=group)).startswith("DependencyViolation")
    client("fsx").delete_file_system(FileSystemId=made["FileSystemId"])
    unknown = refusal(lambda: client("fsx").describe_file_systems(FileSystemIds=[made["FileSystemId"]]))
    assert unknown.startswith("FileSystemNotFound")
    client("ec2").delete_security_group(GroupId=group)


def test_what_fsx_refuses_of_a_new_file_system(client: Any, network: tuple[str, str, str]) -> None:
    _, subnet, _ = network
    assert "'subnet-00000000' does not exist" in refusal(lambda: lustre(client, "subnet-00000000"))
    assert "'sg-00000000' does not exist in VPC" in refusal(lambda: lustre(client, subnet, "sg-00000000"))
    assert "1200, or a multiple of 2400" in refusal(lambda: lustre(client, subnet, StorageCapacity=3600))
    slow = {**LUSTRE, "PerUnitStorageThroughput": 200}
    assert "125, 250, 500 or 1000" in refusal(lambda: lustre(client, subnet, LustreConfiguration=slow))


def test_a_data_repository_is_a_bucket_behind_a_folder(client: Any, network: tuple[str, str, str]) -> None:
    fsx = client("fsx")
    system = lustre(client, network[1])["FileSystemId"]
    here = {"LocationConstraint": "us-west-2"}
    client("s3").create_bucket(Bucket="corpus", CreateBucketConfiguration=here)

    def associate(path: str, bucket: str) -> dict[str, Any]:
        answer = fsx.create_data_repository_association(
            FileSystemId=system,
            FileSystemPath=path,
            DataRepositoryPath=bucket,
            S3=EVENTS,
            Tags=[{"Key": "a", "Value": "b"}],
        )
        return dict(answer["Association"])

    made = associate("/data", "s3://corpus/clean")
    assert "does not exist" in refusal(lambda: associate("/more", "s3://nothing"))
    assert "FileSystemPath '/data/x' overlaps '/data'" in refusal(lambda: associate("/data/x", "s3://corpus/other"))
    assert "overlaps" in refusal(lambda: associate("/more", "s3://corpus"))
    fsx.update_data_repository_association(
        AssociationId=made["AssociationId"], S3={"AutoExportPolicy": {"Events": ["NEW"]}}
    )
    (found,) = fsx.describe_data_repository_associations(AssociationIds=[made["AssociationId"]])["Associations"]
    assert (found["S3"], found["Tags"]) == ({"AutoExportPolicy": {"Events": ["NEW"]}}, [{"Key": "a", "Value": "b"}])
    fsx.delete_file_system(FileSystemId=system)
    gone = refusal(lambda: fsx.describe_data_repository_associations(AssociationIds=[made["AssociationId"]]))
    assert gone.startswith("DataRepositoryAssociationNotFound")


def test_a_build_ends_with_an_image_in_the_registry(client: Any) -> None:
    client("iam").create_role(RoleName="builds", AssumeRolePolicyDocument="{}")
    project = client("codebuild").create_project(
        name="trainer",
        source={"type": "S3", "location": "sources/none.zip"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "i", "computeType": "BUILD_GENERAL1_LARGE"},
        serviceRole="arn:aws:iam::123456789012:role/builds",
        logsConfig={"cloudWatchLogs": {"status": "ENABLED", "groupName": "builds"}},
    )["project"]["name"]
    client("s3").create_bucket(Bucket="sources", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    address = client("ecr").create_repository(repositoryName="a/trainer", imageTagMutability="IMMUTABLE")["repository"]
    variable = {"name": "IMAGE", "value": f"{address['repositoryUri']}:src-1"}

    def start(location: str) -> dict[str, Any]:
        return dict(
            client("codebuild").start_build(
                projectName=project, sourceLocationOverride=location, environmentVariablesOverride=[variable]
            )["build"]
        )

    assert "no such source" in refusal(lambda: start("sources/1.zip"))
    client("s3").put_object(Bucket="sources", Key="1.zip", Body=b"zip")
    first = start("sources/1.zip")
    (build,) = client("codebuild").batch_get_builds(ids=[first["id"]])["builds"]
    assert (build["buildStatus"], build["buildComplete"]) == ("SUCCEEDED", True)
    (image,) = client("ecr").describe_images(repositoryName="a/trainer")["imageDetails"]
    assert image["imageTags"] == ["src-1"]
    where = {"logGroupName": build["logs"]["groupName"], "logStreamName": build["logs"]["streamName"]}
    messages = [event["message"] for event in client("logs").get_log_events(**where)["events"]]
    assert messages[-1] == f"src-1: digest: {image['imageDigest']}"
    # A tag, once pushed, always means the same image.
    client("s3").put_object(Bucket="sources", Key="2.zip", Body=b"other")
    (again,) = client("codebuild").batch_get_builds(ids=[start("sources/2.zip")["id"]])["builds"]
    assert again["buildStatus"] == "FAILED"
    assert json.dumps([line for line in leftovers(client) if "CodeBuild" in line]) == '["CodeBuild project trainer"]'
