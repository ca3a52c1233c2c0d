"""Storage: sizes and refusals, what is rendered, and what is declared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from eks_fsdp.components import s3_mounts
from eks_fsdp.components.s3_mounts import bucket_volume, checkpoint_bucket_policy, read_policy
from eks_fsdp.components.storage import Storage, StorageArgs, data_repository
from eks_fsdp.sandbox.bucket_mirror import BucketError, BucketMirror, bucket_folder
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.checkpoints import capacity_for, checkpoint_bytes, checkpoint_gib, needed_gib
from eks_fsdp.spec.settings import DataRepositorySettings, S3MountSettings, Settings

from .conftest import Declare
from .test_components import of_type, one, platform, sandbox_settings

KEY = "arn:aws:kms:us-west-2:123456789012:key/1"
GROUP = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "max": 4}

# Sizes and refusals


def test_a_checkpoint_is_weights_and_two_moments() -> None:
    assert checkpoint_bytes(1_000) == 12_000
    assert checkpoint_bytes(1_000, dtype="bfloat16", optimizer=False) == 2_000
    # 6.74 and 69 billion parameters.
    assert round(checkpoint_gib("llama2-7b")) == 75
    assert round(checkpoint_gib("llama2-70b")) == 771
    assert needed_gib("llama2-70b", 2) == 3 * checkpoint_gib("llama2-70b")
    assert [capacity_for(gib) for gib in (1, 1080, 1081, 2160, 2161, 10_000)] == [1200, 1200, 2400, 2400, 4800, 12_000]


def job(directory: str | None = "/mnt/checkpoints/a", model: str = "llama2-7b", keep: int = 2, **more: Any) -> Any:
    trainer = {"model": model, "global_batch_size": 8, "checkpoint": {"directory": directory, "keep": keep}}
    return {"nodes": 1, "grace_seconds": 3600, "trainer": trainer, **more}


def parse(storage: dict[str, Any], **more: Any) -> Settings:
    return Settings.parse({"gpu_nodes": [GROUP], "storage": storage, **more})


def refusal(storage: dict[str, Any], **more: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(storage, **more)
    return str(caught.value)


def test_checkpoints_that_do_not_fit_are_refused_with_what_would() -> None:
    fsx = {"mode": "fsx"}
    parse(fsx, jobs={"a": job(keep=13)})
    told = refusal(fsx, jobs={"a": job(model="llama2-70b")})
    assert told == (
        "jobs.a.trainer.checkpoint.keep: 2 checkpoints of llama2-70b, 771 GiB each, and the one that is being written "
        "take 2,313 GiB; storage.capacity_gib 1200 holds 1,080; accepted: storage.capacity_gib: 4800"
    )
    assert "accepted: keep 1 at most, or storage.capacity_gib: 4800" in refusal(
        {**fsx, "capacity_gib": 2400}, jobs={"a": job(model="llama2-70b")}
    )
    # Jobs that share a folder share what is in it; others add up.
    two = {"a": job(keep=8), "b": job(keep=8)}
    parse(fsx, jobs=two)
    told = refusal(fsx, jobs={**two, "b": job("/mnt/checkpoints/b", keep=8)})
    assert "and the other jobs 678 GiB" in told
    # Its size is not known, or has no limit.
    parse({**fsx, "file_system_id": "fs-01234567"}, jobs={"a": job(model="llama2-70b")})
    parse({"checkpoint_bucket": "ours"}, jobs={"a": job("s3://ours/training/a", model="llama2-70b")})


def test_checkpoints_go_to_storage_that_outlives_the_pod() -> None:
    for directory in ("/tmp/x", "/scratch/x", "/mnt/checkpoints", "/mnt/checkpoints/../x", "relative"):
        told = refusal({"mode": "fsx"}, jobs={"a": job(directory)})
        assert told.startswith(f"jobs.a.trainer.checkpoint.directory: {directory!r} is not on storage"), directory
        assert "accepted: a folder below /mnt/checkpoints" in told
    s3 = {"checkpoint_bucket": "ours"}
    assert "needs storage.checkpoint_bucket" in refusal({}, jobs={"a": job("s3://ours/training/a")})
    for directory in ("s3://other/training/a", "s3://ours/a", "s3://ours/training/"):
        assert "accepted: s3://ours/training/..." in refusal(s3, jobs={"a": job(directory)})
    teams = {"teams": {"red": {}}, "queue": {"mode": "existing"}}
    parse(s3, jobs={"a": job("s3://ours/red/a", team="red")}, **teams)
    assert "accepted: s3://ours/red/..." in refusal(s3, jobs={"a": job("s3://ours/training/a", team="red")}, **teams)


def test_mounts_lie_beside_each_other() -> None:
    def mounts(**paths: str) -> dict[str, Any]:
        return {"s3_mounts": {name: {"bucket": "corpus", "path": path} for name, path in paths.items()}}

    parse(mounts(models="/mnt/models", data="/mnt/data"))
    assert "storage.s3_mounts.b.path: '/m/x' and '/m' (storage.s3_mounts.a)" in refusal(mounts(a="/m", b="/m/x"))


@pytest.mark.parametrize(
    ("storage", "more", "told"),
    [
        ({"mode": "fsx"}, {"cluster": {"mode": "existing", "name": "c"}}, "or storage.file_system_id"),
        ({"retain": True}, {"ephemeral": True}, "storage.retain: true, and ephemeral is true"),
        (
            {"mode": "fsx", "file_system_id": "fs-01234567", "kms_key_arn": KEY},
            {},
            "storage.kms_key_arn: goes with a new",
        ),
        ({"checkpoint_kms_key_arn": KEY}, {}, "goes with checkpoint_bucket"),
        ({"mode": "fsx", "throughput": 300}, {}, "storage.throughput"),
        ({}, {"image": {"repository": "r", "codebuild": True}}, "image.codebuild: goes with the program's own"),
        ({}, {"cluster": {"mode": "existing", "name": "c"}, "image": {"codebuild": True}}, "image.codebuild: true"),
    ],
)
def test_what_does_not_go_together(storage: dict[str, Any], more: dict[str, Any], told: str) -> None:
    if more.get("ephemeral"):
        more = {**more, "guard": {"expiry": "2099-01-01T00:00:00Z"}}
    assert told in refusal(storage, **more)


def test_only_an_ephemeral_stack_keeps_nothing_by_default() -> None:
    storage = parse({"mode": "fsx"}).storage
    assert storage.retained(ephemeral=False)
    assert not storage.retained(ephemeral=True)
    assert not parse({"mode": "fsx", "retain": False}).storage.retained(ephemeral=False)


def test_a_stack_of_jobs_uses_storage_and_image_as_they_are() -> None:
    storage = {"mode": "fsx", "file_system_id": "fs-01234567", "data_repository": {"bucket": "corpus"}, "retain": True}
    image = {"codebuild": True, "digest": "sha256:" + "0" * 64}
    narrow = parse(storage, image=image).on_existing_cluster("/tmp/kubeconfig", {})
    assert (narrow.storage.mode, narrow.storage.file_system_id) == ("existing", None)
    assert (narrow.image.codebuild, narrow.image.digest) == (False, image["digest"])


# What is rendered


def test_volumes_of_buckets(golden: Callable[[str, str], None]) -> None:
    mounts = {
        "models": S3MountSettings(bucket="weights", path="/mnt/models"),
        "data": S3MountSettings(bucket="corpus", prefix="/clean/v2", path="/mnt/data", kms_key_arn=KEY),
    }
    volumes = [bucket_volume(f"training-s3-{name}", mount, "us-west-2") for name, mount in mounts.items()]
    policy = json.loads(read_policy(mounts.values(), "us-west-2"))
    golden("s3-mounts.yaml", yaml.safe_dump_all([*volumes, policy], sort_keys=True))


def test_a_bucket_is_only_read_and_only_what_is_mounted() -> None:
    text = read_policy([S3MountSettings(bucket="corpus", prefix="clean", path="/d")], "us-west-2")
    actions = {action for statement in json.loads(text)["Statement"] for action in statement["Action"]}
    assert actions == {"s3:ListBucket", "s3:GetObject"}
    listing, reading = json.loads(text)["Statement"]
    assert reading["Resource"] == "arn:aws:s3:::corpus/clean/*"
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["clean/", "clean/*"]}}


def test_a_job_writes_checkpoints_below_its_own_namespace() -> None:
    listing, objects, keys = json.loads(checkpoint_bucket_policy("ours", "red", KEY, "us-west-2"))["Statement"]
    assert listing["Condition"]["StringLike"]["s3:prefix"] == ["red/", "red/*"]
    assert objects["Resource"] == "arn:aws:s3:::ours/red/*"
    assert "s3:AbortMultipartUpload" in objects["Action"]
    assert (keys["Resource"], keys["Action"]) == (KEY, ["kms:Decrypt", "kms:GenerateDataKey"])
    assert "Condition" not in json.loads(checkpoint_bucket_policy("ours", "", None, "cn-north-1"))["Statement"][0]
    assert "arn:aws-cn:s3:::ours" in checkpoint_bucket_policy("ours", "", None, "cn-north-1")


def test_a_data_repository_imports_and_exports_only_when_asked() -> None:
    made = data_repository(DataRepositorySettings(bucket="corpus", prefix="/clean/"))
    assert (made["data_repository_path"], made["file_system_path"]) == ("s3://corpus/clean", "/data")
    assert set(made["s3"]) == {"auto_import_policy"}
    assert "auto_export_policy" in data_repository(DataRepositorySettings(bucket="corpus", export=True))["s3"]


# What is declared


def test_a_kept_file_system_depends_on_nothing_of_the_cluster(declare_program: Declare) -> None:
    declared = declare_program(platform(sandbox_settings(storage={"mode": "fsx", "kms_key_arn": KEY})))
    system = one(declared, "aws:fsx/lustreFileSystem:LustreFileSystem")
    assert system.protected
    assert system.inputs["kmsKeyId"] == KEY
    # What it depends on stays with it: a cluster that stays is paid for.
    by_urn = {resource.urn: resource for resource in declared}
    waits, todo = set(), [system.urn]
    while todo:
        urn = todo.pop()
        if urn in by_urn and urn not in waits:
            waits.add(urn)
            todo += by_urn[urn].depends_on
    kinds = {by_urn[urn].type for urn in waits}
    assert not [kind for kind in kinds if kind.startswith(("eks:", "aws:eks", "kubernetes:", "aws:ec2/natGateway"))]
    assert not one(declare_program(platform(sandbox_settings())), "aws:fsx/lustreFileSystem:LustreFileSystem").protected


def test_a_new_file_system_is_opened_to_a_trainer_that_is_not_root(declare_program: Declare) -> None:
    opened = one(declare_program(platform(sandbox_settings())), "kubernetes:batch/v1:Job")
    pod = opened.inputs["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"eksfsdp/role": "system"}
    assert pod["containers"][0]["command"] == ["chmod", "1777", "/mnt/checkpoints"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_servers_and_nodes_reach_each_other_on_lustres_ports_alone(declare_program: Declare) -> None:
    declared = declare_program(platform(sandbox_settings()))
    rules = [
        (r.type.rpartition("Group")[2][:2], r.inputs["securityGroupId"], r.inputs["referencedSecurityGroupId"])
        for kind in ("Ingress", "Egress")
        for r in of_type(declared, f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule")
        if r.inputs.get("fromPort") == 988 and r.inputs["toPort"] == 1023 and r.inputs["ipProtocol"] == "tcp"
    ]
    own, nodes = "p-storage-lustre-group-id", "sg-cluster"
    assert sorted(rules) == sorted(
        [("Eg", own, own), ("Eg", own, nodes), ("In", nodes, own), ("In", own, own), ("In", own, nodes)]
    )


def test_each_namespace_has_its_volume_and_claim(declare_program: Declare) -> None:
    settings = sandbox_settings(
        storage={"mode": "fsx", "s3_mounts": {"models": {"bucket": "weights", "path": "/mnt/models"}}},
        teams={"red": {}},
        queue={"mode": "existing"},
    )
    declared = declare_program(platform(settings))
    claims = {
        (r.inputs["metadata"]["namespace"], r.inputs["metadata"]["name"]): r.inputs["spec"]
        for r in of_type(declared, "kubernetes:core/v1:PersistentVolumeClaim")
    }
    assert set(claims) == {(n, c) for n in ("training", "red") for c in ("checkpoints", "s3-models")}
    assert claims["red", "s3-models"]["accessModes"] == ["ReadOnlyMany"]
    volumes = {
        r.inputs["metadata"]["name"]: r.inputs["spec"] for r in of_type(declared, "kubernetes:core/v1:PersistentVolume")
    }
    assert {spec["volumeName"] for spec in claims.values()} == set(volumes)
    assert "read-only" in volumes["red-s3-models"]["mountOptions"]
    # The first namespace's resources keep the names that they had when there was but one.
    assert one(declared, "kubernetes:core/v1:PersistentVolumeClaim", "p-storage-claim-red")
    driver = one(declared, "aws:eks/addon:Addon", "buckets-csi")
    association = one(declared, "aws:eks/podIdentityAssociation:PodIdentityAssociation", "buckets")
    assert association.urn in driver.depends_on
    assert association.inputs["serviceAccount"] == s3_mounts.SERVICE_ACCOUNT
    assert json.loads(driver.inputs["configurationValues"]) == {"node": {"tolerateAllTaints": True}}


def test_a_file_system_of_ones_own_on_a_cluster_of_ones_own(declare_program: Declare) -> None:
    settings = Settings.parse(
        {
            "cluster": {"mode": "existing", "kubeconfig": "/tmp/kubeconfig"},
            "storage": {"mode": "fsx", "file_system_id": "fs-01234567"},
            "training_operator": {"mode": "none"},
            "queue": {"mode": "none"},
        }
    )
    declared = declare_program(platform(settings))
    assert [r.name for r in of_type(declared, "pulumi:providers:aws")] == ["p-aws"]
    volume = one(declared, "kubernetes:core/v1:PersistentVolume")
    assert volume.inputs["spec"]["csi"]["volumeHandle"] == "fs-01234567"
    assert not [r.name for r in declared if r.type.startswith(("aws:ec2", "aws:eks", "aws:vpc", "kubernetes:batch"))]


def test_the_driver_may_be_given_from_outside(declare_program: Declare) -> None:
    def program() -> None:
        driver = pulumi.ComponentResource("test:driver:Driver", "driver")
        common: dict[str, Any] = {"claim": "c", "namespaces": [], "tags": {}, "vpc_id": "v", "subnet_id": "s"}
        Storage("a", StorageArgs(**common, node_security_group_id="sg", driver=driver, cluster_name="c"))

    assert of_type(declare_program(program), "aws:eks/addon:Addon") == []


def test_a_new_file_system_needs_its_place(declare_program: Declare) -> None:
    with pytest.raises(ValueError, match="a: a new file system needs vpc_id, subnet_id and node_security_group_id"):
        declare_program(lambda: Storage("a", StorageArgs(claim="c", namespaces=[], tags={})))


# Buckets in the sandbox


class FakeS3:
    """Objects by key; as far as the mirror asks."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.read: list[str] = []

    def get_paginator(self, name: str) -> FakeS3:
        return self

    def paginate(self, Bucket: str) -> list[dict[str, Any]]:
        if Bucket != "corpus":
            raise ValueError("The specified bucket does not exist")
        return [{"Contents": [{"Key": key, "ETag": str(hash(data))} for key, data in self.objects.items()]}]

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        import io

        self.read.append(Key)
        return {"Body": io.BytesIO(self.objects[Key])}


