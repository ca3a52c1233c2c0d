"""Fixtures of the unit tests: golden files, and programs declared against Pulumi's mocks (no engine, no network)."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks
import pulumi_kubernetes as k8s
import pytest
from google.protobuf.json_format import MessageToDict
from pulumi.runtime import mocks
from pulumi.runtime.proto.resource_pb2 import RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES, DeploymentInfo
from pulumi.runtime.stack import run_pulumi_func

with warnings.catch_warnings():
    # Loaded on first use, with warnings about classes that nobody here uses.
    warnings.simplefilter("ignore")
    _ = (aws.cloudwatch.LogGroup, aws.lambda_.Function, aws.scheduler.Schedule, aws.budgets.Budget)
    _ = (
        aws.ec2.Vpc,
        aws.eks.NodeGroup,
        aws.autoscaling.Tag,
        aws.ecr.Repository,
        aws.fsx.LustreFileSystem,
        aws.iam.Role,
        aws.vpc,
        aws.s3.Bucket,
        aws.codebuild.Project,
        aws.cloudwatch.LogGroup,
    )
    _ = (k8s.batch.v1.Job, k8s.apps.v1.Deployment, k8s.core.v1.Pod, k8s.rbac.v1.Role, k8s.kustomize.v2.Directory)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare text with ``golden/NAME``; with ``EKS_FSDP_UPDATE_GOLDEN=1`` write it instead."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get("EKS_FSDP_UPDATE_GOLDEN"):
            file.write_text(text)
        assert file.exists(), f"{file} is missing: make it with EKS_FSDP_UPDATE_GOLDEN=1 and read it"
        assert text == file.read_text(), f"{name} differs: after reading the difference, EKS_FSDP_UPDATE_GOLDEN=1"

    return compare


@dataclass(frozen=True)
class Declared:
    """One resource that a program declared."""

    type: str
    name: str
    inputs: dict[str, Any]
    parent: str
    """URN."""
    urn: str
    provider: str
    providers: dict[str, str]
    depends_on: tuple[str, ...]
    deleted_with: str
    retained: bool
    protected: bool
    custom: bool
    ignored_changes: tuple[str, ...]
    deleted_before_replaced: bool
    outputs: dict[str, Any] = field(default_factory=dict)
    """Of a component."""


class _Answers(mocks.Mocks):
    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        outputs = dict(args.inputs)
        match args.typ:
            case "eks:index:Cluster":
                outputs["kubeconfigJson"] = "{}"
            case "aws:ecr/repository:Repository":
                outputs["repositoryUrl"] = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/{args.inputs['name']}"
            case "aws:ec2/launchTemplate:LaunchTemplate":
                outputs["latestVersion"] = 1
            case "aws:ec2/placementGroup:PlacementGroup":
                outputs["name"] = args.name
            case "aws:eks/nodeGroup:NodeGroup":
                outputs["resources"] = [{"autoscalingGroups": [{"name": f"eks-{args.name}"}]}]
            case "aws:iam/role:Role":
                outputs |= {"name": args.name, "arn": f"arn:aws:iam::123456789012:role/{args.name}"}
            case "aws:cloudwatch/logGroup:LogGroup":
                outputs |= {"name": args.name, "arn": f"arn:aws:logs:us-west-2:123456789012:log-group:{args.name}"}
            case "aws:lambda/function:Function":
                outputs |= {"name": args.name, "arn": f"arn:aws:lambda:us-west-2:123456789012:function:{args.name}"}
            case "aws:scheduler/scheduleGroup:ScheduleGroup":
                arn = f"arn:aws:scheduler:us-west-2:123456789012:schedule-group/{args.name}"
                outputs |= {"name": args.name, "arn": arn}
            case "aws:fsx/lustreFileSystem:LustreFileSystem":
                outputs |= {"dnsName": "fs-1.fsx.us-west-2.amazonaws.com", "mountName": "abcdefgh"}
        return f"{args.name}-id", outputs

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        if args.token == "aws:secretsmanager/getSecretVersion:getSecretVersion":
            return {"secretString": json.dumps({"token": f"token of {args.args['secretId']}"})}
        if args.token != "aws:eks/getCluster:getCluster":
            raise AssertionError(f"the program asks AWS: {args.token}")
        name = args.args["name"]
        return {
            "name": name,
            "arn": f"arn:aws:eks:us-west-2:123456789012:cluster/{name}",
            "endpoint": f"https://{name}",
            "certificateAuthorities": [{"data": "Q0E="}],
        }


class _Recorder(mocks.MockMonitor):
    def __init__(self, answers: mocks.Mocks) -> None:
        super().__init__(answers)
        self.declared: list[Declared] = []
        self.outputs: dict[str, dict[str, Any]] = {}

    def GetDeploymentInfo(self, request: Any) -> Any:
        info = super().GetDeploymentInfo(request)
        supported = [f for f in info.supportedFeatures if f != RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES]
        return DeploymentInfo(supportedFeatures=supported)

    def RegisterResource(self, request: Any) -> Any:
        response = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.declared.append(
                Declared(
                    type=request.type,
                    name=request.name,
                    inputs=MessageToDict(request.object),
                    parent=request.parent,
                    urn=response.urn,
                    provider=request.provider,
                    providers=dict(request.providers),
                    depends_on=tuple(request.dependencies),
                    deleted_with=request.deletedWith,
                    retained=request.retainOnDelete,
                    protected=request.protect,
                    custom=request.custom,
                    ignored_changes=tuple(request.ignoreChanges),
                    deleted_before_replaced=request.deleteBeforeReplace,
                )
            )
        return response

    def RegisterResourceOutputs(self, request: Any) -> Any:
        self.outputs[request.urn] = MessageToDict(request.outputs)
        return super().RegisterResourceOutputs(request)


Declare = Callable[[Callable[[], Any]], list[Declared]]


@pytest.fixture(scope="session")
def declare_program() -> Declare:
    """Run a program and give every resource that it declared; what it raises is raised.

    It runs in a forked process: Pulumi's mocks keep event loops and outputs of theirs beyond the program's end.
    """

    def run(program: Callable[[], Any]) -> list[Declared]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_declare, args=(program, theirs))
        process.start()
        theirs.close()
        try:
            result = ours.recv()
        finally:
            ours.close()
            process.join(60)
            process.close()
        if isinstance(result, BaseException):
            raise result
        return list(result)

    return run


def _declare(program: Callable[[], Any], answer: Connection) -> None:
    logging.disable(logging.CRITICAL)
    # An output that is turned into text by mistake is an error.
    os.environ["PULUMI_ERROR_OUTPUT_STRING"] = "true"
    # References to resources make the mocks wait for themselves, now and then for ever; so what the remote component
    # would refer to is given here.
    control_plane = SimpleNamespace(
        name="cluster-1",
        arn="arn:aws:eks:us-west-2:123456789012:cluster/cluster-1",
        endpoint="https://1.eks.amazonaws.com",
        certificate_authority=SimpleNamespace(data="Q0E="),
        vpc_config=SimpleNamespace(cluster_security_group_id="sg-cluster"),
    )
    eks.Cluster.eks_cluster = property(lambda _: pulumi.Output.from_input(control_plane))  # type: ignore[assignment]
    recorder = _Recorder(_Answers())

    async def whole() -> None:
        mocks.set_mocks(recorder.mocks, project="eks-fsdp", stack="unit", preview=False, monitor=recorder)
        await run_pulumi_func(program)

    try:
        asyncio.run(whole())
        answer.send([replace(made, outputs=recorder.outputs.get(made.urn, {})) for made in recorder.declared])
    except BaseException as error:  # noqa: BLE001
        answer.send(error)
    finally:
        answer.close()
        os._exit(0)
