"""Auto Scaling of the stand-in account: the groups of EKS' node groups, their tags, scheduled actions and failed launches."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from .account_capacity import Start, moment
from .account_errors import Refusal

Action = dict[str, Any]


class Scaling:
    """What belongs to Auto Scaling groups that EKS made."""

    def __init__(self) -> None:
        self._tags: dict[str, dict[str, dict[str, Any]]] = {}
        self._actions: dict[tuple[str, str], Action] = {}
        self._activities: dict[str, list[dict[str, Any]]] = {}

    def reset(self) -> None:
        """Forget everything."""
        for store in (self._tags, self._actions, self._activities):
            store.clear()

    def forget(self, group: str) -> None:
        """The group is gone, and with it all that belongs to it."""
        self._tags.pop(group, None)
        self._activities.pop(group, None)
        for key in [key for key in self._actions if key[0] == group]:
            del self._actions[key]

    def sized(self, group: str, start: Start) -> None:
        """The group was made or got another size."""
        self._tags.setdefault(group, {})
        now = datetime.now(UTC)
        self._activities[group] = [
            {
                "ActivityId": str(uuid.uuid4()),
                "AutoScalingGroupName": group,
                "Description": "Launching a new EC2 instance",
                "Cause": "a difference between desired and actual capacity",
                "StartTime": now,
                "EndTime": now,
                "StatusCode": "Failed",
                "StatusMessage": issue["message"],
                "Progress": 100,
            }
            for issue in start.issues
        ] + self._activities.get(group, [])

    def activities(self, group: str) -> list[dict[str, Any]]:
        """Failed launches, the newest first."""
        return list(self._activities.get(group, []))

    def known(self, group: str) -> None:
        """Refuses a group that is not there."""
        if group not in self._tags:
            raise Refusal("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup {group} not found")

    def tags(self, group: str) -> dict[str, dict[str, Any]]:
        """Tags of a group by key."""
        self.known(group)
        return self._tags[group]

    def tagged(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every group's name with each of its tags."""
        for group, tags in self._tags.items():
            for tag in tags.values():
                yield group, tag

    def put(self, group: str, action: Action) -> None:
        """A scheduled action. Refuses a start in the past, as AWS does."""
        self.known(group)
        start = action.get("StartTime")
        if start is not None and start <= datetime.now(UTC):
            raise Refusal("ValidationError", "Given start time is in the past")
        self._actions[group, action["ScheduledActionName"]] = action

    def actions(self, group: str | None = None, names: list[str] | None = None) -> list[Action]:
        """Scheduled actions of a group, or all."""
        return [
            action
            for (where, name), action in self._actions.items()
            if group in (None, where) and (not names or name in names)
        ]

    def delete(self, group: str, name: str) -> None:
        """Refuses an action that is not there: one that has run is not."""
        if self._actions.pop((group, name), None) is None:
            raise Refusal("ValidationError", "Scheduled action name not found")

    def due(self, now: datetime) -> list[Action]:
        """Takes out the actions that would have run by ``now``, in the order of their times."""
        found = [action for action in self._actions.values() if action["StartTime"] <= now]
        for action in found:
            del self._actions[action["AutoScalingGroupName"], action["ScheduledActionName"]]
        return sorted(found, key=lambda action: action["StartTime"])


SCALING = Scaling()
"""Of the account of this process."""


class SandboxAutoScalingResponse(AutoScalingResponse):
    """Requests about the groups of node groups; other groups there are none."""

    def put_scheduled_update_group_action(self) -> ActionResult:
        """PutScheduledUpdateGroupAction."""
        group, name = self._get_param("AutoScalingGroupName"), self._get_param("ScheduledActionName")
        action = {
            "AutoScalingGroupName": group,
            "ScheduledActionName": name,
            "ScheduledActionARN": (
                f"arn:aws:autoscaling:{self.region}:{self.current_account}:scheduledUpdateGroupAction:"
                f"{uuid.uuid4()}:autoScalingGroupName/{group}:scheduledActionName/{name}"
            ),
            "StartTime": moment(self._get_param("StartTime")),
            "EndTime": moment(self._get_param("EndTime")),
            "Recurrence": self._get_param("Recurrence"),
            "TimeZone": self._get_param("TimeZone"),
            **{key: self._get_int_param(key) for key in ("MinSize", "MaxSize", "DesiredCapacity")},
        }
        SCALING.put(group, {key: value for key, value in action.items() if value is not None})
        return EmptyResult()

    def describe_scheduled_actions(self) -> ActionResult:
        """DescribeScheduledActions."""
        found = SCALING.actions(self._get_param("AutoScalingGroupName"), self._get_param("ScheduledActionNames", []))
        return ActionResult({"ScheduledUpdateGroupActions": found})

    def delete_scheduled_action(self) -> ActionResult:
        """DeleteScheduledAction."""
        SCALING.delete(self._get_param("AutoScalingGroupName"), self._get_param("ScheduledActionName"))
        return EmptyResult()

    def create_or_update_tags(self) -> ActionResult:
        """CreateOrUpdateTags."""
        for tag in self._get_param("Tags", []):
            SCALING.tags(tag["ResourceId"])[tag["Key"]] = dict(tag)
        return EmptyResult()

    def delete_tags(self) -> ActionResult:
        """DeleteTags."""
        for tag in self._get_param("Tags", []):
            SCALING.tags(tag["ResourceId"]).pop(tag["Key"], None)
        return EmptyResult()

    def describe_tags(self) -> ActionResult:
        """DescribeTags, by group and key."""
        filters: Mapping[str, list[str]] = {f["Name"]: f.get("Values", []) for f in self._get_param("Filters", [])}
        found = [
            tag
            for group, tag in SCALING.tagged()
            if group in filters.get("auto-scaling-group", [group]) and tag["Key"] in filters.get("key", [tag["Key"]])
        ]
        return ActionResult({"Tags": found})

    def describe_scaling_activities(self) -> ActionResult:
        """DescribeScalingActivities: the failed launches."""
        return ActionResult({"Activities": SCALING.activities(self._get_param("AutoScalingGroupName"))})
