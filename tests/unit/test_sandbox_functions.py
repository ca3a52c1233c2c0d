"""Functions and schedules of the stand-in account: they run, and what AWS refuses is refused."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eks_fsdp.sandbox.account import Account, leftovers
from eks_fsdp.sandbox.fire import fire, schedules

from .machine_room_double import FakeMachineRoom

SOURCE = """
import boto3, os
def handler(event, context):
    print("called with", event)
    if event["action"] == "fail":
        raise ValueError("not today")
    assert context.get_remaining_time_in_millis() > 0
    return [boto3.client("sts").get_caller_identity()["Account"], os.environ["STACK"]]
"""


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    account = Account(FakeMachineRoom(), cluster_port=6443)
    account.start()
    iam: Any = account.client("iam")
    for service in ("lambda", "scheduler"):
        statement = {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": f"{service}.amazonaws.com"},
        }
        iam.create_role(RoleName=service, AssumeRolePolicyDocument=json.dumps({"Statement": [statement]}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("code.py", SOURCE)
    functions: Any = account.client("lambda")
    functions.create_function(
        FunctionName="f", Role=role("lambda"), Handler="code.handler", Runtime="python3.13",
        Code={"ZipFile": buffer.getvalue()}, Environment={"Variables": {"STACK": "s"}}, Timeout=30,
    )  # fmt: skip
    try:
        yield account
    finally:
        account.stop()


def role(name: str) -> str:
    return f"arn:aws:iam::123456789012:role/{name}"


def schedule(account: Account, name: str, when: str, **target: str) -> None:
    scheduler: Any = account.client("scheduler")
    arn = "arn:aws:lambda:us-west-2:123456789012:function:f"
    scheduler.create_schedule(
        Name=name,
        GroupName="default",
        ScheduleExpression=when,
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": arn, "RoleArn": role("scheduler"), **target},
    )


def test_a_fired_schedule_runs_its_functions_own_code_against_the_account(account: Account) -> None:
    for action in ("scale", "fail"):
        schedule(account, f"s-{action}", "at(2100-01-31T18:00:00)", Input=json.dumps({"action": action}))
    assert schedules(account.client) == ["default/s-fail", "default/s-scale"]
    fired = fire(account.client, "scale")
    assert (fired.schedule, fired.failed, fired.answer) == ("default/s-scale", False, ["123456789012", "s"])
    assert fired.log == "called with {'action': 'scale'}\n"
    failed = fire(account.client, "fail")
    assert failed.failed
    assert (failed.answer["errorType"], failed.answer["errorMessage"]) == ("ValueError", "not today")
    with pytest.raises(
        LookupError, match="'s-' is in the name of 2 schedules; there is: default/s-fail, default/s-scale"
    ):
        fire(account.client, "s-")
    assert {"Lambda function f", "schedule default/s-scale"} <= set(leftovers(account.client))


@pytest.mark.parametrize(
    ("when", "target", "told"),
    [
        ("at(2020-01-31T18:00:00)", {}, "is in the past"),
        ("at(tomorrow)", {}, "Invalid Schedule Expression"),
        (
            "at(2100-01-31T18:00:00)",
            {"RoleArn": role("lambda")},
            "must allow AWS EventBridge Scheduler to assume the role",
        ),
    ],
)
def test_schedules_that_aws_refuses(account: Account, when: str, target: dict[str, str], told: str) -> None:
    with pytest.raises(ClientError, match=told):
        schedule(account, "refused", when, **target)


def test_a_function_needs_a_role_that_lambda_may_take_on(account: Account) -> None:
    functions: Any = account.client("lambda")
    with pytest.raises(ClientError, match="cannot be assumed by Lambda"):
        functions.create_function(FunctionName="g", Role=role("scheduler"), Code={"ZipFile": b""}, Handler="c.h")
