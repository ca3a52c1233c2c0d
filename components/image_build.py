"""A CodeBuild project that builds the trainer's image in AWS, for machines without Docker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.names import IMAGE_BASE_VARIABLE, IMAGE_BUILD_VARIABLE, IMAGE_DOCKERFILE
from eks_fsdp.spec.versions import CODEBUILD_IMAGE

SOURCE_DAYS = 7
"""Days after which uploaded sources are removed."""
LOG_DAYS = 30
"""Days for which builds' logs are kept."""
BUILD_MINUTES = 90
"""Limit of one build: the base image alone is over 10 GB."""


def build_spec() -> str:
    """JSON of the buildspec: sign in to ECR, build the uploaded folder, push. The image's address comes with the build."""
    image = f'"${IMAGE_BUILD_VARIABLE}"'
    base = f'{IMAGE_BASE_VARIABLE}="${IMAGE_BASE_VARIABLE}"'
    commands = {
        "pre_build": [
            f'registry="${{{IMAGE_BUILD_VARIABLE}%%/*}}"',
            'aws ecr get-login-password | docker login --username AWS --password-stdin "$registry"',
        ],
        "build": [f"docker build --file {IMAGE_DOCKERFILE} --build-arg {base} --tag {image} ."],
        # CodeBuild runs this phase after a failed build too.
        "post_build": ['test "$CODEBUILD_BUILD_SUCCEEDING" = 1', f"docker push {image}"],
    }
    phases = {name: {"commands": lines} for name, lines in commands.items()}
    env = {"shell": "bash", "variables": {"DOCKER_BUILDKIT": "1"}}
    return json.dumps({"version": 0.2, "env": env, "phases": phases}, sort_keys=True)


def build_policy(repository_arn: str, log_group_arn: str, bucket_arn: str) -> str:
    """JSON of what a build may do: write its log, read its source, push to the one repository."""
    push = [
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:CompleteLayerUpload",
        "ecr:GetDownloadUrlForLayer",
        "ecr:InitiateLayerUpload",
        "ecr:PutImage",
        "ecr:UploadLayerPart",
    ]
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents"], "Resource": f"{log_group_arn}:*"},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{bucket_arn}/*"},
        {"Effect": "Allow", "Action": push, "Resource": repository_arn},
        # It knows no resources.
        {"Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": "*"},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def build_trust_policy() -> str:
    """JSON of the policy that lets CodeBuild take on a role."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "codebuild.amazonaws.com"}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass(frozen=True, kw_only=True)
class ImageBuildArgs:
    """Inputs of `ImageBuild`."""

    repository_arn: pulumi.Input[str]
    """The ECR repository that builds push to."""
    tags: Mapping[str, str]
    """Tags of every resource."""


class ImageBuild(pulumi.ComponentResource):
    """A bucket for sources, and a project that builds what lies there and may push to one repository alone."""

    project: pulumi.Output[str]
    """Name of the CodeBuild project."""
    bucket: pulumi.Output[str]
    """Name of the bucket that sources are uploaded to."""

    def __init__(self, name: str, args: ImageBuildArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:image:ImageBuild", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        bucket = aws.s3.Bucket(f"{name}-source", force_destroy=True, tags=args.tags, opts=child)
        aws.s3.BucketPublicAccessBlock(
            f"{name}-source-private",
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child,
        )
        aws.s3.BucketLifecycleConfiguration(
            f"{name}-source-lifecycle",
            bucket=bucket.id,
            rules=[
                {
                    "id": "sources",
                    "status": "Enabled",
                    "filter": {"prefix": ""},
                    "expiration": {"days": SOURCE_DAYS},
                    "abort_incomplete_multipart_upload": {"days_after_initiation": SOURCE_DAYS},
                }
            ],
            opts=child,
        )
        log = aws.cloudwatch.LogGroup(f"{name}-log", retention_in_days=LOG_DAYS, tags=args.tags, opts=child)
        role = aws.iam.Role(
            f"{name}-role",
            assume_role_policy=build_trust_policy(),
            description="Builds of the trainer's image",
            tags=args.tags,
            opts=child,
        )
        rights = aws.iam.RolePolicy(
            f"{name}-policy",
            role=role.name,
            policy=pulumi.Output.all(args.repository_arn, log.arn, bucket.arn).apply(lambda arns: build_policy(*arns)),
            opts=child,
        )
        project = aws.codebuild.Project(
            f"{name}-project",
            description="Builds the trainer's image; started by eks-fsdp image build",
            service_role=role.arn,
            build_timeout=BUILD_MINUTES,
            artifacts={"type": "NO_ARTIFACTS"},
            environment={
                "type": "LINUX_CONTAINER",
                "compute_type": "BUILD_GENERAL1_LARGE",
                "image": CODEBUILD_IMAGE,
                # Docker in the build's container needs it.
                "privileged_mode": True,
            },
            # Each build names its own source and image.
            source={
                "type": "S3",
                "location": bucket.bucket.apply(lambda bucket_name: f"{bucket_name}/none.zip"),
                "buildspec": build_spec(),
            },
            logs_config={"cloudwatch_logs": {"status": "ENABLED", "group_name": log.name}},
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[rights]),
        )
        self.project, self.bucket = project.name, bucket.bucket
        self.register_outputs({"project": self.project, "bucket": self.bucket})
