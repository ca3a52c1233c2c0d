"""The registry of the trainer's image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

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


@dataclass(frozen=True, kw_only=True)
class ImageRepositoryArgs:
    """Inputs of `ImageRepository`."""

    repository: str
    """Name of the repository in the account's registry."""
    tags: Mapping[str, str]
    """Tags of every resource."""


class ImageRepository(pulumi.ComponentResource):
    """An ECR repository in which a tag, once pushed, always means the same image."""

    url: pulumi.Output[str]
    """Address of the repository, without a tag."""

    def __init__(self, name: str, args: ImageRepositoryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:image:ImageRepository", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        repository = aws.ecr.Repository(
            f"{name}-repository",
            name=args.repository,
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "AES256"}],
            # The images can be built again from the source; a repository that cannot be deleted blocks every teardown.
            force_delete=True,
            tags=args.tags,
            opts=child,
        )
        aws.ecr.LifecyclePolicy(f"{name}-lifecycle", repository=repository.name, policy=lifecycle_policy(), opts=child)
        self.url = repository.repository_url
        self.register_outputs({"url": self.url})
