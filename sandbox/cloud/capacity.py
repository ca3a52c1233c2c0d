"""Capacity reservations, and what belongs to the Auto Scaling groups of node groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kinds import Call, Context, Kind, Update, describer, ec2_tagger, identity


def _iso(key: str) -> Any:
    return lambda described: described[key].strftime("%Y-%m-%dT%H:%M:%SZ") if described.get(key) else None


CAPACITY_RESERVATION = Kind(
    token="aws:ec2/capacityReservation:CapacityReservation",
    service="ec2",
    create=Call(
        "create_capacity_reservation",
        {
            "InstanceType": "instanceType",
            "InstancePlatform": "instancePlatform",
            "AvailabilityZone": "availabilityZone",
            "InstanceCount": "instanceCount",
            "InstanceMatchCriteria": "instanceMatchCriteria",
            "EndDate": "endDate",
            "EndDateType": "endDateType",
            "Tenancy": "tenancy",
            "EbsOptimized": "ebsOptimized",
            "EphemeralStorage": "ephemeralStorage",
            "PlacementGroupArn": "placementGroupArn",
        },
        tags="spec:capacity-reservation",
    ),
    id="CapacityReservation.CapacityReservationId",
    read=describer("describe_capacity_reservations", "CapacityReservationIds", "CapacityReservations"),
    observed={
        "arn": "CapacityReservationArn",
        "ownerId": "OwnerId",
        "instanceType": "InstanceType",
        "instanceCount": "TotalInstanceCount",
        "availabilityZone": "AvailabilityZone",
        "instanceMatchCriteria": "InstanceMatchCriteria",
        "endDateType": "EndDateType",
        "endDate": _iso("EndDate"),
    },
    delete=Call("cancel_capacity_reservation", {"CapacityReservationId": identity}),
    updates=(
        Update(
            ("instanceCount", "endDate", "endDateType"),
            Call(
                "modify_capacity_reservation",
                {
                    "CapacityReservationId": identity,
                    "InstanceCount": "instanceCount",
                    "EndDate": "endDate",
                    "EndDateType": "endDateType",
                },
            ),
        ),
    ),
    replaces=frozenset(
        {
            "instanceType",
            "instancePlatform",
            "availabilityZone",
            "instanceMatchCriteria",
            "tenancy",
            "ebsOptimized",
            "ephemeralStorage",
            "placementGroupArn",
        }
    ),
    tagged=ec2_tagger,
)


def _read_action(context: Context) -> Mapping[str, Any] | None:
    group = context.state.get("autoscalingGroupName") or context.inputs["autoscalingGroupName"]
    answer = context.client.describe_scheduled_actions(AutoScalingGroupName=group, ScheduledActionNames=[context.id])
    found = answer["ScheduledUpdateGroupActions"]
    return dict(found[0]) if found else None


_PUT_ACTION = Call(
    "put_scheduled_update_group_action",
    {
        "AutoScalingGroupName": "autoscalingGroupName",
        "ScheduledActionName": "scheduledActionName",
        "StartTime": "startTime",
        "EndTime": "endTime",
        "Recurrence": "recurrence",
        "TimeZone": "timeZone",
        "MinSize": "minSize",
        "MaxSize": "maxSize",
        "DesiredCapacity": "desiredCapacity",
    },
)

SCHEDULE = Kind(
    token="aws:autoscaling/schedule:Schedule",
    service="autoscaling",
    create=_PUT_ACTION,
    id=lambda context: context.inputs["scheduledActionName"],
    read=_read_action,
    observed={
        "arn": "ScheduledActionARN",
        "autoscalingGroupName": "AutoScalingGroupName",
        "scheduledActionName": "ScheduledActionName",
        "startTime": _iso("StartTime"),
        "endTime": _iso("EndTime"),
        "recurrence": "Recurrence",
        "timeZone": "TimeZone",
        "minSize": "MinSize",
        "maxSize": "MaxSize",
        "desiredCapacity": "DesiredCapacity",
    },
    delete=Call(
        "delete_scheduled_action",
        {
            "AutoScalingGroupName": lambda context: context.state["autoscalingGroupName"],
            "ScheduledActionName": identity,
        },
    ),
    updates=(
        Update(
            ("startTime", "endTime", "recurrence", "timeZone", "minSize", "maxSize", "desiredCapacity"), _PUT_ACTION
        ),
    ),
    replaces=frozenset({"autoscalingGroupName", "scheduledActionName"}),
    delete_before_replace=True,
)


def _tag(context: Context) -> list[dict[str, Any]]:
    tag = context.inputs["tag"]
    return [
        {
            "ResourceId": context.inputs["autoscalingGroupName"],
            "ResourceType": "auto-scaling-group",
            "Key": tag["key"],
            "Value": str(tag["value"]),
            "PropagateAtLaunch": bool(tag["propagateAtLaunch"]),
        }
    ]


def _read_tag(context: Context) -> Mapping[str, Any] | None:
    group, key = context.id.split(",", 1)
    filters = [{"Name": "auto-scaling-group", "Values": [group]}, {"Name": "key", "Values": [key]}]
    found = context.client.describe_tags(Filters=filters)["Tags"]
    return dict(found[0]) if found else None


_PUT_TAG = Call("create_or_update_tags", {"Tags": _tag})

GROUP_TAG = Kind(
    token="aws:autoscaling/tag:Tag",
    service="autoscaling",
    create=_PUT_TAG,
    id=lambda context: f"{context.inputs['autoscalingGroupName']},{context.inputs['tag']['key']}",
    read=_read_tag,
    observed={
        "autoscalingGroupName": "ResourceId",
        "tag": lambda tag: {
            "key": tag["Key"],
            "value": tag["Value"],
            "propagateAtLaunch": tag["PropagateAtLaunch"],
        },
    },
    delete=Call(
        "delete_tags",
        {
            "Tags": lambda context: [
                {
                    "ResourceId": context.id.split(",", 1)[0],
                    "ResourceType": "auto-scaling-group",
                    "Key": context.id.split(",", 1)[1],
                }
            ]
        },
    ),
    updates=(Update(("tag",), _PUT_TAG),),
    replaces=frozenset({"autoscalingGroupName"}),
    replace_if=lambda old, new: ["tag"] if old.get("tag", {}).get("key") != new.get("tag", {}).get("key") else [],
)

KINDS = (CAPACITY_RESERVATION, SCHEDULE, GROUP_TAG)
