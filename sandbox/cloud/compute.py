"""Launch templates and placement groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from eks_fsdp.sandbox.refusals import launch_template_problems

from .kinds import Call, Context, Failure, Kind, Update, describer, ec2_tagger, identity, tag_map
from .shapes import Untranslatable

_DATA = {
    "LaunchTemplateData.BlockDeviceMappings": "blockDeviceMappings",
    "LaunchTemplateData.CapacityReservationSpecification": "capacityReservationSpecification",
    "LaunchTemplateData.CpuOptions": "cpuOptions",
    "LaunchTemplateData.DisableApiStop": "disableApiStop",
    "LaunchTemplateData.DisableApiTermination": "disableApiTermination",
    "LaunchTemplateData.EbsOptimized": "ebsOptimized",
    "LaunchTemplateData.EnclaveOptions": "enclaveOptions",
    "LaunchTemplateData.HibernationOptions": "hibernationOptions",
    "LaunchTemplateData.IamInstanceProfile": "iamInstanceProfile",
    "LaunchTemplateData.ImageId": "imageId",
    "LaunchTemplateData.InstanceInitiatedShutdownBehavior": "instanceInitiatedShutdownBehavior",
    "LaunchTemplateData.InstanceMarketOptions": "instanceMarketOptions",
    "LaunchTemplateData.InstanceType": "instanceType",
    "LaunchTemplateData.KeyName": "keyName",
    "LaunchTemplateData.MaintenanceOptions": "maintenanceOptions",
    "LaunchTemplateData.MetadataOptions": "metadataOptions",
    "LaunchTemplateData.Monitoring": "monitoring",
    "LaunchTemplateData.NetworkInterfaces": "networkInterfaces",
    "LaunchTemplateData.Placement": "placement",
    "LaunchTemplateData.PrivateDnsNameOptions": "privateDnsNameOptions",
    "LaunchTemplateData.SecurityGroupIds": "vpcSecurityGroupIds",
    "LaunchTemplateData.TagSpecifications": "tagSpecifications",
    "LaunchTemplateData.UserData": "userData",
}
_NAMES = {
    "networkInterfaces.securityGroups": "Groups",
    "networkInterfaces.ipv4AddressCount": "SecondaryPrivateIpAddressCount",
    "networkInterfaces.ipv4Addresses": "PrivateIpAddresses",
    "metadataOptions.httpPutResponseHopLimit": "HttpPutResponseHopLimit",
}
_PROPERTIES = {member.partition(".")[2]: name for member, name in _DATA.items()}


def _as_property(path: str) -> str:
    """A path in the API's spelling as the program writes it."""
    first, bracket, rest = path.partition("[")
    name = _PROPERTIES.get(first, first)
    if not bracket:
        return name
    index, _, member = rest.partition("].")
    return f"{name}[{index}].{member[:1].lower()}{member[1:]}" if member else f"{name}[{index}]"


def _template_checks(context: Context) -> Iterable[Failure]:
    try:
        request = _CREATE.request(context, _NAMES)
    except Untranslatable:
        return
    data = request.get("LaunchTemplateData", {})
    if context.inputs.get("vpcSecurityGroupIds") and data.get("NetworkInterfaces"):
        # Ids of groups that do not exist yet are unknown at preview, and the list is empty then.
        data["SecurityGroupIds"] = data.get("SecurityGroupIds") or ["unknown"]
    described = None
    name = data.get("InstanceType")
    if name:
        described = instance_described(context.clients, name)
        if described is None:
            yield "instanceType", f"EC2 has no instance type {name!r}"
            return
    for path, message in launch_template_problems(data, described):
        yield _as_property(path), message


def _new_version(context: Context) -> None:
    request = _CREATE.request(context, _NAMES)
    request.pop("LaunchTemplateName", None)
    request.pop("TagSpecifications", None)
    answer = context.client.create_launch_template_version(LaunchTemplateId=context.id, **request)
    if context.inputs.get("updateDefaultVersion"):
        number = str(answer["LaunchTemplateVersion"]["VersionNumber"])
        context.client.modify_launch_template(LaunchTemplateId=context.id, DefaultVersion=number)


def _set_default(context: Context) -> None:
    number = str(context.inputs["defaultVersion"])
    context.client.modify_launch_template(LaunchTemplateId=context.id, DefaultVersion=number)


_CREATE = Call(
    "create_launch_template",
    {"LaunchTemplateName": "name", "VersionDescription": "description", **_DATA},
    tags="spec:launch-template",
)

LAUNCH_TEMPLATE = Kind(
    token="aws:ec2/launchTemplate:LaunchTemplate",
    service="ec2",
    create=_CREATE,
    id="LaunchTemplate.LaunchTemplateId",
    read=describer("describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates"),
    observed={
        "name": "LaunchTemplateName",
        "latestVersion": "LatestVersionNumber",
        "defaultVersion": "DefaultVersionNumber",
        "tags": tag_map,
    },
    delete=Call("delete_launch_template", {"LaunchTemplateId": identity}),
    updates=(
        Update(("description", *_DATA.values()), _new_version),
        Update(("defaultVersion",), _set_default),
    ),
    replaces=frozenset({"name", "namePrefix"}),
    ignored=frozenset({"updateDefaultVersion"}),
    names=_NAMES,
    arn="arn:aws:ec2:{region}:{account}:launch-template/{id}",
    auto_name="name",
    name_limit=128,
    volatile=frozenset({"latestVersion", "defaultVersion"}),
    # As the real provider: new tags of the template itself might be a new version of it, and a description never is.
    volatile_on=frozenset({"tags", *_DATA.values()}),
    checks=(_template_checks,),
    tagged=ec2_tagger,
)


def _tag_placement_group(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    """By its id: the provider's own is the group's name."""
    ec2_tagger(replace(context, id=context.state["placementGroupId"]), add, remove)


PLACEMENT_GROUP = Kind(
    token="aws:ec2/placementGroup:PlacementGroup",
    service="ec2",
    create=Call(
        "create_placement_group",
        {
            "GroupName": "name",
            "Strategy": "strategy",
            "PartitionCount": "partitionCount",
            "SpreadLevel": "spreadLevel",
        },
        tags="spec:placement-group",
    ),
    id="PlacementGroup.GroupName",
    read=describer("describe_placement_groups", "GroupNames", "PlacementGroups"),
    observed={
        "name": "GroupName",
        "strategy": "Strategy",
        "placementGroupId": "GroupId",
        "arn": "GroupArn",
        "partitionCount": "PartitionCount",
        "spreadLevel": "SpreadLevel",
        "tags": tag_map,
    },
    delete=Call("delete_placement_group", {"GroupName": identity}),
    replaces=frozenset({"name", "strategy", "partitionCount", "spreadLevel"}),
    auto_name="name",
    delete_before_replace=True,
    tagged=_tag_placement_group,
)

KINDS: tuple[Kind, ...] = (LAUNCH_TEMPLATE, PLACEMENT_GROUP)


def instance_described(clients: Any, name: str) -> Mapping[str, Any] | None:
    """DescribeInstanceTypes' item, or None."""
    filters = [{"Name": "instance-type", "Values": [name]}]
    found = clients("ec2").describe_instance_types(Filters=filters)["InstanceTypes"]
    return dict(found[0]) if found else None
