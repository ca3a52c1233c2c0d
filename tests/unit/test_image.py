"""The trainer's image: its content and tag, its presence in the registry, and both ways of building it.

The account is the stand-in; Docker is a program of the tests that writes down what it was called with.
"""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.components.image import encryption, unchosen_image
from eks_fsdp.components.image_build import build_policy, build_spec
from eks_fsdp.launcher import image_build, image_codebuild, image_context
from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.image import Address, present
from eks_fsdp.launcher.image_build import BuildRequest
from eks_fsdp.launcher.stack import Platform
from eks_fsdp.sandbox.account import Account
from eks_fsdp.sandbox.account_codebuild import MANIFEST, manifest
from eks_fsdp.sandbox.layout import ACCESS_KEY, SECRET_KEY
from eks_fsdp.spec.settings import Settings
from eks_fsdp.spec.versions import TRAINER_BASE_IMAGE

from .machine_room_double import FakeMachineRoom

ROOT = Path(__file__).parents[2]
FILES = {"a.py": b"1", "b/c.py": b"2"}
REPOSITORY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/big/eks-fsdp/trainer"

# Content and tag


def test_the_context_is_the_trainer_and_nothing_else() -> None:
    files = image_context.context_files(ROOT)
    assert {"pyproject.toml", "trainer/Dockerfile", "trainer/train.py", "spec/models.py"} <= set(files)
    assert {name.split("/")[0] for name in files} == {"pyproject.toml", "requirements", "spec", "src", "trainer"}
    assert not [name for name in files if "__pycache__" in name or name.endswith(".pyc")]


def test_dockers_own_list_of_files_is_the_same() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["*", *(f"!{pattern}" for pattern in image_context.CONTENT), "**/.*"]


def test_what_is_left_beside_the_code_never_reaches_a_builder(tmp_path: Path) -> None:
    for pattern in image_context.CONTENT:
        path = tmp_path / pattern.replace("**/*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    before = image_context.context_files(tmp_path)
    for name in (
        "trainer/token.txt",
        "trainer/.env.py",
        "spec/__pycache__/x.pyc",
        "spec/.git/x.py",
        ".aws/credentials",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    assert image_context.context_files(tmp_path) == before
    (tmp_path / "pyproject.toml").unlink()
    with pytest.raises(UserError, match=r"pyproject\.toml: does not exist; an image is built from a checkout"):
        image_context.context_files(tmp_path)


def test_the_tag_is_the_contents_and_changes_with_each_part() -> None:
    tag = image_context.content_tag(FILES, "base")
    assert re.fullmatch(r"src-[0-9a-f]{16}", tag)
    assert image_context.content_tag(dict(reversed(FILES.items())), "base") == tag
    others = [({**FILES, "a.py": b"3"}, "base"), ({"ab": b"12"}, "base"), (FILES, "base2"), ({}, "base")]
    assert len({tag, *(image_context.content_tag(files, base) for files, base in others)}) == 5
    # A file's end is not the next one's beginning.
    assert image_context.content_tag({"a": b"b"}, "") != image_context.content_tag({"ab": b""}, "")


def test_the_archive_is_equal_for_equal_files(tmp_path: Path) -> None:
    made = image_context.archive(FILES)
    assert made == image_context.archive(dict(reversed(FILES.items())))
    assert zipfile.ZipFile(io.BytesIO(made)).read("b/c.py") == b"2"
    image_context.stage(FILES, tmp_path)
    assert (tmp_path / "b" / "c.py").read_bytes() == b"2"


def test_the_dockerfile_starts_from_the_pinned_base_and_ends_as_nobody() -> None:
    lines = (ROOT / "trainer/Dockerfile").read_text().splitlines()
    assert f"ARG BASE={TRAINER_BASE_IMAGE}" in lines
    assert "USER 10001:10001" in lines
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    patterns = {pattern.split("/**")[0] for pattern in image_context.CONTENT} - {"trainer/Dockerfile"}
    assert copied == patterns, "all that is sent is used, and all that is used is sent"


def test_what_the_dockerfile_copies_makes_the_wheel_of_trainer_and_spec(tmp_path: Path) -> None:
    image_context.stage(image_context.context_files(ROOT), tmp_path / "context")
    build = tmp_path / "build"
    for line in (ROOT / "trainer/Dockerfile").read_text().split("FROM ${BASE}\n")[0].splitlines():
        if line.startswith("COPY"):
            *sources, target = line.split()[1:]
            for source in sources:
                into = build / target / ("" if target.endswith("/") else ".")
                into.mkdir(parents=True, exist_ok=True)
                at = tmp_path / "context" / source
                subprocess.run(["cp", "-r", *([f"{at}/."] if at.is_dir() else [at]), into], check=True)
    (build / "README.md").touch()
    (build / "LICENSE").touch()
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(build)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    rooms = {name.split("/")[1] for name in names if name.startswith("eks_fsdp/") and name.count("/") > 1}
    assert rooms == {"spec", "trainer"}
    assert "eks_fsdp/trainer/rendezvous/handler.py" in names


# Addresses


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("r.example/a/b:1.0", ("r.example/a/b", "1.0", "")),
        ("r.example:5000/a", ("r.example:5000/a", "", "")),
        ("r.example:5000/a:t@sha256:0a", ("r.example:5000/a", "t", "sha256:0a")),
        (f"{REPOSITORY}@sha256:0a", (REPOSITORY, "", "sha256:0a")),
    ],
)
def test_an_address_is_read_in_parts(uri: str, parts: tuple[str, str, str]) -> None:
    address = Address.parse(uri)
    assert (address.repository, address.tag, address.digest) == parts


