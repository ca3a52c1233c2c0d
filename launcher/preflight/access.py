"""Whose credentials these are, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable

from eks_fsdp.launcher.aws import AwsError
from eks_fsdp.spec.settings import Settings

from .check import Check, Context, failed, ok, unchecked, warning

PER_REQUEST = 100
"""Actions of one SimulatePrincipalPolicy request."""

_ALWAYS = (
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
)
_CLUSTER = (
    "eks:CreateCluster",
    "eks:DescribeCluster",
    "eks:UpdateClusterConfig",
    "eks:UpdateClusterVersion",
    "eks:DeleteCluster",
    "eks:CreateAddon",
    "eks:UpdateAddon",
    "eks:DeleteAddon",
    "eks:CreateNodegroup",
    "eks:DescribeNodegroup",
    "eks:UpdateNodegroupConfig",
    "eks:UpdateNodegroupVersion",
    "eks:DeleteNodegroup",
    "eks:CreateAccessEntry",
    "eks:AssociateAccessPolicy",
    "eks:DeleteAccessEntry",
    "eks:CreatePodIdentityAssociation",
    "eks:DeletePodIdentityAssociation",
    "eks:TagResource",
    "iam:CreateRole",
    "iam:PassRole",
    "iam:AttachRolePolicy",
    "iam:DetachRolePolicy",
    "iam:PutRolePolicy",
    "iam:DeleteRolePolicy",
    "iam:DeleteRole",
    "iam:TagRole",
    "iam:CreateServiceLinkedRole",
    "ec2:CreateSecurityGroup",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:RevokeSecurityGroupEgress",
    "ec2:DeleteSecurityGroup",
    "ec2:CreateTags",
    "logs:CreateLogGroup",
    "logs:PutRetentionPolicy",
    "logs:DeleteLogGroup",
)
_NETWORK = (
    "ec2:CreateVpc",
    "ec2:ModifyVpcAttribute",
    "ec2:DeleteVpc",
    "ec2:CreateSubnet",
    "ec2:DeleteSubnet",
    "ec2:CreateInternetGateway",
    "ec2:AttachInternetGateway",
    "ec2:DeleteInternetGateway",
    "ec2:AllocateAddress",
    "ec2:ReleaseAddress",
    "ec2:CreateNatGateway",
    "ec2:DeleteNatGateway",
    "ec2:CreateRouteTable",
    "ec2:CreateRoute",
    "ec2:AssociateRouteTable",
    "ec2:DeleteRouteTable",
    "ec2:CreateVpcEndpoint",
    "ec2:DeleteVpcEndpoints",
)
_GPU_NODES = (
    "ec2:CreateLaunchTemplate",
    "ec2:CreateLaunchTemplateVersion",
    "ec2:ModifyLaunchTemplate",
    "ec2:DeleteLaunchTemplate",
    # EKS starts the instances with the rights of whoever asked for the group.
    "ec2:RunInstances",
    # What changes, such as the expiry, is a tag of the Auto Scaling group: in the launch template it would make new nodes.
    "autoscaling:CreateOrUpdateTags",
    "autoscaling:DeleteTags",
)
_GUARD = (
    "scheduler:CreateScheduleGroup",
    "scheduler:DeleteScheduleGroup",
    "scheduler:TagResource",
    "scheduler:CreateSchedule",
    "scheduler:UpdateSchedule",
    "scheduler:DeleteSchedule",
    "lambda:CreateFunction",
    "lambda:UpdateFunctionCode",
    "lambda:UpdateFunctionConfiguration",
    "lambda:DeleteFunction",
    "lambda:PutFunctionEventInvokeConfig",
    "lambda:DeleteFunctionEventInvokeConfig",
    "lambda:TagResource",
)
_CODEBUILD = (
    "codebuild:CreateProject",
    "codebuild:UpdateProject",
    "codebuild:DeleteProject",
    "s3:CreateBucket",
    "s3:PutBucketPublicAccessBlock",
    "s3:PutLifecycleConfiguration",
    "s3:PutBucketTagging",
    # Sources that were uploaded go with it.
    "s3:ListBucketVersions",
    "s3:DeleteObject",
    "s3:DeleteBucket",
)


def needed_actions(settings: Settings) -> list[str]:
    """IAM actions that a stack's `up` and `destroy` take, sorted."""
    actions = set(_ALWAYS)
    if settings.cluster.mode == "create":
        actions |= {*_CLUSTER, *(_NETWORK if settings.network.existing is None else ())}
        if settings.network.existing is None and settings.network.pod_cidr is not None:
            actions |= {"ec2:AssociateVpcCidrBlock", "ec2:DisassociateVpcCidrBlock"}
        if settings.network.flow_logs:
            actions |= {"ec2:CreateFlowLogs", "ec2:DeleteFlowLogs"}
        if settings.gpu_nodes:
            actions |= set(_GPU_NODES)
        if any(group.capacity.reserved for group in settings.gpu_nodes):
            actions.add("ec2:DescribeCapacityReservations")
        if any(group.capacity.kind == "capacity-block" for group in settings.gpu_nodes):
            actions |= {"autoscaling:PutScheduledUpdateGroupAction", "autoscaling:DeleteScheduledAction"}
        if any(group.placement_group.mode in (None, "auto") and group.uses_efa for group in settings.gpu_nodes):
            actions |= {"ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"}
        if settings.image.repository is None:
            actions |= {"ecr:CreateRepository", "ecr:DeleteRepository", "ecr:PutLifecyclePolicy", "ecr:TagResource"}
        if settings.storage.mode == "fsx" and settings.storage.file_system_id is None:
            actions |= {"fsx:CreateFileSystem", "fsx:DeleteFileSystem", "fsx:TagResource"}
        if settings.image.codebuild:
            actions |= set(_CODEBUILD)
        if settings.guard.expiry is not None:
            actions |= set(_GUARD)
        if settings.guard.budget_usd is not None:
            actions.add("budgets:ModifyBudget")
    elif settings.cluster.name is not None:
        actions.add("eks:DescribeCluster")
    if settings.storage.data_repository is not None:
        actions |= {"fsx:CreateDataRepositoryAssociation", "fsx:DeleteDataRepositoryAssociation"}
    if settings.hugging_face.secret_arn is not None:
        actions.add("secretsmanager:GetSecretValue")
    return sorted(actions)


