"""What jobs have beside their code: rights in AWS, service account, token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eks_fsdp.components.hugging_face import token_of
from eks_fsdp.components.job_policies import job_policies
from eks_fsdp.components.job_security import pod_security_level
from eks_fsdp.components.s3_mounts import partition
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.settings import Settings, StorageSettings

from .conftest import Declare, Declared
from .test_components import of_type, one, platform, sandbox_settings

SECRET = "4dabf18193072939515e22adb298388d"
"""Pulumi's mark of a secret value on its way to the engine."""
ARN = "arn:aws:secretsmanager:us-west-2:123456789012:secret:hugging-face"
BUCKETS: dict[str, Any] = {
    "mode": "none",
    "s3_mounts": {
        "models": {"bucket": "models", "prefix": "llama2/", "path": "/mnt/models"},
        "data": {"bucket": "data", "path": "/mnt/data"},
    },
    "checkpoint_bucket": "checkpoints",
}
NO_CHECKPOINTS: dict[str, Any] = {
    "first": {"nodes": 1, "processes_per_node": 1, "transport": "gloo", "trainer": {"steps": 1}}
}


def statements(**storage: Any) -> dict[str, dict[str, Any]]:
    """Statements of the policies by resource and first action."""
    policies = job_policies(StorageSettings.parse(storage), "us-west-2", "red")
    found = [s for policy in policies for s in json.loads(policy)["Statement"]]
    return {f"{s['Resource']} {s['Action'][0]}": s for s in found}


# Pure


def test_jobs_read_the_mounted_buckets_below_their_prefix_and_write_that_of_checkpoints() -> None:
    found = statements(**BUCKETS)
    assert set(found) == {
        "arn:aws:s3:::models s3:ListBucket",
        "arn:aws:s3:::models/llama2/* s3:GetObject",
        "arn:aws:s3:::data s3:ListBucket",
        "arn:aws:s3:::data/* s3:GetObject",
        "arn:aws:s3:::checkpoints s3:ListBucket",
        "arn:aws:s3:::checkpoints/red/* s3:GetObject",
    }
    limited = found["arn:aws:s3:::models s3:ListBucket"]
    assert limited["Condition"] == {"StringLike": {"s3:prefix": ["llama2/", "llama2/*"]}}
    assert found["arn:aws:s3:::models/llama2/* s3:GetObject"]["Action"] == ["s3:GetObject"]
    assert "s3:PutObject" in found["arn:aws:s3:::checkpoints/red/* s3:GetObject"]["Action"]


def test_no_right_is_for_everything() -> None:
    text = json.dumps([*statements(**BUCKETS).values()])
    assert '"*"' not in text
    assert "s3:*" not in text


def test_a_bucket_that_is_mounted_twice_is_allowed_once() -> None:
    twice = {name: {"bucket": "data", "path": f"/mnt/{name}"} for name in ("a", "b")}
    assert len(job_policies(StorageSettings.parse({"s3_mounts": twice}), "us-west-2", "red")) == 1
    assert len(statements(s3_mounts=twice)) == 2


def test_jobs_that_use_no_bucket_have_no_rights() -> None:
    assert job_policies(StorageSettings(), "us-west-2", "red") == []


