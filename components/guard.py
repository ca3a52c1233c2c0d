"""The expiry of a stack, enforced by AWS itself: a schedule calls a function that ends the GPU node groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pulumi
import pulumi_aws as aws

from eks_fsdp.spec.names import TAG_EXPIRY, TAG_GPU_GROUP, TAG_STACK
from eks_fsdp.spec.rules.guard import has_expired
from eks_fsdp.spec.settings import GuardSettings, Settings

Action = Literal["scale", "delete"]
SOURCE = Path(__file__).parent / "guards" / "expire.py"
LOG_DAYS = 90
FUNCTION_SECONDS = 900
"""AWS' longest. A group that is being updated refuses changes for minutes, and waiting costs next to nothing."""
RETRIES = 2
"""AWS' most, of a call that the function could not do whole."""


def expiry_tag(guard: GuardSettings) -> dict[str, str]:
    """The tag that says when the guard ends what carries it.

    On cluster, node groups and file systems alone: it changes with every renewal, and part of a launch template it would
    make new nodes of all.
    """
    return {TAG_EXPIRY: guard.expiry.astimezone(UTC).isoformat() if guard.expiry else "never"}


def as_of(settings: Settings, now: datetime) -> Settings:
    """The settings that hold at ``now``: after the expiry, every GPU group is at 0 whatever the stack file says."""
    if not has_expired(settings, now):
        return settings
    groups = [
        group.model_copy(
            update={"desired": 0, "min": 0, "capacity": group.capacity.model_copy(update={"scheduled_nodes": 0})}
        )
        for group in settings.gpu_nodes
    ]
    return settings.model_copy(update={"gpu_nodes": groups})


def expired_warning(settings: Settings, now: datetime) -> str | None:
    """What a preview says of an expiry that has passed; None where there is nothing to say."""
    if not has_expired(settings, now):
        return None
    asked = [f"{group.name} ({group.desired})" for group in settings.gpu_nodes if group.desired]
    kept = f"; kept at 0 in spite of desired: {', '.join(asked)}" if asked else ""
    return (
        f"guard.expiry: {settings.guard.expiry} has passed: all GPU groups are at 0 until it is renewed{kept}. "
        "After renewing it, `pulumi up --refresh` brings the nodes back"
    )


def due(guard: GuardSettings, now: datetime) -> dict[Action, datetime]:
    """When each action is still to be done. What is past has no schedule: the program itself keeps the groups at 0."""
    if guard.expiry is None:
        return {}
    planned: dict[Action, datetime] = {"scale": guard.expiry}
    if guard.delete_after_hours is not None:
        planned["delete"] = guard.expiry + timedelta(hours=guard.delete_after_hours)
    return {action: moment for action, moment in planned.items() if moment > now}


def once(moment: datetime) -> str:
    """EventBridge Scheduler's expression for one moment, to be read in UTC."""
    return f"at({moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S})"