# The registry and both ways


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    made = Account(FakeMachineRoom(), cluster_port=6443)
    made.start()
    iam: Any = made.client("iam")
    iam.create_role(RoleName="builds", AssumeRolePolicyDocument="{}")
    codebuild: Any = made.client("codebuild")
    codebuild.create_project(
        name="project",
        source={"type": "S3", "location": "sources/none.zip"},
        artifacts={"type": "NO_ARTIFACTS"},
        environment={"type": "LINUX_CONTAINER", "image": "i", "computeType": "BUILD_GENERAL1_LARGE"},
        serviceRole="arn:aws:iam::123456789012:role/builds",
    )
    s3: Any = made.client("s3")
    s3.create_bucket(Bucket="sources", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield made
    made.stop()


DOCKER = """#!/bin/sh
echo "$@" >> "$RECORD"
case "$1" in
version) [ -z "$DOWN" ] || { echo 'Cannot connect to the Docker daemon' >&2; exit 1; };;
login) cat >> "$RECORD.password";;
build) find "$(for a; do :; done; echo "$a")" -type f | wc -l >> "$RECORD.files"; echo '#1 building'
    [ -z "$BROKEN" ] || { echo 'ERROR: no space left on device'; exit 1; };;
push) [ -z "$DENIED" ] || { echo 'denied: not authorized to perform ecr:PutImage'; exit 1; }; "$PUSHED" "$2";;
esac
"""


class Bench:
    """A stack with a repository in the stand-in account, and a Docker that is none."""

    def __init__(self, folder: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account = account
        self.monkeypatch = monkeypatch
        self.record = folder / "docker.txt"
        self.ecr: Any = account.client("ecr")
        self.checkout = folder / "checkout"
        self.outputs: dict[str, Any] = {"image_repository": REPOSITORY}
        self.settings = Settings()
        self.folder = folder
        (self.checkout / "stacks").mkdir(parents=True)
        (self.checkout / "Pulumi.yaml").write_text("name: eks-fsdp\nstackConfigDir: stacks\n")
        (self.checkout / "stacks" / "Pulumi.big.yaml").write_text("config: {}\n")
        for name, content in image_context.context_files(ROOT).items():
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkout / name).write_bytes(content)
        bin_ = folder / "bin"
        bin_.mkdir()
        self._program(bin_ / "docker", DOCKER)
        push = "import os,sys,boto3\nfrom eks_fsdp.sandbox.account_codebuild import *\n" + (
            "name,tag=sys.argv[1].split('/',1)[1].rsplit(':',1)\n"
            "boto3.client('ecr').put_image(repositoryName=name,imageTag=tag,"
            "imageManifest=manifest(tag),imageManifestMediaType=MANIFEST,imageDigest=manifest_digest(manifest(tag)))\n"
        )
        self._program(folder / "push", f"#!{sys.executable}\n{push}")
        variables = {
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "RECORD": str(self.record),
            "PUSHED": str(folder / "push"),
            "AWS_ENDPOINT_URL": account.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-west-2",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(image_build, "find_checkout", lambda: self.checkout)
        monkeypatch.setattr(image_build, "open_platform", lambda stack, engine: self.platform(stack))
        self.ecr.create_repository(repositoryName="big/eks-fsdp/trainer", imageTagMutability="IMMUTABLE")

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def platform(self, stack: str) -> Platform:
        return Platform(stack, self.checkout, {}, self.settings, self.outputs)

    def build(self, **more: Any) -> str:
        return image_build.build(BuildRequest(stack="big", poll_seconds=0, **more))

    def refused(self, **more: Any) -> str:
        with pytest.raises(UserError) as caught:
            self.build(**more)
        return str(caught.value)

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def images(self) -> list[dict[str, Any]]:
        return list(self.ecr.describe_images(repositoryName="big/eks-fsdp/trainer")["imageDetails"])


@pytest.fixture
def bench(tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, account, monkeypatch)
    yield made
    made.ecr.delete_repository(repositoryName="big/eks-fsdp/trainer", force=True)


def test_docker_signs_in_builds_and_pushes_once_for_each_content(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = bench.build()
    (image,) = bench.images()
    (tag,) = image["imageTags"]
    assert image["imageDigest"] == digest
    version, login, build, push = bench.calls
    assert version.startswith("version")
    assert login == "login --username AWS --password-stdin 123456789012.dkr.ecr.us-west-2.amazonaws.com"
    # The password went through the pipe, and nowhere else.
    password = (bench.record.parent / "docker.txt.password").read_text()
    assert password
    assert password not in bench.record.read_text()
    assert "--platform linux/amd64" in build
    assert f"--build-arg BASE={TRAINER_BASE_IMAGE} --tag {REPOSITORY}:{tag} " in build
    files = len(image_context.context_files(bench.checkout))
    assert int((bench.record.parent / "docker.txt.files").read_text()) == files
    assert push == f"push {REPOSITORY}:{tag}"
    told = capsys.readouterr().out
    assert f"  eks-fsdp:image: {{digest: '{digest}'}}" in told
    assert "stacks/Pulumi.big.yaml" in told.replace("\n", "")

    # The same content is not built again; another is another tag.
    assert bench.build() == digest
    assert len(bench.calls) == 4
    assert "is in the registry already: nothing to build" in capsys.readouterr().out.replace("\n", " ")
    (bench.checkout / "trainer" / "train.py").write_text("changed = 1\n")
    assert bench.build() != digest
    assert len(bench.images()) == 2


def test_docker_that_is_missing_down_broken_or_denied_is_one_line(bench: Bench) -> None:
    for name, said in (
        ("DENIED", r"docker push of .* was denied: denied: .*your credentials need ecr:PutImage"),
        ("BROKEN", r"docker build failed: ERROR: no space left on device; all of it is in .*build\.log"),
        ("DOWN", r"docker: the daemon does not answer: Cannot connect to the Docker daemon; start Docker, or"),
    ):
        bench.monkeypatch.setenv(name, "1")
        assert re.search(said, bench.refused())
        bench.monkeypatch.delenv(name)
    bench.monkeypatch.setenv("PATH", str(bench.folder))
    assert bench.refused().startswith("docker: not on PATH; install Docker, or image.codebuild: true")
    assert bench.images() == []


def test_codebuild_uploads_builds_and_follows_the_log(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert "image.codebuild: false in stack 'big'; set it to true" in bench.refused(way="codebuild")
    bench.outputs["image_build"] = {"project": "project", "bucket": "sources"}
    digest = bench.build(way="codebuild")
    (image,) = bench.images()
    assert image["imageDigest"] == digest
    s3: Any = bench.account.client("s3")
    body = s3.get_object(Bucket="sources", Key=f"{image['imageTags'][0]}.zip")["Body"].read()
    assert "trainer/Dockerfile" in zipfile.ZipFile(io.BytesIO(body)).namelist()
    log = (bench.checkout / ".out" / "big-image" / "build.log").read_text()
    assert f"digest: {digest}" in log
    assert bench.calls == []


def test_a_build_that_fails_says_where_and_why(bench: Bench) -> None:
    bench.outputs |= {"image_build": {"project": "project", "bucket": "sources"}}
    target = image_build.open_target("big", TRAINER_BASE_IMAGE)
    (bench.folder / "log").touch()
    with pytest.raises(UserError, match=r"ended FAILED in phase POST_BUILD: docker push: denied"):
        image_codebuild.build_in_aws(
            target.session.client, "project", "sources", b"zip", "r/none:1", "base", bench.folder / "log", print, 0
        )
    with pytest.raises(UserError, match=r"StartBuild: ResourceNotFoundException: Project cannot be found"):
        image_codebuild.build_in_aws(
            target.session.client, "gone", "sources", b"zip", "r/none:1", "base", bench.folder / "log", print, 0
        )


def test_an_interrupt_stops_the_build(bench: Bench) -> None:
    target = image_build.open_target("big", TRAINER_BASE_IMAGE)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_codebuild.build_in_aws(
            target.session.client,
            "project",
            "sources",
            b"zip",
            f"{REPOSITORY}:src-0",
            "base",
            bench.folder / "log",
            interrupt,
            0,
        )
    codebuild: Any = bench.account.client("codebuild")
    newest = codebuild.list_builds_for_project(projectName="project")["ids"][-1]
    from moto.codebuild.models import codebuild_backends

    history = codebuild_backends["123456789012"]["us-west-2"].build_metadata_history["project"]
    assert next(build for build in history if build["id"] == newest)["buildStatus"] == "STOPPED"


def test_a_stack_without_a_repository_of_its_own_is_told_so(bench: Bench) -> None:
    bench.outputs.clear()
    assert "stack 'big' has no repository for the image: run `pulumi up -s big` first" in bench.refused()
    bench.settings = Settings.parse({"image": {"repository": "r.example/mine"}})
    assert "image.repository: 'r.example/mine' is your own" in bench.refused()
    bench.settings, bench.outputs = (
        Settings.parse({"allowed_account_ids": ["210987654321"]}),
        {"image_repository": REPOSITORY},
    )
    assert "signed in to account 123456789012, and allowed_account_ids names 210987654321" in bench.refused()


def test_presence_is_told_with_what_to_do(bench: Bench) -> None:
    import boto3

    session = boto3.Session(region_name="us-west-2")
    missing = present(session, f"{REPOSITORY}:0.1.0")
    assert missing.found is False
    assert missing.remedy.startswith("eks-fsdp image build")
    bench.ecr.put_image(
        repositoryName="big/eks-fsdp/trainer",
        imageTag="0.1.0",
        imageManifest=manifest("x"),
        imageManifestMediaType=MANIFEST,
    )
    there = present(session, f"{REPOSITORY}:0.1.0")
    assert there.found
    assert present(session, f"{REPOSITORY}@{there.digest}").found
    gone = present(session, "123456789012.dkr.ecr.us-west-2.amazonaws.com/none:1")
    assert (gone.found, gone.remedy) == (False, "pulumi up makes it")
    assert present(session, "registry.example/trainer:1").found is None


def test_both_images_are_shown(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert image_build.show("big") is False
    assert "settings  :0.1.0" in capsys.readouterr().out
    digest = bench.build()
    bench.settings = Settings.parse({"image": {"digest": digest}})
    assert image_build.show("big") is True


def test_the_line_to_paste_keeps_what_the_file_says_already() -> None:
    content = {"config": {"eks-fsdp:image": {"codebuild": True, "digest": "sha256:1"}}}
    assert image_build.settings_line(content, "sha256:2") == "  eks-fsdp:image: {codebuild: true, digest: 'sha256:2'}"
    assert image_build.settings_line({}, "sha256:2") == "  eks-fsdp:image: {digest: 'sha256:2'}"


# What is declared


def test_a_build_may_write_its_log_read_its_source_and_push_to_one_repository() -> None:
    policy = build_policy("arn:aws:ecr:r", "arn:aws:logs:g", "arn:aws:s3:::b")
    assert '"Resource": "arn:aws:logs:g:*"' in policy
    assert '"Action": ["s3:GetObject"], "Effect": "Allow", "Resource": "arn:aws:s3:::b/*"' in policy
    assert policy.count('"Resource": "*"') == 1
    assert "DeleteRepository" not in policy


def test_the_buildspec_never_shows_the_password_and_does_not_push_after_a_failure() -> None:
    text = build_spec()
    assert "--password-stdin" in text
    assert 'test \\"$CODEBUILD_BUILD_SUCCEEDING\\" = 1' in text


def test_a_repository_is_encrypted_with_the_users_key_or_ecrs() -> None:
    key = "arn:aws:kms:us-west-2:123456789012:key/1"
    assert encryption(None) == {"encryption_type": "AES256"}
    assert encryption(key) == {"encryption_type": "KMS", "kms_key": key}


def test_nodes_that_would_wait_for_an_image_are_told_of_at_preview() -> None:
    group = {"name": "g", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "max": 4}
    job = {"nodes": 1, "transport": "efa", "trainer": {"global_batch_size": 8}}
    waiting = {"gpu_nodes": [{**group, "desired": 2}], "jobs": {"llama": job}}
    told = unchosen_image(Settings.parse(waiting))
    assert told is not None
    assert told.startswith("image.digest: not set, with 2 GPU nodes and job 'llama'")
    for chosen in ({"tag": "mine"}, {"digest": "sha256:" + "0" * 64}, {"repository": "r.example/t"}):
        assert unchosen_image(Settings.parse({**waiting, "image": chosen})) is None
    assert unchosen_image(Settings.parse({"gpu_nodes": [{**group, "desired": 0}]})) is None
