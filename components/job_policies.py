"""What pods of jobs may do in AWS: their own buckets, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from eks_fsdp.spec.settings import StorageSettings

from .s3_mounts import checkpoint_bucket_policy, s3_statements


def job_policies(storage: StorageSettings, region: str, namespace: str) -> list[str]:
    """Policies as JSON for the service account of jobs in ``namespace``: read the mounted buckets, and read and write what
    is below the namespace's name in that of checkpoints.

    Empty where jobs have no business in S3. The bucket behind an FSx file system is FSx' business, not the pods'.
    """
    statements: list[dict[str, Any]] = []
    for mount in storage.s3_mounts.values():
        statements += s3_statements(mount.bucket, mount.prefix, ["s3:GetObject"], region)
    unique = list({json.dumps(statement): statement for statement in statements}.values())
    policies = [json.dumps({"Version": "2012-10-17", "Statement": unique})] if unique else []
    if bucket := storage.checkpoint_bucket:
        policies.append(checkpoint_bucket_policy(bucket, namespace, storage.checkpoint_kms_key_arn, region))
    return policies
