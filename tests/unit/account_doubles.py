"""The launcher's view of an AWS account, for tests: the stand-in account, or answers of a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.launcher.preflight.check import Check, Context
from eks_fsdp.sandbox.account import Account
from eks_fsdp.spec.settings import Settings

from .machine_room_double import FakeMachineRoom

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
P5 = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "desired": 2, "max": 16}


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    """The stand-in account, where boto3 finds it in the environment. One for a module: its tests use names of their own."""
    made = Account(FakeMachineRoom(), cluster_port=6443)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", made.start())
        environment.setenv("AWS_ACCESS_KEY_ID", "sandbox")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "sandbox")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        try:
            yield made
        finally:
            made.stop()


class ScriptedAws(Aws):
    """Answers by operation; an `AwsError` among them is raised."""

    def __init__(self, answers: Mapping[str, Any], region: str = "us-west-2") -> None:
        super().__init__(region)
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.asked.append((operation, parameters))
        answer = self.answers[operation]
        if isinstance(answer, AwsError):
            raise answer
        return dict(answer(**parameters) if callable(answer) else answer)

    def all(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        return list(self.ask(service, operation, **parameters)[key])


def settings(**values: Any) -> Settings:
    """Settings with one p5 group where ``gpu_nodes`` is not given."""
    return Settings.parse({"gpu_nodes": [P5], **values})


def context(
    aws: Aws, now: datetime = NOW, outputs: Mapping[str, Any] | None = None, stack: str = "big", **values: Any
) -> Context:
    """What a check is given."""
    return Context(stack=stack, settings=settings(**values), aws=aws, now=now, outputs=outputs or {})


def shown(checks: Any) -> list[tuple[str, str]]:
    """Names and states."""
    found: list[Check] = list(checks)
    return [(check.name, check.state) for check in found]
