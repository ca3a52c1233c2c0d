"""The file system that checkpoints are kept on: FSx for Lustre, as volumes that every node can mount."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.names import CHECKPOINT_MOUNT
from eks_fsdp.spec.settings import DataRepositorySettings
from eks_fsdp.spec.versions import BUSYBOX_IMAGE, FSX_CSI

from .objects import LOCKED_DOWN, Manifest, declare, labels, resources, static_volume

CSI_DRIVER = "fsx.csi.aws.com"
LUSTRE_PORTS = (988, 1023)
"""First and last TCP port between Lustre's servers and their clients, in both directions: 988 and 1018 to 1023 are used."""
EVENTS = ("NEW", "CHANGED", "DELETED")
"""Changes of objects or files that a data repository passes on."""


def persistent_volume(
    name: str, capacity_gib: int, file_system_id: object, dns_name: object, mount_name: object
) -> Manifest:
    """The volume that stands for the whole file system. It is kept when its claim goes."""
    csi = {
        "driver": CSI_DRIVER,
        "volumeHandle": file_system_id,
        "volumeAttributes": {"dnsname": dns_name, "mountname": mount_name},
    }
    return static_volume(name, capacity_gib, "ReadWriteMany", ["flock"], csi)


def persistent_volume_claim(
    name: str, namespace: str, volume: str, capacity_gib: int, access_mode: str = "ReadWriteMany"
) -> Manifest:
    """The claim by which jobs of ``namespace`` mount ``volume``."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": [access_mode],
            # Empty, not absent: absent is the default class, which would make a disk of its own.
            "storageClassName": "",
            "volumeName": volume,
            "resources": {"requests": {"storage": f"{capacity_gib}Gi"}},
        },
    }


def open_job(claim: str, namespace: str, node_selector: Mapping[str, str]) -> Manifest:
    """The Job that lets everybody make folders in a new file system, whose root is root's: the trainer is not root."""
    mount = {"name": "checkpoints", "mountPath": CHECKPOINT_MOUNT}
    container: Manifest = {
        "name": "open",
        "image": BUSYBOX_IMAGE,
        # As in /tmp: nobody removes what is another's.
        "command": ["chmod", "1777", CHECKPOINT_MOUNT],
        "securityContext": {**LOCKED_DOWN, "runAsUser": 0},
        "resources": resources("10m", "32Mi"),
        "volumeMounts": [mount],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}],
    }
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    name = f"open-{claim}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels(name)},
        "spec": {"template": {"metadata": {"labels": labels(name)}, "spec": pod}},
    }


def data_repository(settings: DataRepositorySettings) -> dict[str, Any]:
    """The inputs of the association of a bucket with a file system, in the SDK's spelling."""
    prefix = settings.prefix.strip("/")
    policies = {"auto_import_policy": {"events": list(EVENTS)}}
    if settings.export:
        policies["auto_export_policy"] = {"events": list(EVENTS)}
    return {
        "data_repository_path": f"s3://{settings.bucket}" + (f"/{prefix}" if prefix else ""),
        "file_system_path": settings.path,
        # Objects that are there already appear as files at once; their content comes with the first read.
        "batch_import_meta_data_on_create": True,
        "s3": policies,
    }


@dataclass(frozen=True, kw_only=True)
class StorageArgs:
    """Inputs of `Storage`."""

    claim: str
    """Name of the PersistentVolumeClaim in each namespace."""
    namespaces: Sequence[str]
    """Namespaces whose jobs mount the file system: one volume and one claim in each."""
    file_system_id: str | None = None
    """A file system that is there already; None: a new one."""
    capacity_gib: int = 1200
    """Of a new file system: 1200, or a multiple of 2400. Of one that is there: what the claims ask for, which nothing checks."""
    throughput: int = 125
    """MB/s for each TiB of a new file system."""
    kms_key_arn: str | None = None
    """Key of a new file system; None: FSx' own."""
    data_repository: DataRepositorySettings | None = None
    """A bucket behind the file system."""
    retain: bool = True
    """Whether a new file system is protected: what would delete or replace it is refused before anything is done."""
    vpc_id: pulumi.Input[str] | None = None
    """VPC of a new file system."""
    subnet_id: pulumi.Input[str] | None = None
    """Where a new file system is: in the GPU nodes' zone, as traffic between zones is slow and is paid for."""
    node_security_group_id: pulumi.Input[str] | None = None
    """A group of all nodes: it and a new file system's own group let each other in."""
    driver: pulumi.Resource | None = None
    """The installed CSI driver; None: `cluster_name`'s add-on is declared here, and needs the pod identity agent."""
    cluster_name: pulumi.Input[str] | None = None
    """The EKS cluster that gets the CSI driver. Neither this nor `driver`: the cluster has the driver."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes for the one pod that opens a new file system to its users."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""
    changing_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the file system alone, such as the expiry."""
    deleted_with: pulumi.Resource | None = None
    """The cluster: volumes and claims end with it, the file system does not."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before the claims: namespaces, and nodes and the agent for the driver."""


