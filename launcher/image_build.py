"""``eks-fsdp image``: the trainer's image of a stack, built and pushed once for each content."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eks_fsdp.spec.names import PROGRAM_NAME
from eks_fsdp.spec.versions import TRAINER_BASE_IMAGE

from . import image_context
from .errors import UserError
from .image import Address, Presence, present
from .image_codebuild import POLL_SECONDS, build_in_aws
from .image_docker import build_and_push, check_docker, sign_in
from .live import console, live_line
from .stack import Engine, Platform, find_checkout, open_platform, stack_file


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What the user asked for."""

    stack: str
    way: str = "docker"
    """``docker`` or ``codebuild``."""
    base: str = TRAINER_BASE_IMAGE
    """Base image."""
    poll_seconds: float = POLL_SECONDS


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a stack's image goes, and what it is made of now."""

    platform: Platform
    repository: str
    """Address without a tag."""
    base: str

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The image's files."""
        return image_context.context_files(self.platform.checkout)

    @property
    def image(self) -> str:
        """Address and tag of the image of the files."""
        return f"{self.repository}:{image_context.content_tag(self.files, self.base)}"

    @cached_property
    def session(self) -> Any:
        """A boto3 session in the stack's region, in an account that the stack may touch. Raises `UserError`."""
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        settings = self.platform.settings
        session = boto3.Session(region_name=settings.region)
        try:
            account = session.client("sts").get_caller_identity()["Account"]
        except (BotoCoreError, ClientError) as error:
            raise UserError(f"AWS: {error}; sign in, for instance with `aws sso login`") from None
        own = self.repository.partition(".")[0]
        for accepted, why in ((settings.allowed_account_ids, "allowed_account_ids"), ([own], "the stack's repository")):
            if accepted and account not in accepted:
                raise UserError(f"AWS: signed in to account {account}, and {why} names {', '.join(accepted)}")
        return session


def open_target(stack: str, base: str) -> Target:
    """The target of a stack. Raises `UserError` where the stack has no repository of its own."""
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-image-") as folder:
        platform = open_platform(stack, Engine(find_checkout(), Path(folder)))
    if platform.settings.image.repository:
        raise UserError(
            f"image.repository: {platform.settings.image.repository!r} is your own, which you build and push yourself; "
            "leave it out for a repository that the stack makes"
        )
    repository = platform.outputs.get("image_repository")
    if repository is None:
        raise UserError(
            f"stack {stack!r} has no repository for the image: run `pulumi up -s {stack}` first (with "
            "gpu_nodes[].desired 0 and no jobs it starts no GPU node)"
        )
    return Target(platform=platform, repository=str(repository), base=base)


def build(request: BuildRequest) -> str:
    """Build and push, unless the registry has the content already. Returns the digest. Raises `UserError`."""
    target = open_target(request.stack, request.base)
    session, image = target.session, target.image
    if digest := present(session, image).digest:
        console.print(f"{image} is in the registry already: nothing to build", soft_wrap=True)
    else:
        _build(request, target)
        found = present(session, image)
        digest = found.digest
        if not digest:
            raise UserError(f"the image was built and pushed, and cannot be found: {found.message}")
        console.print(f"built and pushed {image}", soft_wrap=True)
    _tell(target, digest)
    return digest


def _build(request: BuildRequest, target: Target) -> None:
    log = target.platform.checkout / ".out" / f"{request.stack}-image" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if request.way == "codebuild":
        project = target.platform.outputs.get("image_build")
        if project is None:
            raise UserError(
                f"image.codebuild: false in stack {request.stack!r}; set it to true and run `pulumi up`, or --with docker"
            )
        with live_line(f"CodeBuild project {project['project']}") as line:
            build_in_aws(
                target.session.client,
                project["project"],
                project["bucket"],
                image_context.archive(target.files),
                target.image,
                target.base,
                log,
                line,
                request.poll_seconds,
            )
        return
    check_docker()
    sign_in(target.session.client("ecr"), target.repository.partition("/")[0])
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-image-") as folder, live_line("docker build and push") as line:
        image_context.stage(target.files, Path(folder))
        build_and_push(Path(folder), target.image, target.base, log, line)


def settings_line(content: Mapping[str, Any], digest: str) -> str:
    """The line of a stack file that sets the image's digest, with what the file says of the image already."""
    import yaml

    key = f"{PROGRAM_NAME}:image"
    image = {**((content.get("config") or {}).get(key) or {}), "digest": digest}
    return f"  {key}: {yaml.safe_dump(image, default_flow_style=True, sort_keys=False, width=1000).strip()}"


def _tell(target: Target, digest: str) -> None:
    stack = target.platform.stack
    console.print(f"digest {digest}", soft_wrap=True)
    if target.platform.settings.image.digest == digest:
        console.print("the stack's settings name it already")
        return
    file = stack_file(target.platform.checkout, stack)
    console.print(f"put this into {file}, below config:", soft_wrap=True)
    console.print(settings_line(target.platform.content, digest), soft_wrap=True)
    console.print("jobs with the program's image are new jobs then")


def show(stack: str, base: str = TRAINER_BASE_IMAGE) -> bool:
    """Print what the stack runs and what the checkout would make of it; whether both are in the registry."""
    target = open_target(stack, base)
    settings = target.platform.settings.image
    runs = f"{target.repository}{settings.version}"
    states = {"settings": (runs, present(target.session, runs)), "checkout": _of_checkout(target)}
    for name, (uri, state) in states.items():
        console.print(f"{name:9} {Address.parse(uri).version}  {_state(state)}", soft_wrap=True)
    return all(state.found for _, state in states.values())


def _of_checkout(target: Target) -> tuple[str, Presence]:
    return target.image, present(target.session, target.image)


def _state(state: Presence) -> str:
    if state.found:
        return f"there, {state.digest}"
    return f"{state.message}: {state.remedy}" if state.remedy else state.message
