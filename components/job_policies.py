"""What pods of jobs may do in AWS: their own buckets, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from eks_fsdp.spec.settings import StorageSettings


def partition(region: str) -> str:
    """The AWS partition of ``region``: the second part of every ARN in it."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def job_policies(storage: StorageSettings, region: str) -> list[str]:
    """Policies as JSON for the jobs' service account: read the mounted buckets, read and write that of checkpoints.

    Empty where jobs have no business in S3. The bucket behind an FSx file system is FSx' business, not the pods'.
    """
    statements: list[dict[str, Any]] = []
    arn = f"arn:{partition(region)}:s3:::"
    for mount in storage.s3_mounts.values():
        prefix = mount.prefix.strip("/")
        below = f"{prefix}/*" if prefix else "*"
        statements.append(_list(f"{arn}{mount.bucket}", prefix))
        statements.append(_allow(["s3:GetObject"], f"{arn}{mount.bucket}/{below}"))
    if bucket := storage.checkpoint_bucket:
        # Parts of an upload that was cut off are found and ended, else they are paid for, unseen.
        write = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements.append(_list(f"{arn}{bucket}", "", "s3:ListBucketMultipartUploads"))
        statements.append(_allow([*write, "s3:ListMultipartUploadParts"], f"{arn}{bucket}/*"))
    unique = list({json.dumps(statement): statement for statement in statements}.values())
    return [json.dumps({"Version": "2012-10-17", "Statement": unique})] if unique else []


def _list(bucket: str, prefix: str, *more: str) -> dict[str, Any]:
    statement = _allow(["s3:ListBucket", *more], bucket)
    if prefix:
        statement["Condition"] = {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}
    return statement


def _allow(actions: list[str], resource: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resource}