def test_a_bucket_becomes_a_folder_and_follows_its_objects(tmp_path: Path) -> None:
    s3 = FakeS3({"a/b.txt": b"1", "c": b"2", "../out": b"x"})
    mirror = BucketMirror(tmp_path / "buckets", lambda: s3)

    async def ask(bucket: str) -> Path:
        asked = asyncio.create_task(bucket_folder(tmp_path / "buckets", bucket, 5))
        while not asked.done():
            await asyncio.sleep(0.01)
            mirror.answer()
        return await asked

    folder = asyncio.run(ask("corpus"))
    assert ((folder / "a" / "b.txt").read_bytes(), (folder / "c").read_bytes()) == (b"1", b"2")
    assert not (tmp_path / "buckets" / "out").exists()
    s3.objects = {"a/b.txt": b"1", "d": b"3"}
    s3.read.clear()
    asyncio.run(ask("corpus"))
    assert s3.read == ["d"], "what has not changed is not read again"
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["b.txt", "d"]
    with pytest.raises(BucketError, match="bucket 'none': The specified bucket does not exist"):
        asyncio.run(ask("none"))


def test_an_account_that_does_not_answer_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(BucketError, match="gave no answer within 0 s"):
        asyncio.run(bucket_folder(tmp_path, "corpus", 0))
