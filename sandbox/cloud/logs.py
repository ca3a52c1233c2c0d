"""CloudWatch log groups, and the flow logs of a VPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kinds import Call, Context, Kind, Update, arn_tagger, describer, ec2_tagger, identity, tag_map


def _read_group(context: Context) -> Mapping[str, Any] | None:
    found = context.client.describe_log_groups(logGroupNamePrefix=context.id)["logGroups"]
    group = next((dict(item) for item in found if item["logGroupName"] == context.id), None)
    if group is None:
        return None
    arn = str(group["arn"]).removesuffix(":*")
    return {**group, "arn": arn, "tags": context.client.list_tags_for_resource(resourceArn=arn)["tags"]}


def _retention(context: Context) -> None:
    days = int(context.inputs.get("retentionInDays") or 0)
    if days:
        context.client.put_retention_policy(logGroupName=context.id, retentionInDays=days)
    elif context.old:
        context.client.delete_retention_policy(logGroupName=context.id)


LOG_GROUP = Kind(
    token="aws:cloudwatch/logGroup:LogGroup",
    service="logs",
    create=Call(
        "create_log_group",
        {"logGroupName": "name", "kmsKeyId": "kmsKeyId", "logGroupClass": "logGroupClass"},
        tags="tags",
    ),
    id=lambda context: context.inputs["name"],
    read=_read_group,
    observed={
        "arn": "arn",
        "name": "logGroupName",
        "retentionInDays": "retentionInDays",
        "kmsKeyId": "kmsKeyId",
        "tags": tag_map,
    },
    delete=Call("delete_log_group", {"logGroupName": identity}),
    updates=(Update(("retentionInDays",), _retention, at_creation=True),),
    replaces=frozenset({"name", "namePrefix", "logGroupClass", "kmsKeyId"}),
    auto_name="name",
    name_limit=512,
    tagged=arn_tagger("resourceArn", "tags", "tagKeys", as_list=False),
)


def _resource(context: Context) -> tuple[str, str]:
    """Which thing the flow log is of: EC2's word for it, and its id."""
    for source, kind in (("vpcId", "VPC"), ("subnetId", "Subnet"), ("eniId", "NetworkInterface")):
        if context.inputs.get(source):
            return kind, str(context.inputs[source])
    return "VPC", ""


FLOW_LOG = Kind(
    token="aws:ec2/flowLog:FlowLog",
    service="ec2",
    create=Call(
        "create_flow_logs",
        {
            "ResourceType": lambda context: _resource(context)[0],
            "ResourceIds": lambda context: [_resource(context)[1]],
            "TrafficType": "trafficType",
            "LogDestinationType": "logDestinationType",
            "LogDestination": "logDestination",
            "DeliverLogsPermissionArn": "iamRoleArn",
            "LogFormat": "logFormat",
            "MaxAggregationInterval": "maxAggregationInterval",
        },
        tags="spec:vpc-flow-log",
    ),
    id="FlowLogIds[0]",
    read=describer("describe_flow_logs", "FlowLogIds", "FlowLogs"),
    observed={"trafficType": "TrafficType", "logDestinationType": "LogDestinationType", "tags": tag_map},
    delete=Call("delete_flow_logs", {"FlowLogIds": lambda context: [context.id]}),
    replaces=frozenset(
        {
            "vpcId",
            "subnetId",
            "eniId",
            "trafficType",
            "logDestinationType",
            "logDestination",
            "iamRoleArn",
            "logFormat",
            "maxAggregationInterval",
        }
    ),
    arn="arn:aws:ec2:{region}:{account}:vpc-flow-log/{id}",
    tagged=ec2_tagger,
)

KINDS = (LOG_GROUP, FLOW_LOG)
