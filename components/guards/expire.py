"""The expiry of a stack: an AWS Lambda function that ends the stack's GPU node groups.

It runs outside the cluster and knows the groups by their tags, so that it needs neither the program nor its state.
Standard library and boto3 alone: this file is the whole of what is uploaded.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError

STACK_TAG = "eksfsdp:stack"
GROUP_TAG = "eksfsdp:gpu-group"
"""A node group with this tag has GPU nodes."""
RETRY_SECONDS = 15.0
"""Between two tries: a node group that is being updated refuses another change for minutes."""
MARGIN_SECONDS = 30.0
"""Left of the function's time for the report."""


class Unfinished(RuntimeError):
    """Some group could not be ended. AWS Lambda calls the function again for it."""


def handler(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Entry point. ``event``: ``{"action": "scale" | "delete"}``. Raises `Unfinished`, and `KeyError` for another action."""
    report = end_groups(
        boto3.client("eks"),
        os.environ["CLUSTER"],
        os.environ["STACK"],
        str(event["action"]),
        seconds_left=lambda: context.get_remaining_time_in_millis() / 1000 - MARGIN_SECONDS,
    )
    print(json.dumps(report, sort_keys=True))
    if report["failed"]:
        raise Unfinished(f"{report['action']} of {', '.join(report['failed'])}: {report['failed']}")
    return report


def end_groups(
    eks: Any,
    cluster: str,
    stack: str,
    action: str,
    *,
    seconds_left: Callable[[], float],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Do ``action`` to each GPU group of the stack, one's failure notwithstanding the others, and again until time is over.

    Returns ``{"action", "cluster", "stack", "done": {group: what}, "failed": {group: why}}``; done twice, it changes nothing.
    """
    act = {"scale": _scale, "delete": _delete}[action]
    done: dict[str, str] = {}
    while True:
        failed: dict[str, str] = {}
        for name in _names(eks, cluster):
            if name not in done:
                try:
                    done |= act(
                        eks, eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"], stack
                    )
                except ClientError as error:
                    if _code(error) == "ResourceNotFoundException":
                        done[name] = "is gone"
                    else:
                        failed[name] = str(error)
        if not failed or seconds_left() < RETRY_SECONDS:
            return {"action": action, "cluster": cluster, "stack": stack, "done": done, "failed": failed}
        sleep(RETRY_SECONDS)


def _names(eks: Any, cluster: str) -> list[str]:
    try:
        pages = eks.get_paginator("list_nodegroups").paginate(clusterName=cluster)
        return [name for page in pages for name in page["nodegroups"]]
    except ClientError as error:
        if _code(error) == "ResourceNotFoundException":
            return []  # No cluster, no nodes.
        raise


def _is_ours(group: Mapping[str, Any], stack: str) -> bool:
    tags = group.get("tags") or {}
    return tags.get(STACK_TAG) == stack and GROUP_TAG in tags


def _scale(eks: Any, group: Mapping[str, Any], stack: str) -> dict[str, str]:
    name, scaling = group["nodegroupName"], group["scalingConfig"]
    if not _is_ours(group, stack):
        return {}
    if group["status"] == "DELETING":
        return {name: "is being deleted"}
    if scaling["desiredSize"] == scaling["minSize"] == 0:
        return {name: "is at 0"}
    eks.update_nodegroup_config(
        clusterName=group["clusterName"],
        nodegroupName=name,
        scalingConfig={"minSize": 0, "desiredSize": 0, "maxSize": scaling["maxSize"]},
    )
    return {name: f"from {scaling['desiredSize']} to 0"}


def _delete(eks: Any, group: Mapping[str, Any], stack: str) -> dict[str, str]:
    name = group["nodegroupName"]
    if not _is_ours(group, stack):
        return {}
    if group["status"] == "DELETING":
        return {name: "is being deleted"}
    eks.delete_nodegroup(clusterName=group["clusterName"], nodegroupName=name)
    return {name: "deleted"}


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code"))
