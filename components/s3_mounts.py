"""Buckets that pods read as folders: Mountpoint for S3 as a CSI driver, for models and data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.settings import S3MountSettings
from eks_fsdp.spec.versions import S3_CSI

from .objects import Manifest, declare, static_volume
from .pod_identity import PodIdentity, PodIdentityArgs
from .storage import persistent_volume_claim

CSI_DRIVER = "s3.csi.aws.com"

SERVICE_ACCOUNT, SERVICE_ACCOUNT_NAMESPACE = "s3-csi-driver-sa", "kube-system"
"""Of the driver's pods on the nodes, which read the buckets."""
NOMINAL_GIB = 1200
"""Size that volume and claim name: Kubernetes wants one, and a bucket has none."""


def claim_name(mount: str) -> str:
    """Name of the claim for a bucket of ``storage.s3_mounts`` in each of the jobs' namespaces."""
    return f"s3-{mount}"


def s3_prefix(prefix: str) -> str:
    """A prefix as Mountpoint takes it: empty, or with one slash at its end and none at its beginning."""
    stripped = prefix.strip("/")
    return f"{stripped}/" if stripped else ""


def driver_configuration() -> str:
    """JSON of the add-on's configuration."""
    # Older releases of the driver do not go to tainted nodes by themselves, and the GPU nodes are tainted.
    return json.dumps({"node": {"tolerateAllTaints": True}}, sort_keys=True)


def partition(region: str) -> str:
    """The AWS partition of ``region``: the second part of every ARN in it."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def s3_statements(bucket: str, prefix: str, actions: Sequence[str], region: str) -> list[dict[str, Any]]:
    """Statements that allow to list what is below ``prefix``, and ``actions`` on it."""
    where, arn = s3_prefix(prefix), f"arn:{partition(region)}:s3:::{bucket}"
    listing: dict[str, Any] = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": arn}
    if where:
        listing["Condition"] = {"StringLike": {"s3:prefix": [where, f"{where}*"]}}
    return [listing, {"Effect": "Allow", "Action": list(actions), "Resource": f"{arn}/{where}*"}]


def read_policy(mounts: Iterable[S3MountSettings], region: str) -> str:
    """JSON of an IAM policy: list and read what is mounted, and nothing more."""
    statements: list[dict[str, Any]] = []
    keys: set[str] = set()
    for mount in mounts:
        statements += s3_statements(mount.bucket, mount.prefix, ["s3:GetObject"], region)
        if mount.kms_key_arn:
            keys.add(mount.kms_key_arn)
    if keys:
        statements.append({"Effect": "Allow", "Action": ["kms:Decrypt"], "Resource": sorted(keys)})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def checkpoint_bucket_policy(bucket: str, prefix: str, kms_key_arn: str | None, region: str) -> str:
    """JSON of an IAM policy for a job's service account: ``s3://`` checkpoints below ``prefix`` of ``bucket``.

    Give the job's namespace as prefix: no team then reads or overwrites another's. Checkpoints go in parts, of which those
    of an upload that was cut off are ended; checkpoints that are no longer kept are deleted.
    """
    uploads = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    statements = s3_statements(bucket, prefix, ["s3:GetObject", "s3:DeleteObject", *uploads], region)
    if kms_key_arn:
        keys = {"Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"], "Resource": kms_key_arn}
        statements.append(keys)
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def bucket_volume(name: str, mount: S3MountSettings, region: str) -> Manifest:
    """The volume that shows a bucket, read-only three times over: to the scheduler, to Mountpoint and to IAM."""
    prefix = s3_prefix(mount.prefix)
    # The trainer is not root: hence allow-other.
    options = ["read-only", "allow-other", f"region {region}", *([f"prefix {prefix}"] if prefix else [])]
    csi = {
        "driver": CSI_DRIVER,
        # Two volumes of one handle would be one mount.
        "volumeHandle": name,
        "volumeAttributes": {"bucketName": mount.bucket},
    }
    return static_volume(name, NOMINAL_GIB, "ReadOnlyMany", options, csi)


@dataclass(frozen=True, kw_only=True)
class S3MountsArgs:
    """Inputs of `S3Mounts`."""

    mounts: Mapping[str, S3MountSettings]
    """Buckets by name."""
    namespaces: Sequence[str]
    """Namespaces whose jobs read them."""
    region: str
    """Region of the buckets."""
    cluster_name: pulumi.Input[str]
    """The EKS cluster that gets the driver."""
    addon_version: str | None = None
    """Version of the add-on; None: EKS' default for the cluster."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    deleted_with: pulumi.Resource | None = None
    """The cluster: all that is in it ends with it."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the pod identity agent, nodes, namespaces."""


class S3Mounts(pulumi.ComponentResource):
    """The Mountpoint driver with its role, and a volume and a claim for each bucket and namespace."""

    claims: list[pulumi.Resource]
    """The claims: what mounts the buckets needs them."""

    def __init__(self, name: str, args: S3MountsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:storage:S3Mounts", name, None, opts)
        options = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on))
        identity = PodIdentity(
            f"{name}-role",
            PodIdentityArgs(
                cluster_name=args.cluster_name,
                namespace=SERVICE_ACCOUNT_NAMESPACE,
                service_account=SERVICE_ACCOUNT,
                policies=[read_policy(args.mounts.values(), args.region)],
                tags=args.tags,
            ),
            options,
        )
        driver = aws.eks.Addon(
            f"{name}-csi-driver",
            cluster_name=args.cluster_name,
            addon_name=S3_CSI,
            addon_version=args.addon_version,
            configuration_values=driver_configuration(),
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            tags=args.tags,
            # Its pods are given their role when they start: later is too late.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[identity.association], deleted_with=args.deleted_with),
        )
        self.claims = [
            self._claim(name, args, mount, namespace, [driver, *args.depends_on])
            for mount in args.mounts
            for namespace in args.namespaces
        ]
        self.register_outputs({})

    def _claim(
        self, name: str, args: S3MountsArgs, mount: str, namespace: str, before: Sequence[pulumi.Resource]
    ) -> pulumi.Resource:
        claim = claim_name(mount)
        volume_name = f"{namespace}-{claim}"
        volume = declare(
            f"{name}-volume-{mount}-{namespace}",
            bucket_volume(volume_name, args.mounts[mount], args.region),
            pulumi.ResourceOptions(parent=self, depends_on=before, deleted_with=args.deleted_with),
        )
        return declare(
            f"{name}-claim-{mount}-{namespace}",
            persistent_volume_claim(claim, namespace, volume_name, NOMINAL_GIB, "ReadOnlyMany"),
            pulumi.ResourceOptions(parent=self, depends_on=[volume], deleted_with=args.deleted_with),
        )
