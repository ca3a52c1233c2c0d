"""CodeBuild projects, and log groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from .kinds import Call, Context, Failure, Kind, Update, identity, is_gone, tag_list, tag_map

_PROJECT = {
    "description": "description",
    "source": "source",
    "sourceVersion": "sourceVersion",
    "artifacts": "artifacts",
    "environment": "environment",
    "serviceRole": "serviceRole",
    "timeoutInMinutes": "buildTimeout",
    "queuedTimeoutInMinutes": "queuedTimeout",
    "logsConfig": "logsConfig",
    "cache": "cache",
    "encryptionKey": "encryptionKey",
    "concurrentBuildLimit": "concurrentBuildLimit",
}


def _read_project(context: Context) -> Mapping[str, Any] | None:
    found = context.client.batch_get_projects(names=[context.id])["projects"]
    return dict(found[0]) if found else None


def _log_group_named(context: Context) -> Iterable[Failure]:
    logs = context.inputs.get("logsConfig")
    cloud_watch = logs.get("cloudwatchLogs") if isinstance(logs, Mapping) else None
    if isinstance(cloud_watch, Mapping) and cloud_watch.get("streamName") and not cloud_watch.get("groupName"):
        yield "logsConfig", "a stream needs the name of its group"


def _with_name(context: Context) -> str:
    return str(context.inputs["name"])


PROJECT = Kind(
    token="aws:codebuild/project:Project",
    service="codebuild",
    create=Call("create_project", {"name": "name", **_PROJECT}, tags="tags"),
    id=_with_name,
    read=_read_project,
    observed={
        "name": "name",
        "arn": "arn",
        "description": "description",
        "serviceRole": "serviceRole",
        "tags": tag_map,
    },
    delete=Call("delete_project", {"name": identity}),
    replaces=frozenset({"name", *_PROJECT.values()}),
    names={"logsConfig.cloudwatchLogs": "cloudWatchLogs"},
    auto_name="name",
    name_limit=150,
    checks=(_log_group_named,),
    delete_before_replace=True,
)


def _read_group(context: Context) -> Mapping[str, Any] | None:
    found = context.client.describe_log_groups(logGroupNamePrefix=context.id)["logGroups"]
    group = next((group for group in found if group["logGroupName"] == context.id), None)
    if group is None:
        return None
    tags = context.client.list_tags_log_group(logGroupName=context.id)["tags"]
    return {**group, "Tags": tag_list(tags)}


def _retain(context: Context) -> None:
    days = context.inputs.get("retentionInDays")
    if days:
        context.client.put_retention_policy(logGroupName=context.id, retentionInDays=int(days))
        return
    try:
        context.client.delete_retention_policy(logGroupName=context.id)
    except ClientError as error:
        if not is_gone(error):
            raise


def _tag_group(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    if remove:
        context.client.untag_log_group(logGroupName=context.id, tags=remove)
    if add:
        context.client.tag_log_group(logGroupName=context.id, tags=dict(add))


LOG_GROUP = Kind(
    token="aws:cloudwatch/logGroup:LogGroup",
    service="logs",
    create=Call("create_log_group", {"logGroupName": "name", "kmsKeyId": "kmsKeyId"}, tags="tags"),
    id=_with_name,
    read=_read_group,
    observed={"name": "logGroupName", "retentionInDays": "retentionInDays", "tags": tag_map},
    arn="arn:aws:logs:{region}:{account}:log-group:{id}",
    delete=Call("delete_log_group", {"logGroupName": identity}),
    updates=(Update(("retentionInDays",), _retain, at_creation=True),),
    replaces=frozenset({"name", "kmsKeyId"}),
    ignored=frozenset({"skipDestroy"}),
    auto_name="name",
    name_limit=512,
    tagged=_tag_group,
)

KINDS = (PROJECT, LOG_GROUP)
