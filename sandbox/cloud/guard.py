"""What the cost guard is made of: functions, schedules, budgets."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Kind, Update, Value, identity, is_gone, tag_list, tag_map


def _read(operation: str, result: str | None, **params: Any) -> Any:
    """A reader whose parameters come from the context; ``result``: what of the answer, None: all of it."""

    def read(context: Context) -> Mapping[str, Any] | None:
        try:
            answer = getattr(context.client, operation)(**{key: source(context) for key, source in params.items()})
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        return dict(answer[result] if result else answer)

    return read


def _zip(context: Context) -> bytes:
    """The program's archive of text assets as the upload."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, asset in sorted((context.inputs.get("code") or {}).get("assets", {}).items()):
            # A date of its own, so that one content has one hash.
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), asset["text"])
    return buffer.getvalue()


def _function(context: Context) -> Mapping[str, Any] | None:
    found = _read("get_function", None, FunctionName=identity)(context)
    return {**found["Configuration"], "Tags": found.get("Tags") or {}} if found else None


def _tag_function(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    arn = context.state["arn"]
    if remove:
        context.client.untag_resource(Resource=arn, TagKeys=remove)
    if add:
        context.client.tag_resource(Resource=arn, Tags=dict(add))


_CONFIGURATION = {
    "Role": "role",
    "Handler": "handler",
    "Runtime": "runtime",
    "Description": "description",
    "Timeout": "timeout",
    "MemorySize": "memorySize",
    "Environment": "environment",
    "LoggingConfig": "loggingConfig",
}

FUNCTION = Kind(
    token="aws:lambda/function:Function",
    service="lambda",
    create=Call(
        "create_function",
        {
            "FunctionName": "name",
            "PackageType": "packageType",
            "Architectures": "architectures",
            **_CONFIGURATION,
            "Code.ZipFile": _zip,
        },
        tags="Tags",
    ),
    id="FunctionName",
    read=_function,
    observed={
        "name": "FunctionName",
        "arn": "FunctionArn",
        "role": "Role",
        "handler": "Handler",
        "runtime": "Runtime",
        "timeout": "Timeout",
        "memorySize": "MemorySize",
        "description": "Description",
        "architectures": "Architectures",
        "lastModified": "LastModified",
        "codeSha256": "CodeSha256",
        "sourceCodeHash": "CodeSha256",
        "version": "Version",
        "tags": tag_map,
    },
    delete=Call("delete_function", {"FunctionName": identity}),
    updates=(
        Update(
            ("code", "architectures"),
            Call(
                "update_function_code",
                {"FunctionName": identity, "Architectures": "architectures", "ZipFile": _zip},
            ),
        ),
        Update(
            tuple(_CONFIGURATION.values()),
            Call("update_function_configuration", {"FunctionName": identity, **_CONFIGURATION}),
        ),
    ),
    replaces=frozenset({"name", "packageType"}),
    auto_name="name",
    name_limit=64,
    volatile=frozenset({"lastModified", "codeSha256", "sourceCodeHash"}),
    tagged=_tag_function,
)

_PUT_RETRIES = Call(
    "put_function_event_invoke_config",
    {
        "FunctionName": "functionName",
        "MaximumRetryAttempts": "maximumRetryAttempts",
        "MaximumEventAgeInSeconds": "maximumEventAgeInSeconds",
    },
)

EVENT_INVOKE_CONFIG = Kind(
    token="aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig",
    service="lambda",
    create=_PUT_RETRIES,
    id=lambda context: str(context.inputs["functionName"]),
    read=_read("get_function_event_invoke_config", None, FunctionName=identity),
    observed={
        "maximumRetryAttempts": "MaximumRetryAttempts",
        "maximumEventAgeInSeconds": "MaximumEventAgeInSeconds",
    },
    delete=Call("delete_function_event_invoke_config", {"FunctionName": identity}),
    updates=(Update(("maximumRetryAttempts", "maximumEventAgeInSeconds"), _PUT_RETRIES),),
    replaces=frozenset({"functionName"}),
)


def _schedule_group(context: Context) -> Mapping[str, Any] | None:
    found = _read("get_schedule_group", None, Name=identity)(context)
    if found is None:
        return None
    return {**found, "Tags": context.client.list_tags_for_resource(ResourceArn=found["Arn"])["Tags"]}


def _tag_schedule_group(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    arn = context.state["arn"]
    if remove:
        context.client.untag_resource(ResourceArn=arn, TagKeys=remove)
    if add:
        context.client.tag_resource(ResourceArn=arn, Tags=tag_list(add))


SCHEDULE_GROUP = Kind(
    token="aws:scheduler/scheduleGroup:ScheduleGroup",
    service="scheduler",
    create=Call("create_schedule_group", {"Name": "name"}, tags="Tags"),
    id=lambda context: str(context.inputs["name"]),
    read=_schedule_group,
    observed={"name": "Name", "arn": "Arn", "state": "State", "tags": tag_map},
    delete=Call("delete_schedule_group", {"Name": identity}),
    replaces=frozenset({"name", "namePrefix"}),
    auto_name="name",
    name_limit=64,
    tagged=_tag_schedule_group,
)


def _group_of(context: Context) -> str:
    return context.id.split("/")[0]


def _name_of(context: Context) -> str:
    return context.id.split("/")[1]


_SCHEDULE = {
    "Name": "name",
    "GroupName": "groupName",
    "Description": "description",
    "ScheduleExpression": "scheduleExpression",
    "ScheduleExpressionTimezone": "scheduleExpressionTimezone",
    "FlexibleTimeWindow": "flexibleTimeWindow",
    "ActionAfterCompletion": "actionAfterCompletion",
    "State": "state",
    "Target": "target",
}

SCHEDULE = Kind(
    token="aws:scheduler/schedule:Schedule",
    service="scheduler",
    create=Call("create_schedule", _SCHEDULE),
    id=lambda context: f"{context.inputs.get('groupName') or 'default'}/{context.inputs['name']}",
    read=_read("get_schedule", None, GroupName=_group_of, Name=_name_of),
    observed={
        "name": "Name",
        "arn": "Arn",
        "groupName": "GroupName",
        "description": "Description",
        "scheduleExpression": "ScheduleExpression",
        "scheduleExpressionTimezone": "ScheduleExpressionTimezone",
        "actionAfterCompletion": "ActionAfterCompletion",
        "state": "State",
    },
    delete=Call("delete_schedule", {"GroupName": _group_of, "Name": _name_of}),
    updates=(
        Update(
            tuple(source for source in _SCHEDULE.values() if source not in ("name", "groupName")),
            Call("update_schedule", _SCHEDULE),
        ),
    ),
    replaces=frozenset({"name", "namePrefix", "groupName"}),
    auto_name="name",
    name_limit=64,
)


def _account(context: Context) -> str:
    return str(context.inputs.get("accountId") or context.account)


def _budget(context: Context) -> dict[str, Any]:
    given = context.inputs
    return {
        "BudgetName": given["name"],
        "BudgetType": given["budgetType"],
        "TimeUnit": given["timeUnit"],
        "BudgetLimit": {"Amount": str(given["limitAmount"]), "Unit": given["limitUnit"]},
        "CostFilters": {f["name"]: list(f["values"]) for f in given.get("costFilters") or []},
    }


def _notifications(context: Context) -> list[dict[str, Any]]:
    return [
        {
            "Notification": {
                "NotificationType": n["notificationType"],
                "ComparisonOperator": n["comparisonOperator"],
                "Threshold": n["threshold"],
                "ThresholdType": n["thresholdType"],
            },
            "Subscribers": [
                {"SubscriptionType": "EMAIL", "Address": address} for address in n.get("subscriberEmailAddresses") or []
            ],
        }
        for n in context.inputs.get("notifications") or []
    ]


def _set_notifications(context: Context) -> None:
    whose = {"AccountId": _account(context), "BudgetName": context.inputs["name"]}
    for old in context.client.describe_notifications_for_budget(**whose)["Notifications"]:
        context.client.delete_notification(**whose, Notification=old)
    for new in _notifications(context):
        context.client.create_notification(**whose, **new)


def _budget_arn(context: Context) -> str:
    account, name = context.id.split(":", 1)
    return f"arn:aws:budgets::{account}:budget/{name}"


def _read_budget(context: Context) -> Mapping[str, Any] | None:
    account, name = context.id.split(":", 1)
    found = _read("describe_budget", "Budget", AccountId=Value(account), BudgetName=Value(name))(context)
    if found is None:
        return None
    tags = context.client.list_tags_for_resource(ResourceARN=_budget_arn(context))["ResourceTags"]
    return {**found, "Arn": _budget_arn(context), "AccountId": account, "Tags": tags}


def _tag_budget(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    if remove:
        context.client.untag_resource(ResourceARN=_budget_arn(context), ResourceTagKeys=remove)
    if add:
        context.client.tag_resource(ResourceARN=_budget_arn(context), ResourceTags=tag_list(add))


BUDGET = Kind(
    token="aws:budgets/budget:Budget",
    service="budgets",
    create=Call(
        "create_budget",
        {"AccountId": _account, "Budget": _budget, "NotificationsWithSubscribers": _notifications},
        tags="ResourceTags",
    ),
    id=lambda context: f"{_account(context)}:{context.inputs['name']}",
    read=_read_budget,
    observed={
        "name": "BudgetName",
        "arn": "Arn",
        "accountId": "AccountId",
        "budgetType": "BudgetType",
        "timeUnit": "TimeUnit",
        "limitAmount": "BudgetLimit.Amount",
        "limitUnit": "BudgetLimit.Unit",
        "tags": tag_map,
    },
    delete=Call(
        "delete_budget",
        {"AccountId": lambda c: c.id.split(":", 1)[0], "BudgetName": lambda c: c.id.split(":", 1)[1]},
    ),
    updates=(
        Update(
            ("budgetType", "timeUnit", "limitAmount", "limitUnit", "costFilters"),
            Call("update_budget", {"AccountId": _account, "NewBudget": _budget}),
        ),
        Update(("notifications",), _set_notifications),
    ),
    replaces=frozenset({"name", "namePrefix", "accountId"}),
    auto_name="name",
    name_limit=100,
    tagged=_tag_budget,
)

KINDS = (FUNCTION, EVENT_INVOKE_CONFIG, SCHEDULE_GROUP, SCHEDULE, BUDGET)