def check_account(at: Context) -> Iterable[Check]:
    """The credentials work, and are of an account that the stack may touch."""
    name = "AWS account"
    try:
        caller = at.caller
    except AwsError as error:
        yield failed(name, str(error), "set AWS_PROFILE or sign in; then run preflight again")
        return
    who = f"{caller['Account']} as {caller['Arn'].split(':', 5)[-1]}"
    allowed = at.settings.allowed_account_ids
    if allowed and caller["Account"] not in allowed:
        yield failed(name, who, f"use credentials of {', '.join(allowed)}, or change allowed_account_ids")
    elif allowed:
        yield ok(name, f"{who}, as allowed_account_ids says")
    else:
        yield Check(
            name=name,
            state="warning",
            seen=who,
            do=f"set allowed_account_ids: ['{caller['Account']}'], so that no other account is ever touched",
        )


def principal_of(arn: str) -> str | None:
    """The IAM role or user behind a caller's ARN; None where policies of it cannot be simulated.

    A role's path is not in its session's ARN: for a role with one, AWS then answers that there is no such role.
    """
    parts = arn.split(":", 5)
    kind, _, rest = parts[5].partition("/")
    if kind == "assumed-role":
        return f"arn:{parts[1]}:iam::{parts[4]}:role/{rest.split('/')[0]}"
    return arn if kind == "user" else None


def check_creator(at: Context) -> Iterable[Check]:
    """Nobody who creates the cluster is among those whom the settings let in: EKS makes the creator's entry itself."""
    caller = principal_of(at.caller["Arn"])
    settings = at.settings
    own = [f"cluster.access.{name}" for name, entry in settings.cluster.access.items() if entry.principal_arn == caller]
    own += [f"teams.{name}.principal_arns" for name, team in settings.teams.items() if caller in team.principal_arns]
    if own:
        yield warning(
            "Access entries",
            f"{', '.join(own)}: {caller} is who you are now",
            "leave it out where you create the cluster: EKS makes an administrator's entry for its creator, and refuses a second one",
        )


def check_actions(at: Context) -> Iterable[Check]:
    """The caller may do what the stack needs, as far as IAM can say beforehand."""
    name = "API access"
    principal = principal_of(at.caller["Arn"])
    if principal is None:
        yield unchecked(name, f"{at.caller['Arn']}: IAM simulates the policies of users and roles only")
        return
    actions = needed_actions(at.settings)
    refused: list[str] = []
    try:
        for start in range(0, len(actions), PER_REQUEST):
            answers = at.aws.all(
                "iam",
                "simulate_principal_policy",
                "EvaluationResults",
                PolicySourceArn=principal,
                ActionNames=actions[start : start + PER_REQUEST],
            )
            refused += [str(a["EvalActionName"]) for a in answers if a["EvalDecision"] != "allowed"]
    except AwsError as error:
        yield unchecked(name, f"not checked: {error}", "nothing, if you know that this role may deploy the stack")
        return
    if refused:
        shown = ", ".join(sorted(refused)[:6]) + (f" and {len(refused) - 6} more" if len(refused) > 6 else "")
        yield failed(
            name,
            f"{len(refused)} of {len(actions)} actions are refused: {shown}",
            f"let {principal.rsplit('/', 1)[-1]} do these, or deploy with another role",
        )
    else:
        yield ok(name, f"all {len(actions)} actions that the stack needs are allowed (conditions and SCPs aside)")
