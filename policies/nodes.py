"""Rules of nodes and of what AWS keeps for them: instance metadata, encryption, tags."""

from __future__ import annotations

from collections.abc import Iterable

from eks_fsdp.spec.names import TAG_EXPIRY, TAG_OWNER
from eks_fsdp.spec.settings import Settings

from .view import UNKNOWN, Resource, is_true

ENVELOPE_MINOR = 28
"""From Kubernetes 1.28 on, EKS encrypts all that the API keeps, with a key of its own."""
_WITHOUT_IMDSV1 = ("AL2023_", "BOTTLEROCKET_")
"""AMI types whose instances answer IMDSv2 alone."""
NOBODY = Settings.model_fields["owner"].default
"""The owner where nobody is named."""


def imdsv2(resource: Resource) -> Iterable[str]:
    """Instances give their credentials to sessions only (IMDSv2): what reads a URL for somebody else cannot get them."""
    if resource.type in ("aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/instance:Instance"):
        tokens = resource.get("metadataOptions.httpTokens", "optional")
        if tokens not in ("required", UNKNOWN):
            yield f"metadataOptions.httpTokens is {tokens!r}: IMDSv1 is open; accepted: 'required'"
    if resource.type == "aws:eks/nodeGroup:NodeGroup" and not resource.get("launchTemplate"):
        kind = resource.get("amiType", "AL2023_")
        if kind is not UNKNOWN and not str(kind).startswith(_WITHOUT_IMDSV1):
            yield f"amiType {kind!r} without a launch template leaves IMDSv1 open; accepted: AL2023_*, BOTTLEROCKET_*"


def encrypted(resource: Resource) -> Iterable[str]:
    """Volumes, file systems, registries and the API's secrets are encrypted."""
    match resource.type:
        case "aws:ec2/launchTemplate:LaunchTemplate":
            yield from _template_volumes(resource)
        case "aws:eks/nodeGroup:NodeGroup":
            if not resource.get("launchTemplate"):
                yield "launchTemplate is not set: EKS' own has a root volume that is not encrypted; accepted: one that says so"
        case "aws:ebs/volume:Volume" | "aws:efs/fileSystem:FileSystem":
            if not _yes(resource.get("encrypted")):
                yield "encrypted is not true; accepted: true"
        case "aws:ecr/repository:Repository":
            if resource.get("encryptionConfigurations") in (None, []):
                yield "encryptionConfigurations is not set; accepted: [{encryptionType: AES256}], or KMS"
        case "aws:eks/cluster:Cluster":
            version = resource.get("version")
            if isinstance(version, str) and not resource.get("encryptionConfig") and _minor(version) < ENVELOPE_MINOR:
                yield (
                    f"version {version!r} without encryptionConfig keeps secrets in plain text; "
                    f"accepted: 1.{ENVELOPE_MINOR} or later, or a KMS key"
                )
        case "kubernetes:storage.k8s.io/v1:StorageClass":
            if resource.get("provisioner") == "ebs.csi.aws.com" and not _yes(resource.get("parameters.encrypted")):
                yield 'parameters.encrypted is not "true"; accepted: "true"'


def _template_volumes(template: Resource) -> Iterable[str]:
    volumes = template.items("blockDeviceMappings")
    if not volumes and template.get("blockDeviceMappings") is not UNKNOWN:
        yield "blockDeviceMappings is not set: the image's own root volume is not encrypted; accepted: one with encrypted"
    for index, volume in enumerate(volumes):
        ebs = volume.get("ebs")
        if isinstance(ebs, dict) and not _yes(ebs.get("encrypted")):
            yield f"blockDeviceMappings[{index}].ebs.encrypted is not true; accepted: true"


def _yes(value: object) -> bool:
    return value is UNKNOWN or is_true(value)


def _minor(version: str) -> int:
    minor = version.partition(".")[2]
    return int(minor) if minor.isdigit() else 0


def tagged(resource: Resource) -> Iterable[str]:
    """Every node group says whose it is, and until when."""
    if resource.type != "aws:eks/nodeGroup:NodeGroup" or resource.get("tags") is UNKNOWN:
        return
    tags = {**resource.get("tagsAll", {}), **resource.get("tags", {})}
    owner = tags.get(TAG_OWNER)
    if not owner or owner == NOBODY:
        yield f"tag {TAG_OWNER} is {owner!r}; accepted: who pays for the nodes (setting `owner`)"
    if not tags.get(TAG_EXPIRY):
        yield f"tag {TAG_EXPIRY} is missing; accepted: a time in ISO 8601, or 'never'"
