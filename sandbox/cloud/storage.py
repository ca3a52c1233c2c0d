"""Container images and file systems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Failure, Kind, Update, arn_tagger, describer, identity, is_gone, tag_map
from .wire import has_unknown


def _encryption(context: Context) -> Any:
    given = context.inputs.get("encryptionConfigurations")
    if not given:
        return None
    first = given[0] if isinstance(given, list) else given
    key = {"kmsKey": first["kmsKey"]} if first.get("kmsKey") else {}
    return {"encryptionType": first.get("encryptionType", "AES256"), **key}


def _delete_repository(context: Context) -> None:
    context.client.delete_repository(repositoryName=context.id, force=bool(context.state.get("forceDelete")))


REPOSITORY = Kind(
    token="aws:ecr/repository:Repository",
    service="ecr",
    create=Call(
        "create_repository",
        {
            "repositoryName": "name",
            "imageTagMutability": "imageTagMutability",
            "imageTagMutabilityExclusionFilters": "imageTagMutabilityExclusionFilters",
            "imageScanningConfiguration": "imageScanningConfiguration",
            "encryptionConfiguration": _encryption,
        },
        tags="tags",
    ),
    id="repository.repositoryName",
    read=describer("describe_repositories", "repositoryNames", "repositories"),
    observed={
        "name": "repositoryName",
        "arn": "repositoryArn",
        "registryId": "registryId",
        "repositoryUrl": "repositoryUri",
        "imageTagMutability": "imageTagMutability",
        "imageScanningConfiguration": "imageScanningConfiguration",
    },
    delete=_delete_repository,
    updates=(
        Update(
            ("imageTagMutability",),
            Call("put_image_tag_mutability", {"repositoryName": identity, "imageTagMutability": "imageTagMutability"}),
        ),
        Update(
            ("imageScanningConfiguration",),
            Call(
                "put_image_scanning_configuration",
                {"repositoryName": identity, "imageScanningConfiguration": "imageScanningConfiguration"},
            ),
        ),
    ),
    replaces=frozenset({"name", "encryptionConfigurations"}),
    ignored=frozenset({"forceDelete"}),
    auto_name="name",
    name_limit=256,
    tagged=arn_tagger("resourceArn", "tags", "tagKeys"),
)


def _policy_text(context: Context) -> Any:
    value = context.inputs.get("policy")
    return json.dumps(value) if isinstance(value, Mapping) else value


_PUT = Call("put_lifecycle_policy", {"repositoryName": "repository", "lifecyclePolicyText": _policy_text})


def _read_lifecycle(context: Context) -> Mapping[str, Any] | None:
    try:
        return dict(context.client.get_lifecycle_policy(repositoryName=context.id))
    except ClientError as error:
        if is_gone(error):
            return None
        raise


LIFECYCLE_POLICY = Kind(
    token="aws:ecr/lifecyclePolicy:LifecyclePolicy",
    service="ecr",
    create=_PUT,
    id=lambda context: str(context.inputs["repository"]),
    read=_read_lifecycle,
    observed={"registryId": "registryId"},
    delete=Call("delete_lifecycle_policy", {"repositoryName": identity}),
    updates=(Update(("policy",), _PUT),),
    replaces=frozenset({"repository"}),
)

_LUSTRE = {
    f"LustreConfiguration.{name[:1].upper()}{name[1:]}": name
    for name in (
        "deploymentType",
        "perUnitStorageThroughput",
        "dataCompressionType",
        "weeklyMaintenanceStartTime",
        "automaticBackupRetentionDays",
        "dailyAutomaticBackupStartTime",
        "copyTagsToBackups",
        "driveCacheType",
        "autoImportPolicy",
        "importPath",
        "exportPath",
        "importedFileChunkSize",
        "rootSquashConfiguration",
        "logConfiguration",
        "metadataConfiguration",
        "efaEnabled",
        "throughputCapacity",
        "dataReadCacheConfiguration",
    )
}


def _lustre_check(context: Context) -> Iterable[Failure]:
    capacity, kind = context.inputs.get("storageCapacity"), context.inputs.get("deploymentType", "SCRATCH_1")
    if capacity is not None and not has_unknown(capacity) and int(capacity) != 1200 and int(capacity) % 2400:
        yield "storageCapacity", f"{capacity} GiB is not offered; accepted: 1200, or a multiple of 2400"
    if kind in ("PERSISTENT_1", "PERSISTENT_2") and context.inputs.get("perUnitStorageThroughput") is None:
        yield "perUnitStorageThroughput", f"deployment type {kind} needs it (MB/s per TiB: 125, 250, 500 or 1000)"


FILE_SYSTEM = Kind(
    token="aws:fsx/lustreFileSystem:LustreFileSystem",
    service="fsx",
    create=Call(
        "create_file_system",
        {
            "FileSystemType": lambda context: "LUSTRE",
            "StorageCapacity": "storageCapacity",
            "StorageType": "storageType",
            "SubnetIds": "subnetIds",
            "SecurityGroupIds": "securityGroupIds",
            "KmsKeyId": "kmsKeyId",
            "FileSystemTypeVersion": "fileSystemTypeVersion",
            **_LUSTRE,
        },
        tags="Tags",
    ),
    id="FileSystem.FileSystemId",
    read=describer("describe_file_systems", "FileSystemIds", "FileSystems"),
    observed={
        "arn": "ResourceARN",
        "storageCapacity": "StorageCapacity",
        "storageType": "StorageType",
        "deploymentType": "LustreConfiguration.DeploymentType",
        "perUnitStorageThroughput": "LustreConfiguration.PerUnitStorageThroughput",
        "subnetIds": "SubnetIds[0]",  # the SDK has one subnet where the API has a list
        "ownerId": "OwnerId",
        "vpcId": "VpcId",
        "networkInterfaceIds": "NetworkInterfaceIds",
        "tags": tag_map,
    },
    computed=lambda context, described: {
        "dnsName": described.get("DNSName") or f"{context.id}.fsx.{context.region}.amazonaws.com",
        "mountName": (described.get("LustreConfiguration") or {}).get("MountName") or "fsx",
    },
    computed_names=("dnsName", "mountName"),
    delete=Call("delete_file_system", {"FileSystemId": identity}),
    replaces=frozenset(
        {
            "storageCapacity",
            "storageType",
            "subnetIds",
            "securityGroupIds",
            "kmsKeyId",
            "fileSystemTypeVersion",
            *_LUSTRE.values(),
        }
    ),
    ignored=frozenset({"skipFinalBackup", "finalBackupTags"}),
    checks=(_lustre_check,),
    tagged=arn_tagger("ResourceARN", "Tags", "TagKeys"),
)

_ASSOCIATION = {"AssociationId": identity}

DATA_REPOSITORY = Kind(
    token="aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    service="fsx",
    create=Call(
        "create_data_repository_association",
        {
            "FileSystemId": "fileSystemId",
            "FileSystemPath": "fileSystemPath",
            "DataRepositoryPath": "dataRepositoryPath",
            "BatchImportMetaDataOnCreate": "batchImportMetaDataOnCreate",
            "ImportedFileChunkSize": "importedFileChunkSize",
            "S3": "s3",
        },
        tags="Tags",
    ),
    id="Association.AssociationId",
    read=describer("describe_data_repository_associations", "AssociationIds", "Associations"),
    observed={
        "arn": "ResourceARN",
        "associationId": "AssociationId",
        "fileSystemId": "FileSystemId",
        "fileSystemPath": "FileSystemPath",
        "dataRepositoryPath": "DataRepositoryPath",
        "tags": tag_map,
    },
    delete=Call(
        "delete_data_repository_association",
        {
            **_ASSOCIATION,
            "DeleteDataInFileSystem": lambda context: bool(context.state.get("deleteDataInFilesystem")),
        },
    ),
    updates=(
        Update(
            ("s3", "importedFileChunkSize"),
            Call(
                "update_data_repository_association",
                {**_ASSOCIATION, "S3": "s3", "ImportedFileChunkSize": "importedFileChunkSize"},
            ),
        ),
    ),
    replaces=frozenset({"fileSystemId", "fileSystemPath", "dataRepositoryPath", "batchImportMetaDataOnCreate"}),
    ignored=frozenset({"deleteDataInFilesystem"}),
    delete_before_replace=True,
    tagged=arn_tagger("ResourceARN", "Tags", "TagKeys"),
)

KINDS = (REPOSITORY, LIFECYCLE_POLICY, FILE_SYSTEM, DATA_REPOSITORY)
