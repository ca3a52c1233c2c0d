"""CodeBuild projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .kinds import Call, Context, Failure, Kind, identity, tag_map

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


KINDS = (PROJECT,)
