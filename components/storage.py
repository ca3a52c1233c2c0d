"""The file system that checkpoints are kept on: FSx for Lustre, as a volume that every node can mount."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .objects import Manifest, declare

CSI_DRIVER = "fsx.csi.aws.com"
THROUGHPUT_MBPS_PER_TIB = 125
"""Throughput of the file system in MB/s for each TiB."""


def persistent_volume(
    name: str, capacity_gib: int, file_system_id: object, dns_name: object, mount_name: object
) -> Manifest:
    """The volume that stands for the whole file system. It is kept when its claim goes."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": f"{capacity_gib}Gi"},
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": ["flock"],
            "csi": {
                "driver": CSI_DRIVER,
                "volumeHandle": file_system_id,
                "volumeAttributes": {"dnsname": dns_name, "mountname": mount_name},
            },
        },
    }


def persistent_volume_claim(name: str, namespace: str, volume: str, capacity_gib: int) -> Manifest:
    """The claim by which jobs of ``namespace`` mount ``volume``."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            # Empty, not absent: absent is the default class, which would make a disk of its own.
            "storageClassName": "",
            "volumeName": volume,
            "resources": {"requests": {"storage": f"{capacity_gib}Gi"}},
        },
    }


@dataclass(frozen=True, kw_only=True)
class StorageArgs:
    """Inputs of `Storage`."""

    capacity_gib: int
    """1200, or a multiple of 2400."""
    claim: str
    """Name of the PersistentVolumeClaim."""
    namespace: str
    """Namespace of the claim."""
    cluster_name: pulumi.Input[str]
    """The EKS cluster that gets the CSI driver."""
    subnet_id: pulumi.Input[str]
    """Where the file system is: in the GPU nodes' zone, as traffic between zones is slow and is paid for."""
    security_group_ids: Sequence[pulumi.Input[str]]
    """Groups that the nodes are in too, and that let their members reach each other."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    deleted_with: pulumi.Resource | None = None
    """The cluster: volume and claim end with it, the file system does not."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the namespace, and nodes for the driver."""
    csi_driver: pulumi.Resource | None = None
    """The add-on of the CSI driver where the cluster has it; None: it is installed here."""


class Storage(pulumi.ComponentResource):
    """An FSx for Lustre file system, its CSI driver, a volume and a claim."""

    file_system_id: pulumi.Output[str]

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:storage:Storage", name, None, opts)
        file_system = aws.fsx.LustreFileSystem(
            f"{name}-lustre",
            storage_capacity=args.capacity_gib,
            storage_type="SSD",
            deployment_type="PERSISTENT_2",
            per_unit_storage_throughput=THROUGHPUT_MBPS_PER_TIB,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            subnet_ids=args.subnet_id,
            security_group_ids=args.security_group_ids,
            tags={**args.tags, "Name": name},
            # Its subnet follows the first GPU group's zone, and another subnet would be a new file system: empty.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["subnet_ids"]),
        )
        driver = args.csi_driver
        if driver is None:
            # The driver's add-on fails without the agent. It needs no role of its own: it mounts what is there, and makes
            # nothing.
            agent = self._addon(f"{name}-pod-identity", "eks-pod-identity-agent", args, args.depends_on)
            driver = self._addon(f"{name}-csi-driver", "aws-fsx-csi-driver", args, [agent])
        volume = declare(
            f"{name}-volume",
            persistent_volume(
                f"{args.namespace}-{args.claim}",
                args.capacity_gib,
                file_system.id,
                file_system.dns_name,
                file_system.mount_name,
            ),
            pulumi.ResourceOptions(parent=self, depends_on=[driver], deleted_with=args.deleted_with),
        )
        declare(
            f"{name}-claim",
            persistent_volume_claim(args.claim, args.namespace, f"{args.namespace}-{args.claim}", args.capacity_gib),
            pulumi.ResourceOptions(parent=self, depends_on=[volume, *args.depends_on], deleted_with=args.deleted_with),
        )
        self.file_system_id = file_system.id
        self.register_outputs({"file_system_id": self.file_system_id})

    def _addon(self, name: str, addon: str, args: StorageArgs, depends_on: Sequence[pulumi.Resource]) -> aws.eks.Addon:
        return aws.eks.Addon(
            name,
            cluster_name=args.cluster_name,
            addon_name=addon,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(depends_on), deleted_with=args.deleted_with),
        )
