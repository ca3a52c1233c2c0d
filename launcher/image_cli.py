"""``eks-fsdp image ...``: commands about the trainer's image."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from eks_fsdp.spec.versions import TRAINER_BASE_IMAGE

from .options import StackOption

app = typer.Typer(rich_markup_mode=None)


class Way(StrEnum):
    """Where an image is built."""

    docker = "docker"
    codebuild = "codebuild"


BaseOption = Annotated[
    str,
    typer.Option(metavar="IMAGE", help="Base image; REPOSITORY@sha256:... fixes it.", show_default="the pinned one"),
]


@app.command()
def build(
    stack: StackOption = None,
    with_: Annotated[Way, typer.Option("--with", help="docker: on this machine; codebuild: in AWS.")] = Way.docker,
    base: BaseOption = TRAINER_BASE_IMAGE,
) -> None:
    """Build the trainer's image from this checkout and push it to the stack's registry; prints its digest.

    Example: eks-fsdp image build -s p5-16 --with codebuild
    """
    from .cli import _stack
    from .image_build import BuildRequest
    from .image_build import build as build_image

    build_image(BuildRequest(stack=_stack(stack), way=with_.value, base=base))


@app.command()
def show(stack: StackOption = None, base: BaseOption = TRAINER_BASE_IMAGE) -> None:
    """Show whether the registry has the image that the stack names, and the one that this checkout makes.

    Example: eks-fsdp image show -s p5-16
    """
    from .cli import _stack
    from .image_build import show as show_image

    if not show_image(_stack(stack), base):
        raise typer.Exit(1)