class Storage(pulumi.ComponentResource):
    """An FSx for Lustre file system, new or there already, with a volume and a claim for each namespace."""

    file_system_id: pulumi.Output[str]
    claims: list[pulumi.Resource]
    """The claims: what mounts the file system needs them."""

    def __init__(self, name: str, args: StorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:storage:Storage", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        if args.file_system_id is None:
            file_system = self._new(name, args)
        else:
            file_system = aws.fsx.LustreFileSystem.get(f"{name}-lustre", args.file_system_id, opts=child)
        if args.data_repository is not None:
            # Never kept: the files stay, and a second association of the same bucket would be refused later.
            aws.fsx.DataRepositoryAssociation(
                f"{name}-data-repository",
                file_system_id=file_system.id,
                **data_repository(args.data_repository),
                delete_data_in_filesystem=False,
                tags=args.tags,
                opts=child,
            )
        driver = args.driver
        if driver is None and args.cluster_name is not None:
            # It needs no role of its own: it mounts what is there, and makes nothing.
            driver = aws.eks.Addon(
                f"{name}-csi-driver",
                cluster_name=args.cluster_name,
                addon_name=FSX_CSI,
                resolve_conflicts_on_create="OVERWRITE",
                resolve_conflicts_on_update="OVERWRITE",
                tags=args.tags,
                opts=pulumi.ResourceOptions(
                    parent=self, depends_on=list(args.depends_on), deleted_with=args.deleted_with
                ),
            )
        before = [*args.depends_on, *([driver] if driver is not None else [])]
        self.claims = [
            self._claim(name, args, namespace, file_system, before, first=index == 0)
            for index, namespace in enumerate(args.namespaces)
        ]
        if self.claims and args.file_system_id is None:
            declare(
                f"{name}-open",
                open_job(args.claim, args.namespaces[0], args.node_selector),
                pulumi.ResourceOptions(parent=self, depends_on=self.claims[:1], deleted_with=args.deleted_with),
            )
        self.file_system_id = file_system.id
        self.register_outputs({"file_system_id": self.file_system_id})

    def _new(self, name: str, args: StorageArgs) -> aws.fsx.LustreFileSystem:
        if args.vpc_id is None or args.subnet_id is None or args.node_security_group_id is None:
            raise ValueError(f"{name}: a new file system needs vpc_id, subnet_id and node_security_group_id")
        child = pulumi.ResourceOptions(parent=self)
        # A group of its own, which knows nothing of the cluster: a file system that is kept keeps what it depends on.
        group = aws.ec2.SecurityGroup(
            f"{name}-lustre-group",
            description="Servers of the Lustre file system",
            vpc_id=args.vpc_id,
            tags={**args.tags, "Name": f"{name}-lustre"},
            opts=child,
        )
        rules = list(self._open(name, args, group.id))
        return aws.fsx.LustreFileSystem(
            f"{name}-lustre",
            storage_capacity=args.capacity_gib,
            storage_type="SSD",
            deployment_type="PERSISTENT_2",
            per_unit_storage_throughput=args.throughput,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            kms_key_id=args.kms_key_arn,
            subnet_ids=args.subnet_id,
            security_group_ids=[group.id],
            tags={**args.tags, **args.changing_tags, "Name": name},
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=rules,
                protect=args.retain,
                # Another subnet or group would be a new file system, and an empty one.
                ignore_changes=["subnet_ids", "security_group_ids"],
            ),
        )

    def _open(self, name: str, args: StorageArgs, group: pulumi.Input[str]) -> Iterable[pulumi.Resource]:
        """Let servers and nodes reach each other. Yields what the file system's creation needs."""
        nodes = args.node_security_group_id
        assert nodes is not None

        def rule(
            kind: type[aws.vpc.SecurityGroupIngressRule] | type[aws.vpc.SecurityGroupEgressRule],
            suffix: str,
            of: pulumi.Input[str],
            other: pulumi.Input[str],
        ) -> pulumi.Resource:
            return kind(
                f"{name}-{suffix}",
                security_group_id=of,
                referenced_security_group_id=other,
                ip_protocol="tcp",
                from_port=LUSTRE_PORTS[0],
                to_port=LUSTRE_PORTS[1],
                tags=args.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )

        yield rule(aws.vpc.SecurityGroupIngressRule, "lustre-in", group, group)
        yield rule(aws.vpc.SecurityGroupEgressRule, "lustre-out", group, group)
        # These go with the cluster, and so are nothing that the file system depends on.
        rule(aws.vpc.SecurityGroupIngressRule, "lustre-in-nodes", group, nodes)
        rule(aws.vpc.SecurityGroupEgressRule, "lustre-out-nodes", group, nodes)
        rule(aws.vpc.SecurityGroupIngressRule, "nodes-in-lustre", nodes, group)

    def _claim(
        self,
        name: str,
        args: StorageArgs,
        namespace: str,
        file_system: aws.fsx.LustreFileSystem,
        before: Sequence[pulumi.Resource],
        *,
        first: bool,
    ) -> pulumi.Resource:
        # The first namespace's names are those of a time when there was but one.
        suffix = "" if first else f"-{namespace}"
        volume_name = f"{namespace}-{args.claim}"
        volume = declare(
            f"{name}-volume{suffix}",
            persistent_volume(
                volume_name, args.capacity_gib, file_system.id, file_system.dns_name, file_system.mount_name
            ),
            pulumi.ResourceOptions(parent=self, depends_on=before, deleted_with=args.deleted_with),
        )
        return declare(
            f"{name}-claim{suffix}",
            persistent_volume_claim(args.claim, namespace, volume_name, args.capacity_gib),
            pulumi.ResourceOptions(parent=self, depends_on=[volume], deleted_with=args.deleted_with),
        )
