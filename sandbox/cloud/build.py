"""CodeBuild projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kinds import Call, Context, Kind, Update, identity

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


def _tags(context: Context) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in context.tags.items()]


def _seen_tags(described: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in described.get("tags") or []}


def _retag(context: Context, add: Mapping[str, str], remove: list[str]) -> None:
    # The API has no other way: it takes all of them at once.
    context.client.update_project(name=context.id, tags=_tags(context))


def _with_name(context: Context) -> str:
    return str(context.inputs["name"])


PROJECT = Kind(
    token="aws:codebuild/project:Project",
    service="codebuild",
    create=Call("create_project", {"name": "name", **_PROJECT, "tags": _tags}),
    id=_with_name,
    read=_read_project,
    observed={
        "name": "name",
        "arn": "arn",
        "description": "description",
        "serviceRole": "serviceRole",
        "tags": _seen_tags,
    },
    delete=Call("delete_project", {"name": identity}),
    updates=(Update(tuple(_PROJECT.values()), Call("update_project", {"name": identity, **_PROJECT})),),
    replaces=frozenset({"name"}),
    tagged=_retag,
    names={"logsConfig.cloudwatchLogs": "cloudWatchLogs"},
    auto_name="name",
    name_limit=150,
)


KINDS = (PROJECT,)
