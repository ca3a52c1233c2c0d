"""Preflight against the stand-in account, and each check against answers that AWS may give."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.launcher.aws import Aws, AwsError, as_aws_error
from eks_fsdp.launcher.preflight import ask_aws
from eks_fsdp.launcher.preflight import preflight as run_preflight
from eks_fsdp.launcher.preflight.access import (
    check_account,
    check_actions,
    check_creator,
    needed_actions,
    principal_of,
)
from eks_fsdp.launcher.preflight.capacity import (
    catalogue_differences,
    check_offerings,
    check_quotas,
    check_reservations,
    check_zones,
)
from eks_fsdp.launcher.preflight.check import Context
from eks_fsdp.launcher.preflight.parts import (
    ami_parameter,
    check_ami,
    check_guard,
    check_image,
    check_kubernetes,
    check_token,
)
from eks_fsdp.launcher.stack import read_settings, stack_file
from eks_fsdp.sandbox.account import Account
from eks_fsdp.spec.quotas import quota_of

from .account_doubles import NOW, P5, ScriptedAws, account, context, settings, shown

__all__ = ["account"]
ROOT = Path(__file__).parents[2]
DENIED = AwsError("AccessDenied", "not allowed: User is not authorized")
MANIFEST = '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"digest":"sha256:0"}}'
SECRET = "arn:aws:secretsmanager:us-west-2:123456789012:secret:hf-abcdef"


def test_a_stack_that_fits_the_account_fails_nothing(account: Account) -> None:
    found = ask_aws(context(Aws("us-west-2"), now=datetime.now(UTC), allowed_account_ids=["123456789012"]))
    states = {check.name: check.state for check in found}
    assert states.pop("Trainer image") == "warning", "no repository before the first `up`"
    assert set(states.values()) == {"ok"}, found
    assert "p5.48xlarge in us-west-2a" in states
    assert "Quota L-417A185B" in states


def test_what_the_account_cannot_do_fails(account: Account) -> None:
    group = {**P5, "zone": "us-west-2d", "desired": 0, "max": 40, "ami": {"release": "1.34.1-20200101"}}
    zones = ["us-west-2a", "us-west-2d"]
    jobs = {"big": {"nodes": 30, "trainer": {"global_batch_size": 240, "micro_batch_size": 1}}}
    at = context(Aws("us-west-2"), gpu_nodes=[group], network={"zones": zones}, jobs=jobs)
    found = {check.name: check for check in ask_aws(at)}
    quota = found["Quota L-417A185B"]
    assert quota.state == "failed"
    assert "takes up to 5,760" in quota.seen
    assert "request-service-quota-increase" in quota.do
    assert found["AMI release 1.34.1-20200101"].state == "failed"
    elsewhere = list(check_zones(context(Aws("us-west-2"), network={"zones": ["us-west-2a", "us-west-2z"]})))
    assert elsewhere[0].state == "failed"
    assert "us-west-2a (usw2-az2)" in elsewhere[0].do


def test_zones_are_taken_by_id_too(account: Account) -> None:
    group = {**P5, "zone": "usw2-az2"}
    at = context(Aws("us-west-2"), gpu_nodes=[group], network={"zones": ["usw2-az2", "usw2-az1"]})
    assert at.zone_name("usw2-az2") == "us-west-2a"
    assert shown(check_offerings(at)) == [("p5.48xlarge in usw2-az2", "ok")]


def test_reservations_are_compared_with_their_group(account: Account) -> None:
    ec2: Any = account.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-west-2b", InstanceCount=1
    )["CapacityReservation"]["CapacityReservationId"]
    capacity = {"kind": "odcr", "reservation_id": made}
    now = datetime.now(UTC)
    at = context(Aws("us-west-2"), now=now, gpu_nodes=[{**P5, "capacity": capacity}])
    (check,) = check_reservations(at)
    assert check.state == "failed"
    assert "us-west-2b" in check.seen
    assert "eks-fsdp capacity" in check.do
    right = {**P5, "zone": "us-west-2b", "desired": 1, "capacity": capacity}
    (check,) = check_reservations(context(Aws("us-west-2"), now=now, gpu_nodes=[right]))
    assert check.state == "ok", check
    assert "1 of 1 p5.48xlarge free in us-west-2b (usw2-az1)" in check.seen
    missing = {**P5, "capacity": {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0"}}
    (check,) = check_reservations(context(Aws("us-west-2"), gpu_nodes=[missing]))
    assert check.state == "failed"


def test_images_of_own_and_other_repositories(account: Account) -> None:
    ecr: Any = account.client("ecr")
    ecr.create_repository(repositoryName="images/eks-fsdp/trainer")
    at = context(Aws("us-west-2"), stack="images")
    (check,) = check_image(at)
    assert check.state == "failed"
    assert check.do.startswith("eks-fsdp image build")
    ecr.put_image(repositoryName="images/eks-fsdp/trainer", imageManifest=MANIFEST, imageTag="0.1.0")
    assert shown(check_image(at)) == [("Trainer image", "ok")]
    other = context(Aws("us-west-2"), image={"repository": "ghcr.io/you/trainer"})
    assert shown(check_image(other)) == [("Trainer image", "unchecked")]


def test_the_tokens_secret_is_looked_up_and_not_read(account: Account) -> None:
    secrets: Any = account.client("secretsmanager")
    arn = secrets.create_secret(Name="hf", SecretString="hf_abc")["ARN"]
    (check,) = check_token(context(Aws("us-west-2"), hugging_face={"secret_arn": arn}))
    assert check.state == "ok"
    assert "hf_abc" not in check.seen
    (check,) = check_token(context(Aws("us-west-2"), hugging_face={"secret_arn": SECRET}))
    assert check.state == "failed"
    (check,) = check_token(context(Aws("us-west-2"), hugging_face={"token": "hf_abc"}))
    assert "hf_abc" not in check.seen + check.do


def test_a_role_without_rights_is_told_which_it_lacks(account: Account) -> None:
    iam: Any = account.client("iam")
    iam.create_role(RoleName="reader", AssumeRolePolicyDocument="{}")
    rule = {"Effect": "Allow", "Action": ["ec2:*"], "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    iam.put_role_policy(RoleName="reader", PolicyName="read", PolicyDocument=document)
    at = context(Aws("us-west-2"))
    at.caller = {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:assumed-role/reader/me"}
    (check,) = check_actions(at)
    assert check.state == "failed"
    assert "budgets" not in check.seen
    assert "ecr:CreateRepository" in check.seen
    at.caller = {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:assumed-role/nobody/me"}
    assert shown(check_actions(at)) == [("API access", "unchecked")], "no such role is no failure of the stack"


@pytest.mark.parametrize(
    ("arn", "principal"),
    [
        ("arn:aws:sts::1:assumed-role/Admin/me@x", "arn:aws:iam::1:role/Admin"),
        ("arn:aws:iam::1:user/a/b", "arn:aws:iam::1:user/a/b"),
        ("arn:aws:iam::1:root", None),
    ],
)
def test_who_is_simulated(arn: str, principal: str | None) -> None:
    assert principal_of(arn) == principal


def test_the_actions_follow_the_settings() -> None:
    base = set(needed_actions(settings()))
    fsx = set(needed_actions(settings(storage={"mode": "fsx"})))
    assert fsx - base == {"fsx:CreateFileSystem", "fsx:DeleteFileSystem", "fsx:TagResource"}
    existing = {
        "vpc_id": "vpc-0123456789abcdef0",
        "private_subnets": {"us-west-2a": "subnet-00000001", "us-west-2b": "subnet-00000002"},
    }
    assert "ec2:CreateVpc" in base
    assert "ec2:CreateVpc" not in needed_actions(settings(network={"existing": existing}))
    block = {**P5, "desired": 0, "capacity": {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0"}}
    assert "ec2:DescribeCapacityReservations" in needed_actions(settings(gpu_nodes=[block]))


def test_the_wrong_account_stops_everything_else() -> None:
    aws = ScriptedAws({"get_caller_identity": {"Account": "111111111111", "Arn": "arn:aws:iam::111111111111:user/me"}})
    found = ask_aws(context(aws, allowed_account_ids=["222222222222"]))
    assert found[0].state == "failed"
    assert "222222222222" in found[0].do
    assert {check.state for check in found[1:]} == {"unchecked"}
    assert [operation for operation, _ in aws.asked] == ["get_caller_identity"]


def test_without_credentials_one_check_fails_and_says_so() -> None:
    aws = ScriptedAws({"get_caller_identity": AwsError("NoCredentials", "no AWS credentials: sign in")})
    found = ask_aws(context(aws))
    assert found[0].state == "failed"
    assert "sign in" in found[0].seen
    assert {check.seen for check in found[1:]} == {"the account could not be asked"}


def test_what_may_not_be_asked_is_not_checked_and_no_failure() -> None:
    found = list(check_quotas(context(ScriptedAws({"get_service_quota": DENIED}))))
    assert shown(found) == [("Quota L-417A185B", "unchecked")]
    assert "may not ask this" in found[0].seen


def test_the_account_without_a_list_is_a_warning() -> None:
    aws = ScriptedAws({"get_caller_identity": {"Account": "1" * 12, "Arn": "arn:aws:iam::111111111111:user/me"}})
    (check,) = check_account(context(aws))
    assert check.state == "warning"
    assert "allowed_account_ids: ['111111111111']" in check.do


def test_who_creates_the_cluster_needs_no_entry() -> None:
    role = "arn:aws:iam::111111111111:role/platform"
    aws = ScriptedAws({})
    at = context(aws, cluster={"access": {"us": {"principal_arn": role, "policy": "cluster-admin"}}})
    at.caller = {"Account": "1" * 12, "Arn": "arn:aws:sts::111111111111:assumed-role/platform/me"}
    (check,) = check_creator(at)
    assert check.state == "warning"
    assert check.seen.startswith("cluster.access.us: ")
    at.caller = {"Account": "1" * 12, "Arn": "arn:aws:sts::111111111111:assumed-role/other/me"}
    assert list(check_creator(at)) == []


def test_running_instances_of_others_count_against_the_quota() -> None:
    def instance(kind: str, stack: str = "", **more: Any) -> dict[str, Any]:
        tags = [{"Key": "eksfsdp:stack", "Value": stack}]
        return {"InstanceType": kind, "Tags": tags, "CpuOptions": {"CoreCount": 96, "ThreadsPerCore": 2}, **more}

    running = [
        instance("p5.48xlarge"),
        instance("p5.48xlarge", "big"),
        instance("p5.48xlarge", InstanceLifecycle="spot"),
        instance("p5.48xlarge", InstanceLifecycle="capacity-block"),
    ]
    aws = ScriptedAws(
        {
            "get_service_quota": {"Quota": {"Value": 400.0}},
            "describe_instances": {"Reservations": [{"Instances": running}]},
        }
    )
    (check,) = check_quotas(context(aws))
    assert check.state == "failed"
    assert "400 vCPUs, 192 used by others; the stack takes up to 384" in check.seen
    assert "--desired-value 576" in check.do


def test_quotas_by_type() -> None:
    codes = {kind: (found := quota_of(kind)) and found.code for kind in ("p5.48xlarge", "g6e.48xlarge", "m6i.xlarge")}
    assert codes == {"p5.48xlarge": "L-417A185B", "g6e.48xlarge": "L-DB2E81BA", "m6i.xlarge": "L-1216C47A"}
    spot = {kind: (found := quota_of(kind, spot=True)) and found.code for kind in ("p4d.24xlarge", "p5e.48xlarge")}
    assert spot == {"p4d.24xlarge": "L-7212CCBC", "p5e.48xlarge": "L-C4BD4855"}
    assert quota_of("p6-b200.48xlarge", spot=True) is None


@pytest.mark.parametrize(
    ("status", "state"), [("STANDARD_SUPPORT", "ok"), ("EXTENDED_SUPPORT", "warning"), ("UNSUPPORTED", "failed")]
)
def test_kubernetes_versions(status: str, state: str) -> None:
    versions = [
        {"clusterVersion": "1.34", "versionStatus": status},
        {"clusterVersion": "1.35", "versionStatus": "STANDARD_SUPPORT"},
    ]
    (check,) = check_kubernetes(context(ScriptedAws({"describe_cluster_versions": {"clusterVersions": versions}})))
    assert check.state == state
    if state == "failed":
        assert check.seen == "EKS offers 1.35"


def test_the_catalogue_is_compared_with_ec2() -> None:
    network = {
        "EfaSupported": True,
        "EfaInfo": {"MaximumEfaInterfaces": 16},
        "MaximumNetworkCards": 32,
    }
    described = {
        "GpuInfo": {"Gpus": [{"Count": 8}]},
        "NetworkInfo": network,
        "VCpuInfo": {"DefaultVCpus": 192},
        "MemoryInfo": {"SizeInMiB": 2_097_152},
    }
    assert catalogue_differences("p5.48xlarge", described) == ["EFA interfaces 32, EC2 says 16"]


def test_the_image_parameter_of_a_release() -> None:
    assert ami_parameter("1.34", "1.34.9-20260801") == (
        "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/nvidia/"
        "amazon-eks-node-al2023-x86_64-nvidia-1.34-v20260801/image_id"
    )
    own = {**P5, "ami": {"image_id": "ami-0123456789abcdef0"}}
    aws = ScriptedAws({"describe_images": AwsError("InvalidAMIID.NotFound", "gone")})
    assert shown(check_ami(context(aws, gpu_nodes=[own]))) == [("Image ami-0123456789abcdef0", "failed")]


@pytest.mark.parametrize(
    ("guard", "state"),
    [
        ({"expiry": (NOW - timedelta(minutes=1)).isoformat()}, "failed"),
        ({"expiry": (NOW + timedelta(minutes=30)).isoformat()}, "warning"),
        ({"expiry": (NOW + timedelta(days=3)).isoformat()}, "ok"),
        ({"idle_minutes": 0}, "warning"),
        ({}, "ok"),
    ],
)
def test_the_cost_guard(guard: dict[str, Any], state: str) -> None:
    assert shown(check_guard(context(ScriptedAws({}), guard=guard))) == [("Cost guard", state)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ExpiredToken", "sign in again"),
        ("UnauthorizedOperation", "not allowed"),
        ("ThrottlingException", "ThrottlingException: slow down"),
    ],
)
def test_refusals_of_aws_in_words(code: str, words: str) -> None:
    from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

    error = as_aws_error(ClientError({"Error": {"Code": code, "Message": "slow down"}}, "X"))
    assert words in str(error)
    assert as_aws_error(NoCredentialsError()).no_credentials
    away = as_aws_error(EndpointConnectionError(endpoint_url="https://x"))
    assert (away.code, str(away)[:19]) == ("", "AWS does not answer")


def test_as_a_command(account: Account, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # No Pulumi: the stack's file is enough.
    monkeypatch.setenv("PATH", os.path.dirname(subprocess.__file__))
    assert run_preflight("sandbox", as_json=True)
    answer = json.loads(capfd.readouterr().out)
    assert answer["stack"] == "sandbox"
    assert {check["state"] for check in answer["checks"]} <= {"ok", "warning"}
    assert run_preflight("sandbox", as_json=False)
    printed = capfd.readouterr().out
    assert "API access" in printed
    assert "Stack sandbox:" in printed


@pytest.mark.parametrize(
    ("stack", "failing"),
    [("p5-16", set()), ("ci", set()), ("p5-capacity-block", {"Capacity block of p5-block"})],
)
def test_shipped_stacks_are_asked_whole(account: Account, stack: str, failing: set[str]) -> None:
    found = ask_aws(Context(stack, read_settings(stack_file(ROOT, stack)), Aws("us-west-2"), datetime.now(UTC)))
    assert {check.name for check in found if check.state == "failed"} == failing
    assert not [check for check in found if check.state == "unchecked"]
