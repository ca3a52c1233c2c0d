"""EC2 and SSM of the stand-in account: what moto lacks, and what AWS refuses and moto lets through."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ssm.responses import SimpleSystemManagerResponse

from eks_fsdp.spec.versions import AMI_RELEASES

from .account_capacity import CAPACITY
from .account_ec2_capacity import CapacityRequests
from .account_errors import Refusal as Refusal
from .account_fsx import FileSystemNetwork
from .refusals import launch_template_problems

_EKS_AMI = re.compile(r"^/aws/service/(eks/optimized-ami|bottlerocket)/.+/(image_id|release_version|image_version)$")
_EKS_AMI_BUILD = re.compile(r"/amazon-eks-node-al2023-x86_64-nvidia-(?P<minor>\d+\.\d+)-v(?P<build>\d{8})/image_id$")


def _is_a_release(name: str) -> bool:
    """Whether a parameter that names one release of the NVIDIA image names one of which the account knows."""
    match = _EKS_AMI_BUILD.search(name)
    return match is not None and AMI_RELEASES.get(match["minor"], "").endswith(f"-{match['build']}")


class PlacementGroups:
    """The placement groups of each region."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], dict[str, Any]] = {}

    def create(self, region: str, name: str, values: dict[str, Any], arn_prefix: str) -> dict[str, Any]:
        """A new group. Refuses a name that is taken and a strategy that EC2 does not know."""
        if (region, name) in self._groups:
            raise Refusal("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        strategy = values.get("Strategy") or "cluster"
        if strategy not in ("cluster", "spread", "partition"):
            raise Refusal("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
        group = {
            "GroupName": name,
            "GroupId": f"pg-{uuid.uuid4().hex[:17]}",
            "GroupArn": f"{arn_prefix}:placement-group/{name}",
            "State": "available",
            **{key: value for key, value in values.items() if value is not None},
            "Strategy": strategy,
        }
        self._groups[region, name] = group
        return group

    def get(self, region: str, names: list[str], ids: list[str]) -> list[dict[str, Any]]:
        """Groups by name or id; all where neither is given. Refuses names that do not exist."""
        here = {name: group for (where, name), group in self._groups.items() if where == region}
        for name in names:
            if name not in here:
                raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        known = {group["GroupId"] for group in here.values()}
        for group_id in ids:
            if group_id not in known:
                raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{group_id}' is unknown.")
        return [
            group for name, group in here.items() if (not names and not ids) or name in names or group["GroupId"] in ids
        ]

    def delete(self, region: str, name: str) -> None:
        """Refuses a name that does not exist."""
        self.get(region, [name], [])
        del self._groups[region, name]

    def reset(self) -> None:
        """Forget all groups."""
        self._groups.clear()


PLACEMENT_GROUPS = PlacementGroups()


def placement_group_exists(region: str, name: str) -> bool:
    """Whether a launch template may name this group."""
    try:
        return bool(PLACEMENT_GROUPS.get(region, [name], []))
    except Refusal:
        return False


def instance_type(name: str) -> dict[str, Any] | None:
    """DescribeInstanceTypes' item, or None where EC2 has no such type."""
    found = INSTANCE_TYPES.get(name)
    return dict(found) if found is not None else None


class SandboxEC2Response(FileSystemNetwork, CapacityRequests):
    """moto's EC2 with placement groups, and launch templates refused as EC2 and EKS refuse them."""

    def create_launch_template(self) -> ActionResult:
        """Refuses what no instance could be started from."""
        self._refuse_bad_template()
        return super().create_launch_template()

    def create_launch_template_version(self) -> ActionResult:
        """Refuses what no instance could be started from."""
        self._refuse_bad_template()
        return super().create_launch_template_version()

    def _refuse_bad_template(self) -> None:
        data: Any = self._get_param("LaunchTemplateData", {})
        name = data.get("InstanceType")
        described = None
        if name:
            described = instance_type(name)
            if described is None:
                raise Refusal("InvalidParameterValue", f"Invalid instance type: {name}")
        problems = launch_template_problems(data, described)
        if problems:
            text = "; ".join(f"{path}: {message}" for path, message in problems)
            code = "InvalidParameterCombination" if problems[0][0] == "SecurityGroupIds" else "InvalidParameterValue"
            raise Refusal(code, text)

    def delete_nat_gateway(self) -> ActionResult:
        """moto keeps the gateway's network interface; EC2 does not."""
        gateway = self.ec2_backend.nat_gateways.get(self._get_param("NatGatewayId"))
        result: ActionResult = super().delete_nat_gateway()
        interface = getattr(gateway, "_eni", None)
        if interface is not None and interface.id in self.ec2_backend.enis:
            del self.ec2_backend.enis[interface.id]
        return result

    def modify_vpc_endpoint(self) -> ActionResult:
        """moto gives a route table that a gateway endpoint gets later no route to it; EC2 does."""
        number = self._get_param("VpcEndpointId")
        endpoint = self.ec2_backend.vpc_end_points.get(number)
        prefixes = getattr(endpoint, "destination_prefix_list_id", None)
        if prefixes:
            for table in self._get_param("AddRouteTableIds", []):
                self.ec2_backend.create_route(table, None, gateway_id=number, destination_prefix_list_id=prefixes)
            for table in self._get_param("RemoveRouteTableIds", []):
                self.ec2_backend.delete_route(table, prefixes)
        result: ActionResult = super().modify_vpc_endpoint()
        return result

    def create_tags(self) -> ActionResult:
        """CreateTags, of what moto does not know too."""
        tags = {tag["Key"]: tag["Value"] for tag in self._get_param("Tags", [])}
        return EmptyResult() if self._tag_own(tags, ()) else super().create_tags()

    def delete_tags(self) -> ActionResult:
        """DeleteTags, of what moto does not know too."""
        keys = [tag["Key"] for tag in self._get_param("Tags", [])]
        return EmptyResult() if self._tag_own({}, keys) else super().delete_tags()

    def _tag_own(self, add: Mapping[str, str], remove: Iterable[str]) -> bool:
        """Whether the request is about placement groups or reservations."""
        things = [*PLACEMENT_GROUPS.get(self.region, [], []), *CAPACITY.kept(self.region)]
        wanted = set(self._get_param("Resources", []))
        mine = [t for t in things if wanted & {t.get("GroupId"), t.get("CapacityReservationId")}]
        for thing in mine:
            tags = {tag["Key"]: tag["Value"] for tag in thing["Tags"]} | dict(add)
            thing["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items() if key not in remove]
        return bool(mine)

    def create_placement_group(self) -> ActionResult:
        """CreatePlacementGroup."""
        self.error_on_dryrun()
        name = self._get_param("GroupName")
        if not name:
            raise Refusal("MissingParameter", "The request must contain the parameter groupName")
        tags = self._parse_tag_specification().get("placement-group", {})
        values = {
            "Strategy": self._get_param("Strategy"),
            "PartitionCount": self._get_int_param("PartitionCount"),
            "SpreadLevel": self._get_param("SpreadLevel"),
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        prefix = f"arn:{self.partition}:ec2:{self.region}:{self.current_account}"
        return ActionResult({"PlacementGroup": PLACEMENT_GROUPS.create(self.region, name, values, prefix)})

    def describe_placement_groups(self) -> ActionResult:
        """DescribePlacementGroups, by name or id."""
        names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
        return ActionResult({"PlacementGroups": PLACEMENT_GROUPS.get(self.region, list(names), list(ids))})

    def delete_placement_group(self) -> ActionResult:
        """DeletePlacementGroup."""
        PLACEMENT_GROUPS.delete(self.region, self._get_param("GroupName"))
        return ActionResult({})


class SandboxSSMResponse(SimpleSystemManagerResponse):
    """moto's Parameter Store with the public parameters of EKS-optimised images, whose ids are made up."""

    def get_parameter(self) -> Any:
        """GetParameter."""
        name = str(self._get_param("Name"))
        match = _EKS_AMI.match(name)
        if not match or (_EKS_AMI_BUILD.search(name) and not _is_a_release(name)):
            return super().get_parameter()
        digest = hashlib.sha256(name.encode()).hexdigest()[:17]
        value = f"ami-{digest}" if match[2] == "image_id" else f"1.0.0-{digest[:8]}"
        arn = f"arn:aws:ssm:{self.region}::parameter{name}"
        parameter = {"Name": name, "Type": "String", "Value": value, "Version": 1, "ARN": arn, "DataType": "text"}
        return ActionResult({"Parameter": parameter})
