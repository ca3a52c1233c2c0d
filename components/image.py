"""The registry of the trainer's image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.settings import Settings

UNTAGGED_DAYS = 14
"""Days after which layers that no tag names are removed."""


def lifecycle_policy() -> str:
    """JSON of the rule that removes what no tag names any more. Tagged images stay: a run's record names them."""
    rule = {
        "rulePriority": 1,
        "description": "Remove untagged images",
        "selection": {
            "tagStatus": "untagged",
            "countType": "sinceImagePushed",
            "countUnit": "days",
            "countNumber": UNTAGGED_DAYS,
        },
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]})


def encryption(kms_key_arn: str | None) -> aws.ecr.RepositoryEncryptionConfigurationArgsDict:
    """How a repository's images are encrypted, in the SDK's spelling. It cannot be changed later: another is a new one."""
    return {"encryption_type": "KMS", "kms_key": kms_key_arn} if kms_key_arn else {"encryption_type": "AES256"}


def unchosen_image(settings: Settings) -> str | None:
    """What to tell at preview of nodes or jobs that would wait for an image that nobody may have built yet, or None.

    A warning and no refusal: only the registry knows what is in it, and ``eks-fsdp preflight`` asks it.
    """
    nodes = sum(group.desired for group in settings.gpu_nodes)
    image = settings.image
    uses = [name for name, job in settings.jobs.items() if job.image is None]
    if settings.cluster.mode == "existing" or image.chosen or not (nodes or uses):
        return None
    waits = " and ".join([*([f"{nodes} GPU nodes"] if nodes else []), *(f"job {name!r}" for name in uses)])
    return (
        f"image.digest: not set, with {waits}: they would wait, and be paid for, until the image is in the repository that "
        f"this stack makes. Go up once with desired 0 and no jobs, run `eks-fsdp image build`, and set the image.digest "
        f"that it prints. `eks-fsdp preflight` tells whether the image is there"
    )


@dataclass(frozen=True, kw_only=True)
class ImageRepositoryArgs:
    """Inputs of `ImageRepository`."""

    repository: str
    """Name of the repository in the account's registry."""
    kms_key_arn: str | None = None
    """Key that encrypts the images; None: ECR's own (AES-256)."""
    tags: Mapping[str, str]
    """Tags of every resource."""


class ImageRepository(pulumi.ComponentResource):
    """An ECR repository in which a tag, once pushed, always means the same image."""

    url: pulumi.Output[str]
    """Address of the repository, without a tag."""
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: ImageRepositoryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:image:ImageRepository", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        repository = aws.ecr.Repository(
            f"{name}-repository",
            name=args.repository,
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[encryption(args.kms_key_arn)],
            # The images can be built again from the source; a repository that cannot be deleted blocks every teardown.
            force_delete=True,
            tags=args.tags,
            opts=child,
        )
        aws.ecr.LifecyclePolicy(f"{name}-lifecycle", repository=repository.name, policy=lifecycle_policy(), opts=child)
        self.url = repository.repository_url
        self.arn = repository.arn
        self.register_outputs({"url": self.url})