def trust_policy(service: str, source_arn: str | None = None) -> str:
    """JSON of the policy that lets an AWS service take on a role; ``source_arn``: on behalf of that resource alone."""
    statement: dict[str, object] = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": f"{service}.amazonaws.com"},
    }
    if source_arn is not None:
        statement["Condition"] = {"StringEquals": {"aws:SourceArn": source_arn}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def function_policy(log_group_arn: str, cluster: str, stack: str) -> str:
    """JSON of the function's rights: read the cluster's node groups, change those of the stack that have GPUs, and log."""
    partition, region, account = (log_group_arn.split(":")[index] for index in (1, 3, 4))
    eks = f"arn:{partition}:eks:{region}:{account}"
    groups = f"{eks}:nodegroup/{cluster}/*/*"
    ours = {
        "StringEquals": {f"aws:ResourceTag/{TAG_STACK}": stack},
        "Null": {f"aws:ResourceTag/{TAG_GPU_GROUP}": "false"},
    }
    statements = [
        {"Effect": "Allow", "Action": "eks:ListNodegroups", "Resource": f"{eks}:cluster/{cluster}"},
        {"Effect": "Allow", "Action": "eks:DescribeNodegroup", "Resource": groups},
        {
            "Effect": "Allow",
            "Action": ["eks:UpdateNodegroupConfig", "eks:DeleteNodegroup"],
            "Resource": groups,
            "Condition": ours,
        },
        {
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": f"{log_group_arn}:*",
        },
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def invoke_policy(function_arn: str) -> str:
    """JSON of the scheduler's right: to call the function."""
    statement = {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": function_arn}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass(frozen=True, kw_only=True)
class CostGuardArgs:
    """Inputs of `CostGuard`."""

    cluster_name: pulumi.Input[str]
    """The EKS cluster of the node groups."""
    stack: str
    """Value of the tag ``eksfsdp:stack`` on them. They have ``eksfsdp:gpu-group`` too."""
    due: Mapping[Action, datetime]
    """What is to be done when; see `due`."""
    tags: Mapping[str, str]
    """Tags of every AWS resource."""


class CostGuard(pulumi.ComponentResource):
    """A function that scales the stack's GPU node groups to zero or deletes them, and the schedules that call it."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: CostGuardArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:guard:CostGuard", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        log = aws.cloudwatch.LogGroup(f"{name}-log", retention_in_days=LOG_DAYS, tags=args.tags, opts=child)
        role = aws.iam.Role(
            f"{name}-function", assume_role_policy=trust_policy("lambda"), description="Ends GPU node groups",
            tags=args.tags, opts=child,
        )  # fmt: skip
        rights = aws.iam.RolePolicy(
            f"{name}-function-rights",
            role=role.name,
            policy=pulumi.Output.all(log.arn, args.cluster_name).apply(
                lambda all_: function_policy(all_[0], all_[1], args.stack)
            ),
            opts=child,
        )
        function = aws.lambda_.Function(
            f"{name}-expire",
            description=f"Ends the GPU node groups of stack {args.stack} at its expiry",
            runtime="python3.13",
            architectures=["arm64"],
            handler=f"{SOURCE.stem}.handler",
            # From text, not from a file: the hash is then the same on every machine.
            code=pulumi.AssetArchive({SOURCE.name: pulumi.StringAsset(SOURCE.read_text())}),
            role=role.arn,
            timeout=FUNCTION_SECONDS,
            memory_size=256,
            environment={"variables": {"CLUSTER": args.cluster_name, "STACK": args.stack}},
            logging_config={"log_format": "Text", "log_group": log.name},
            tags=args.tags,
            # Called before it has its rights, it would fail.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[rights]),
        )
        retries = aws.lambda_.FunctionEventInvokeConfig(
            f"{name}-retries", function_name=function.name, maximum_retry_attempts=RETRIES, opts=child
        )
        # A group of its own: schedules themselves have no tags, and the scheduler's role is good for this group alone.
        group = aws.scheduler.ScheduleGroup(f"{name}-schedules", tags=args.tags, opts=child)
        caller = aws.iam.Role(
            f"{name}-scheduler",
            assume_role_policy=group.arn.apply(lambda arn: trust_policy("scheduler", arn)),
            description="Calls the function at the expiry",
            tags=args.tags,
            opts=child,
        )
        may_call = aws.iam.RolePolicy(
            f"{name}-scheduler-rights", role=caller.name, policy=function.arn.apply(invoke_policy), opts=child
        )
        for action, moment in args.due.items():
            aws.scheduler.Schedule(
                f"{name}-{action}",
                group_name=group.name,
                description=f"{action} the GPU node groups of stack {args.stack}",
                schedule_expression=once(moment),
                schedule_expression_timezone="UTC",
                flexible_time_window={"mode": "OFF"},
                # Deleted by itself, a refresh would find it missing.
                action_after_completion="NONE",
                target={
                    "arn": function.arn,
                    "role_arn": caller.arn,
                    "input": json.dumps({"action": action}),
                    "retry_policy": {"maximum_event_age_in_seconds": 86_400, "maximum_retry_attempts": 185},
                },
                opts=pulumi.ResourceOptions(parent=self, depends_on=[may_call, retries]),
            )
        self.function_name = function.name
        self.register_outputs({"function_name": self.function_name})
