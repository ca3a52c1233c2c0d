"""FSx for Lustre of the stand-in account: data repositories, and what ties a file system to its network."""

from __future__ import annotations

import json
import uuid
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response
from moto.fsx.responses import FSxResponse
from moto.s3.models import s3_backends

from .account_errors import Refusal

PER_FILE_SYSTEM = 8
"""Data repository associations that one file system may have."""
_WITH_REPOSITORIES = ("PERSISTENT_2", "SCRATCH_2", "PERSISTENT_1")
_INTERFACE = "Created by Amazon FSx for Lustre file system "


class DataRepositories:
    """The associations of each region, by id."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, dict[str, Any]]] = {}

    def reset(self) -> None:
        """Forget them all."""
        self.of.clear()


DATA_REPOSITORIES = DataRepositories()


def _lustre_problem(params: dict[str, Any]) -> str | None:
    """Why FSx refuses size or throughput of a new Lustre file system, or None."""
    config = params.get("LustreConfiguration") or {}
    if config.get("DeploymentType") != "PERSISTENT_2":
        return None
    capacity, throughput = params.get("StorageCapacity"), config.get("PerUnitStorageThroughput")
    if capacity is None or (int(capacity) != 1200 and int(capacity) % 2400):
        return f"Storage capacity {capacity} GiB is not valid: 1200, or a multiple of 2400"
    if throughput not in (125, 250, 500, 1000):
        return f"PerUnitStorageThroughput {throughput} is not valid: 125, 250, 500 or 1000"
    return None


class SandboxFSxResponse(FSxResponse):
    """moto's FSx with the checks and the associations that it lacks."""

    @property
    def _ec2(self) -> Any:
        return ec2_backends[self.current_account][self.region]

    @property
    def _associations(self) -> dict[str, dict[str, Any]]:
        return DATA_REPOSITORIES.of.setdefault(self.region, {})

    def create_file_system(self) -> str:
        """CreateFileSystem: with a network interface in its subnet, which keeps the subnet from being deleted."""
        params = json.loads(self.body)
        subnets, groups = params.get("SubnetIds") or [], params.get("SecurityGroupIds") or []
        known = {subnet.id: subnet for subnet in self._ec2.describe_subnets()}
        for subnet in subnets:
            if subnet not in known:
                raise Refusal("InvalidNetworkSettings", f"The subnet ID '{subnet}' does not exist")
        vpc = known[subnets[0]].vpc_id if subnets else None
        for group in groups:
            found = self._ec2.get_security_group_from_id(group)
            if found is None or found.vpc_id != vpc:
                raise Refusal("InvalidNetworkSettings", f"The security group '{group}' does not exist in VPC '{vpc}'")
        if params.get("FileSystemType") == "LUSTRE" and (problem := _lustre_problem(params)):
            raise Refusal("BadRequest", problem)
        made = json.loads(super().create_file_system())["FileSystem"]
        system = self.fsx_backend.file_systems[made["FileSystemId"]]
        if system.lustre_configuration is not None:
            system.lustre_configuration["MountName"] = uuid.uuid4().hex[:8]
        interfaces = [
            self._ec2.create_network_interface(
                known[subnet], None, group_ids=groups, description=f"{_INTERFACE}{system.file_system_id}"
            )
            for subnet in subnets
        ]
        system.interfaces, system.vpc_id = [interface.id for interface in interfaces], vpc  # type: ignore[attr-defined]
        return json.dumps({"FileSystem": self._described(system)})

    def _described(self, system: Any) -> dict[str, Any]:
        network = {"NetworkInterfaceIds": system.interfaces, "VpcId": system.vpc_id}
        return {**system.to_dict(), "Lifecycle": "AVAILABLE", "OwnerId": self.current_account, **network}

    def describe_file_systems(self) -> str:
        """DescribeFileSystems. Refuses an id that does not exist."""
        wanted = json.loads(self.body).get("FileSystemIds")
        systems = self.fsx_backend.file_systems
        for identifier in wanted or []:
            self._existing(identifier)
        return json.dumps({"FileSystems": [self._described(systems[name]) for name in wanted or systems]})

    def _existing(self, identifier: str) -> Any:
        if identifier not in self.fsx_backend.file_systems:
            raise Refusal("FileSystemNotFound", f"File system '{identifier}' does not exist.")
        return self.fsx_backend.file_systems[identifier]

    def delete_file_system(self) -> str:
        """DeleteFileSystem: its interfaces and associations go with it."""
        system = self._existing(json.loads(self.body)["FileSystemId"])
        for interface in system.interfaces:
            self._ec2.delete_network_interface(interface)
        for key, made in list(self._associations.items()):
            if made["FileSystemId"] == system.file_system_id:
                del self._associations[key]
        return super().delete_file_system()

    # Data repository associations

    def create_data_repository_association(self) -> ActionResult:
        """CreateDataRepositoryAssociation. Refuses overlapping folders or prefixes, and a bucket that does not exist."""
        params = json.loads(self.body)
        system = self._existing(params["FileSystemId"])
        kind = (system.lustre_configuration or {}).get("DeploymentType")
        if kind not in _WITH_REPOSITORIES:
            raise Refusal("UnsupportedOperation", f"A file system of deployment type {kind} has no data repositories")
        bucket = str(params["DataRepositoryPath"]).removeprefix("s3://").partition("/")[0]
        if bucket not in s3_backends[self.current_account]["aws"].buckets:
            raise Refusal("BadRequest", f"The bucket '{bucket}' of the data repository does not exist")
        siblings = [a for a in self._associations.values() if a["FileSystemId"] == system.file_system_id]
        if len(siblings) == PER_FILE_SYSTEM:
            raise Refusal("ServiceLimitExceeded", f"A file system has at most {PER_FILE_SYSTEM} data repositories")
        for key in ("FileSystemPath", "DataRepositoryPath"):
            for other in siblings:
                if _overlap(str(params.get(key, "/")), str(other.get(key, "/"))):
                    raise Refusal(
                        "BadRequest", f"{key} '{params.get(key)}' overlaps '{other[key]}' of {other['AssociationId']}"
                    )
        number = f"dra-{uuid.uuid4().hex[:17]}"
        made = {
            **{key: value for key, value in params.items() if key != "ClientRequestToken"},
            "AssociationId": number,
            "ResourceARN": f"arn:aws:fsx:{self.region}:{self.current_account}:association/{system.file_system_id}/{number}",
            "Lifecycle": "AVAILABLE",
            "FileSystemType": "LUSTRE",
        }
        self._associations[number] = made
        self.fsx_backend.tagger.tag_resource(made["ResourceARN"], params.get("Tags") or [])
        return ActionResult({"Association": made})

    def _association(self, identifier: str) -> dict[str, Any]:
        if identifier not in self._associations:
            raise Refusal("DataRepositoryAssociationNotFound", f"Association '{identifier}' does not exist.")
        return self._associations[identifier]

    def describe_data_repository_associations(self) -> ActionResult:
        """DescribeDataRepositoryAssociations, by id or by the filter ``file-system-id``."""
        params = json.loads(self.body)
        found = [self._association(i) for i in params.get("AssociationIds") or self._associations]
        for condition in params.get("Filters") or []:
            if condition["Name"] == "file-system-id":
                found = [made for made in found if made["FileSystemId"] in condition["Values"]]
        tags = self.fsx_backend.list_tags_for_resource
        return ActionResult({"Associations": [{**made, "Tags": tags(made["ResourceARN"])} for made in found]})

    def update_data_repository_association(self) -> ActionResult:
        """UpdateDataRepositoryAssociation."""
        params = json.loads(self.body)
        made = self._association(params["AssociationId"])
        made |= {key: params[key] for key in ("S3", "ImportedFileChunkSize") if key in params}
        return ActionResult({"Association": made})

    def delete_data_repository_association(self) -> ActionResult:
        """DeleteDataRepositoryAssociation."""
        params = json.loads(self.body)
        made = self._association(params["AssociationId"])
        del self._associations[made["AssociationId"]]
        gone = {key: params.get(key) for key in ("AssociationId", "DeleteDataInFileSystem")}
        return ActionResult({**gone, "Lifecycle": "DELETING"})


def _overlap(one: str, other: str) -> bool:
    a, b = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return a.startswith(b) or b.startswith(a)


class FileSystemNetwork(EC2Response):
    """Deletions that EC2 refuses while a file system stands there; moto looks at no interface."""

    def delete_subnet(self) -> Any:
        """DeleteSubnet."""
        subnet = self._get_param("SubnetId")
        self._refuse_under(subnet, lambda interface: interface.subnet.id == subnet, "subnet")
        return super().delete_subnet()

    def delete_security_group(self) -> Any:
        """DeleteSecurityGroup."""
        group = self._get_param("GroupId")
        self._refuse_under(group, lambda interface: group in [g.id for g in interface.group_set], "resource")
        return super().delete_security_group()

    def _refuse_under(self, identifier: str, uses: Any, what: str) -> None:
        for interface in self.ec2_backend.enis.values():
            if (interface.description or "").startswith(_INTERFACE) and uses(interface):
                raise Refusal(
                    "DependencyViolation", f"The {what} '{identifier}' has dependencies and cannot be deleted."
                )
