"""EKS of the stand-in account: moto's clusters and node groups, with a machine room behind them."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.logs.models import logs_backends

from eks_fsdp.spec.versions import KUBERNETES_PATCH, KUBERNETES_VERSION

from .account_autoscaling import SCALING
from .account_capacity import CAPACITY
from .account_ec2 import instance_type, placement_group_exists
from .account_eks_parts import ACCESS_POLICIES, refuse, update_answer
from .account_pod_identity import PodIdentities
from .machine_room import MachineRoomError
from .refusals import efa_interfaces, gpus, launch_template_problems, max_pods, scaling_problem, vcpus

TAINT_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}
"""EKS's spelling of a taint's effect, and Kubernetes' own."""


def kubeconfig(name: str, endpoint: str, ca_data: str, token: str) -> dict[str, Any]:
    """A kubeconfig with the cluster's CA and a static token: kubectl needs no other command for it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": endpoint, "certificate-authority-data": ca_data}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


class SandboxEKSResponse(PodIdentities):
    """One request."""

    # Clusters

    def create_cluster(self) -> ActionResult:
        """CreateCluster: returns once the control plane answers."""
        name, version = self._get_param("name"), self._get_param("version") or KUBERNETES_VERSION
        if version != KUBERNETES_VERSION:
            raise refuse(
                f"unsupported Kubernetes version {version}: the control plane of this stand-in is {KUBERNETES_PATCH}; "
                f"accepted: {KUBERNETES_VERSION}"
            )
        vpc_config = dict(self._get_param("resourcesVpcConfig") or {})
        self._check_vpc_config(vpc_config)
        with self.hooks.lock:
            super().create_cluster()
            cluster: Any = self.eks_backend.describe_cluster(name)
            cluster.status = "CREATING"
        try:
            made = self.hooks.machine_room.create_control_plane(name, version, self.hooks.host, self.hooks.port)
        except MachineRoomError as error:
            with self.hooks.lock:
                self.eks_backend.delete_cluster(name)
            code = "ResourceLimitExceededException" if error.status == HTTPStatus.CONFLICT else "ServerException"
            raise refuse(str(error), code) from None
        with self.hooks.lock:
            cluster.version = version
            cluster.endpoint = f"https://{self.hooks.host}:{self.hooks.port}"
            cluster.certificate_authority = {"data": base64.b64encode(made["ca_pem"].encode()).decode()}
            cluster.admin_token = made["admin_token"]
            identifier = uuid.uuid4().hex.upper()
            cluster.identity = {"oidc": {"issuer": f"https://oidc.eks.{self.region}.amazonaws.com/id/{identifier}"}}
            cluster.addons, cluster.access_entries, cluster.pod_identities = {}, {}, {}
            self._set_access(cluster, dict(self._get_param("accessConfig") or {}))
            for key in ("upgradePolicy", "zonalShiftConfig", "computeConfig", "storageConfig", "deletionProtection"):
                value = self._get_param(key)
                if value is not None:
                    setattr(cluster, _snake(key), value)
            cluster.resources_vpc_config = self._complete_vpc_config(cluster, vpc_config)
            self._write_logs(cluster, self._get_param("logging"))
            cluster.status = "ACTIVE"
        self.hooks.cluster_changed(
            name, kubeconfig(name, cluster.endpoint, cluster.certificate_authority["data"], cluster.admin_token)
        )
        return ActionResult({"cluster": cluster})

    def _check_vpc_config(self, config: Mapping[str, Any]) -> None:
        with self.hooks.lock:
            subnets = [self._subnet(subnet_id) for subnet_id in config.get("subnetIds") or []]
            if len({subnet.availability_zone for subnet in subnets}) < 2:
                raise refuse("Subnets specified must be in at least two different AZs")
            if len({subnet.vpc_id for subnet in subnets}) > 1:
                raise refuse("Subnets specified must be in the same VPC")
            for group_id in config.get("securityGroupIds") or []:
                if self._ec2().get_security_group_from_id(group_id) is None:
                    raise refuse(f"The security group ID '{group_id}' does not exist")

    def _complete_vpc_config(self, cluster: Any, config: dict[str, Any]) -> dict[str, Any]:
        vpc_id = self._subnet(config["subnetIds"][0]).vpc_id
        group = self._ec2().create_security_group(
            f"eks-cluster-sg-{cluster.name}-{uuid.uuid4().int % 10**10}",
            "EKS created security group applied to ENI that is attached to EKS Control Plane master nodes",
            vpc_id,
        )
        return {
            "endpointPublicAccess": True,
            "endpointPrivateAccess": False,
            "publicAccessCidrs": ["0.0.0.0/0"],
            "securityGroupIds": [],
            **config,
            "vpcId": vpc_id,
            "clusterSecurityGroupId": group.id,
        }

    def _set_access(self, cluster: Any, config: dict[str, Any]) -> None:
        mode = config.get("authenticationMode") or "CONFIG_MAP"
        creator = config.get("bootstrapClusterCreatorAdminPermissions", True)
        cluster.access_config = {"authenticationMode": mode, "bootstrapClusterCreatorAdminPermissions": creator}
        if mode != "CONFIG_MAP" and creator:
            arn = f"arn:aws:iam::{self.current_account}:user/sandbox"
            entry = self._new_entry(cluster, arn, {})
            entry["policies"][f"arn:aws:eks::aws:cluster-access-policy/{ACCESS_POLICIES[0]}"] = {"type": "cluster"}

    def _write_logs(self, cluster: Any, logging: Mapping[str, Any] | None) -> None:
        """Logs that are kept need a log group. EKS makes one that is not there, and nobody deletes it."""
        if not logging:
            return
        cluster.logging = logging
        group, logs = f"/aws/eks/{cluster.name}/cluster", logs_backends[self.current_account][self.region]
        if any(entry.get("enabled") for entry in logging["clusterLogging"]) and group not in logs.groups:
            logs.create_log_group(group, {})

    def delete_cluster(self) -> ActionResult:
        """DeleteCluster: ends the control plane with all that runs under it."""
        name = self._get_param("name")
        with self.hooks.lock:
            cluster: Any = self.eks_backend.describe_cluster(name)
            if getattr(cluster, "deletion_protection", False):
                raise refuse(f"cluster {name} has deletion protection", "InvalidRequestException")
            self.eks_backend.delete_cluster(name)
            group_id = cluster.resources_vpc_config.get("clusterSecurityGroupId")
            if group_id:
                self._ec2().delete_security_group(group_id=group_id)
        self._ask(lambda room: room.delete_control_plane(name))
        self.hooks.cluster_changed(name, None)
        cluster.status = "DELETING"
        return ActionResult({"cluster": cluster})

    def update_cluster_config(self) -> ActionResult:
        """UpdateClusterConfig."""
        name = self._get_param("name")
        with self.hooks.lock:
            cluster: Any = self.eks_backend.describe_cluster(name)
            vpc_config = self._get_param("resourcesVpcConfig")
            if vpc_config:
                cluster.resources_vpc_config = {**cluster.resources_vpc_config, **vpc_config}
            self._write_logs(cluster, self._get_param("logging"))
            access = self._get_param("accessConfig")
            if access:
                cluster.access_config = {**cluster.access_config, **access}
            for key in ("upgradePolicy", "zonalShiftConfig", "deletionProtection"):
                if self._get_param(key) is not None:
                    setattr(cluster, _snake(key), self._get_param(key))
        return ActionResult({"update": update_answer("EndpointAccessUpdate")})

    def describe_cluster_versions(self) -> ActionResult:
        """DescribeClusterVersions: the version that the control plane has."""
        version = {
            "clusterVersion": KUBERNETES_VERSION,
            "clusterType": "eks",
            "defaultVersion": True,
            "status": "STANDARD_SUPPORT",
            "versionStatus": "STANDARD_SUPPORT",
            "kubernetesPatchVersion": KUBERNETES_PATCH,
        }
        return ActionResult({"clusterVersions": [version]})

    # Node groups

    def list_nodegroups(self) -> Any:
        """ListNodegroups: of a cluster that is there."""
        with self.hooks.lock:
            self.eks_backend.describe_cluster(self._get_param("name"))
            return super().list_nodegroups()

    def create_nodegroup(self) -> ActionResult:
        """CreateNodegroup: returns once the nodes have joined."""
        name, group = self._get_param("name"), self._get_param("nodegroupName")
        with self.hooks.lock:
            self._check_nodegroup()
            super().create_nodegroup()
            made: Any = self.eks_backend.describe_nodegroup(name, group)
            # What moto makes up where nothing was asked for would come back as drift.
            made.remote_access = self._get_param("remoteAccess")
            made.disk_size = self._get_param("diskSize") or (None if made.launch_template else 20)
            made.instance_types = self._get_param("instanceTypes") or ([] if made.launch_template else ["t3.medium"])
            made.version = self._get_param("version") or KUBERNETES_VERSION
            made.release_version = self._get_param("releaseVersion") or f"{KUBERNETES_PATCH}-20260101"
            made.ami_type = self._get_param("amiType") or "AL2023_x86_64_STANDARD"
            made.scaling_config = {"minSize": 1, "maxSize": 2, "desiredSize": 2, **(made.scaling_config or {})}
            made.update_config = self._get_param("updateConfig") or {"maxUnavailable": 1}
            made.node_repair_config = self._get_param("nodeRepairConfig")
            made.health = {"issues": []}
            made.launch_template = self._pinned_template(made.launch_template)
            spec = self._started(made)
        try:
            self.hooks.machine_room.put_node_group(group, spec)
        except MachineRoomError as error:
            with self.hooks.lock:
                CAPACITY.release(made.arn)
                self.eks_backend.delete_nodegroup(name, group)
            raise refuse(str(error), "ServerException") from None
        return ActionResult({"nodegroup": made})

    def _check_nodegroup(self) -> None:
        name, group = self._get_param("name"), self._get_param("nodegroupName")
        self.eks_backend.describe_cluster(name)
        scaling = self._get_param("scalingConfig") or {}
        problem = scaling_problem(scaling)
        if problem:
            raise refuse(f"scalingConfig: {problem}")
        template = self._template_data(self._get_param("launchTemplate"))
        types = list(self._get_param("instanceTypes") or [])
        if types and template.get("InstanceType"):
            raise refuse("Cannot specify instance types in launch template and API request")
        wanted = types or ([template["InstanceType"]] if template.get("InstanceType") else ["t3.medium"])
        subnets = [self._subnet(subnet_id) for subnet_id in self._get_param("subnets") or []]
        if not subnets:
            raise refuse("Subnets are not specified")
        for type_name in wanted:
            described = instance_type(type_name)
            if described is None:
                raise refuse(f"The following supplied instance types do not exist: [{type_name}]")
            problems = launch_template_problems(template, described)
            if problems:
                raise refuse("; ".join(f"{path}: {message}" for path, message in problems))
            for subnet in subnets:
                self._check_zone(group, type_name, subnet.availability_zone)
        placement = (template.get("Placement") or {}).get("GroupName")
        if placement and not placement_group_exists(self.region, placement):
            raise refuse(f"The Placement Group '{placement}' is unknown.")
        for group_id in template.get("SecurityGroupIds") or []:
            if self._ec2().get_security_group_from_id(group_id) is None:
                raise refuse(f"The security group ID '{group_id}' does not exist")

    def _check_zone(self, group: str, type_name: str, zone: str) -> None:
        filters = {"instance-type": [type_name]}
        offers = self._ec2().describe_instance_type_offerings("availability-zone", filters)
        zones = sorted(offer["Location"] for offer in offers)
        if zone not in zones:
            where = ", ".join(zones) or f"no zone of {self.region}"
            raise refuse(
                f"Your requested instance type ({type_name}) of node group {group} is not supported in your requested "
                f"Availability Zone ({zone}). It is offered in {where}."
            )

    def _started(self, group: Any) -> dict[str, Any]:
        """What the machine room is told: as many nodes as there is capacity for; EKS' health issues say why not all."""
        spec = self._node_spec(group)
        template = self._template_data(group.launch_template)
        start = CAPACITY.start(self.region, group.arn, spec["desired"], [spec["instance_type"]], spec["zone"], template)
        group.health = {"issues": start.issues}
        SCALING.sized(group.resources["autoScalingGroups"][0]["name"], start)
        return {**spec, "desired": start.nodes}

    def _node_spec(self, group: Any) -> dict[str, Any]:
        template = self._template_data(group.launch_template)
        type_name = (list(group.instance_types) or [template.get("InstanceType")])[0]
        described = instance_type(type_name) or {}
        zones = [self._subnet(subnet_id).availability_zone for subnet_id in group.subnets]
        labels = {
            **dict(group.labels or {}),
            "eks.amazonaws.com/nodegroup": group.nodegroup_name,
            "eks.amazonaws.com/capacityType": group.capacity_type,
            "node.kubernetes.io/instance-type": type_name,
            "topology.kubernetes.io/zone": zones[0],
            "topology.kubernetes.io/region": self.region,
        }
        return {
            "desired": int(group.scaling_config["desiredSize"]),
            "instance_type": type_name,
            "cpu": vcpus(described),
            "memory_mib": int(described["MemoryInfo"]["SizeInMiB"]),
            "gpus": gpus(described),
            "efa_interfaces": efa_interfaces(template),
            "pods": max_pods(described),
            "zone": zones[0],
            "labels": labels,
            "taints": [
                {"key": taint["key"], "value": taint.get("value") or "", "effect": TAINT_EFFECTS[taint["effect"]]}
                for taint in group.taints or []
            ],
        }

    def update_nodegroup_config(self) -> ActionResult:
        """UpdateNodegroupConfig: returns once the nodes are as asked."""
        name, group = self._get_param("name"), self._get_param("nodegroupName")
        with self.hooks.lock:
            found: Any = self.eks_backend.describe_nodegroup(name, group)
            problem = scaling_problem({**found.scaling_config, **(self._get_param("scalingConfig") or {})})
            if problem:
                raise refuse(f"scalingConfig: {problem}")
            result = super().update_nodegroup_config()
            for key in ("updateConfig", "nodeRepairConfig"):
                if self._get_param(key) is not None:
                    setattr(found, _snake(key), self._get_param(key))
            spec = self._started(found)
        self._ask(lambda room: room.put_node_group(group, spec))
        return result

    def update_nodegroup_version(self) -> ActionResult:
        """UpdateNodegroupVersion: another version of the launch template, or of the release."""
        name, group = self._get_param("name"), self._get_param("nodegroupName")
        with self.hooks.lock:
            found: Any = self.eks_backend.describe_nodegroup(name, group)
            template = self._get_param("launchTemplate")
            if template:
                data = self._template_data(template)
                types = list(found.instance_types) or [data.get("InstanceType")]
                problems = launch_template_problems(data, instance_type(types[0]))
                if problems:
                    raise refuse("; ".join(f"{path}: {message}" for path, message in problems))
                found.launch_template = self._pinned_template(template)
            found.version = self._get_param("version") or found.version
            found.release_version = self._get_param("releaseVersion") or found.release_version
            spec = self._started(found)
        self._ask(lambda room: room.put_node_group(group, spec))
        return ActionResult({"update": update_answer("VersionUpdate")})

    def delete_nodegroup(self) -> ActionResult:
        """DeleteNodegroup: returns once its nodes are gone."""
        name, group = self._get_param("name"), self._get_param("nodegroupName")
        with self.hooks.lock:
            found: Any = self.eks_backend.describe_nodegroup(name, group)
        self._ask(lambda room: room.delete_node_group(group))
        with self.hooks.lock:
            self.eks_backend.delete_nodegroup(name, group)
            CAPACITY.release(found.arn)
            SCALING.forget(found.resources["autoScalingGroups"][0]["name"])
        found.status = "DELETING"
        return ActionResult({"nodegroup": found})

    def _template(self, reference: Mapping[str, Any]) -> Any:
        backend = self._ec2()
        if reference.get("id"):
            return backend.get_launch_template(reference["id"])
        return backend.get_launch_template_by_name(reference["name"])

    def _template_data(self, reference: Mapping[str, Any] | None) -> dict[str, Any]:
        if not reference:
            return {}
        try:
            return dict(self._template(reference).get_version(reference.get("version") or "$Default").data)
        except (ServiceException, ValueError) as error:
            what = reference.get("id") or reference.get("name")
            raise refuse(f"Launch template {what} version {reference.get('version')} does not exist: {error}") from None

    def _pinned_template(self, reference: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if not reference:
            return None
        template = self._template(reference)
        number = template.get_version(reference.get("version") or "$Default").number
        return {"id": template.id, "name": template.name, "version": str(number)}

    # Helpers

    def _ec2(self) -> Any:
        from moto.ec2.models import ec2_backends

        return ec2_backends[self.current_account][self.region]

    def _subnet(self, subnet_id: str) -> Any:
        try:
            return self._ec2().get_subnet(subnet_id)
        except ServiceException:
            raise refuse(f"The subnet ID '{subnet_id}' does not exist") from None

    def _ask(self, request: Any) -> None:
        try:
            request(self.hooks.machine_room)
        except MachineRoomError as error:
            raise refuse(str(error), "ServerException") from None


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)