@pytest.mark.parametrize(
    ("region", "expected"), [("us-west-2", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_arns_are_of_the_regions_partition(region: str, expected: str) -> None:
    assert partition(region) == expected
    [policy] = job_policies(StorageSettings(checkpoint_bucket="checkpoints"), region, "red")
    assert f'"arn:{expected}:s3:::checkpoints"' in policy


@pytest.mark.parametrize("text", ["hf_x\n", '{"token": "hf_x"}', '{"user": "u", "HF_TOKEN": "hf_x"}'])
def test_a_token_is_alone_in_its_secret_or_under_its_name(text: str) -> None:
    assert token_of(text) == "hf_x"


@pytest.mark.parametrize("text", ["", '{"password": "planted"}', '{"token": 1, "x": "planted"}', "{planted"])
def test_a_secret_without_a_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(SettingsError, match=r"hugging_face\.secret_arn") as error:
        token_of(text)
    assert "planted" not in str(error.value)


def test_pods_of_jobs_are_held_to_a_level_unless_a_disk_of_the_node_is_mounted() -> None:
    def level(nvme: str) -> str:
        group = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "nvme": nvme}
        return pod_security_level(Settings.parse({"gpu_nodes": [group]}))

    assert (level("raid0"), level("mount"), level("none")) == ("baseline", "privileged", "baseline")


# Declared


@pytest.fixture(scope="module")
def declared(declare_program: Declare) -> list[Declared]:
    settings = sandbox_settings(
        storage=BUCKETS, hugging_face={"secret_arn": ARN}, jobs=NO_CHECKPOINTS, etcd={"persistent": True}
    )
    return declare_program(platform(settings))


def test_the_service_account_has_the_rights_before_a_pod_starts(declared: list[Declared]) -> None:
    account = one(declared, "kubernetes:core/v1:ServiceAccount", "access-training")
    assert account.inputs["metadata"] == {"name": "training", "namespace": "training"}
    association = one(declared, "aws:eks/podIdentityAssociation:PodIdentityAssociation", "access-training").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("training", "training")
    needed = {urn.rpartition("::")[2] for urn in one(declared, "kubernetes:kubeflow.org/v1:PyTorchJob").depends_on}
    assert {
        "p-access-training-account",
        "p-access-training-token",
        "p-access-training-identity-association",
    } <= needed


def test_the_role_is_deleted_and_does_not_vanish_with_the_cluster(declared: list[Declared]) -> None:
    by_urn = {resource.urn: resource for resource in declared}
    for resource in declared:
        if resource.name.startswith("p-access-training-identity"):
            place: Declared | None = resource
            while place is not None:
                assert not place.deleted_with, place.name
                place = by_urn.get(place.parent)


def test_the_token_is_a_secret_on_its_way_and_is_in_one_object_of_each_namespace(declared: list[Declared]) -> None:
    secret = one(declared, "kubernetes:core/v1:Secret", "access-training")
    given = secret.inputs["stringData"]
    # The whole of it, or the one value, is marked.
    value = given.get("value", given) if SECRET in given else given
    token = value["token"]
    assert SECRET in given or SECRET in token
    plain = token["value"] if isinstance(token, dict) else token
    assert plain == f"token of {ARN}"
    for resource in declared:
        if not resource.name.endswith("-token"):
            assert "token of" not in json.dumps(resource.inputs, default=str), resource.name


def test_no_token_no_buckets_no_secret_and_no_role(declare_program: Declare) -> None:
    declared = declare_program(platform(sandbox_settings()))
    names = {resource.name for resource in declared if "access" in resource.name}
    accounts = {"p-access-training-account", "p-access-research-account"}
    assert names == {"p-access-training", "p-access-research", *accounts}


def test_etcds_volume_goes_before_the_nodes_and_the_cluster(declared: list[Declared]) -> None:
    by_name = {(resource.type.rpartition(":")[2], resource.name): resource for resource in declared}
    claim = by_name["PersistentVolumeClaim", "p-etcd-claim"]
    server = by_name["StatefulSet", "p-etcd-server"]
    kind = by_name["StorageClass", "p-etcd-storage-class"]
    assert claim.urn in server.depends_on
    assert kind.urn in claim.depends_on
    nodes = one(declared, "eks:index:ManagedNodeGroup").urn
    by_urn = {resource.urn: resource for resource in declared}
    # What a restart keeps need not be kept from drains.
    assert ("PodDisruptionBudget", "p-etcd-budget") not in by_name
    for resource in (kind, claim, server):
        assert nodes in resource.depends_on
        assert not resource.deleted_with
        assert not by_urn[resource.parent].deleted_with
    assert kind.inputs["parameters"]["tagSpecification_1"] == "eksfsdp:owner=sandbox"


def test_etcd_without_a_volume_is_kept_from_drains_until_the_stack_ends(declare_program: Declare) -> None:
    declared = declare_program(platform(sandbox_settings(etcd={"persistent": False})))
    budget = one(declared, "kubernetes:policy/v1:PodDisruptionBudget", "etcd")
    # Still there when the nodes go, it would hold up each of them.
    assert not budget.deleted_with
    assert one(declared, "eks:index:ManagedNodeGroup").urn in budget.depends_on
    assert one(declared, "kubernetes:apps/v1:StatefulSet", "etcd").deleted_with


def test_a_team_has_in_its_namespace_what_the_stack_has_in_its_own(declared: list[Declared]) -> None:
    for place in ("training", "research"):
        made = {r.name.removeprefix(f"p-access-{place}-") for r in declared if r.name.startswith(f"p-access-{place}-")}
        assert {"account", "token", "identity-association"} <= made
        association = one(declared, "aws:eks/podIdentityAssociation:PodIdentityAssociation", f"access-{place}").inputs
        assert association["namespace"] == place


def test_a_namespace_that_is_there_already_gets_nothing_but_the_token(declare_program: Declare) -> None:
    settings = sandbox_settings(
        namespace={"mode": "existing"}, storage={"mode": "none"}, hugging_face={"token": "planted"}, jobs={}
    )
    declared = declare_program(platform(settings))
    made = [resource.type for resource in declared if resource.name.startswith("p-access-training-")]
    assert made == ["kubernetes:core/v1:Secret"]
    assert not of_type(declared, "kubernetes:core/v1:ServiceAccount") or all(
        "access" not in resource.name for resource in of_type(declared, "kubernetes:core/v1:ServiceAccount")
    )
