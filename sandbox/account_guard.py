"""Lambda, Scheduler and Budgets of the stand-in account: what moto lacks, and what AWS refuses and moto lets through."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import moto.awslambda.urls
import moto.budgets.urls
import moto.scheduler.urls
from moto.awslambda.responses import LambdaResponse
from moto.budgets.responses import BudgetsResponse
from moto.iam.models import iam_backends
from moto.scheduler.responses import EventBridgeSchedulerResponse

from .account_ec2 import Refusal
from .functions import call
from .layout import ACCESS_KEY, SECRET_KEY

_EXPRESSION = re.compile(r"^(at\(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\)|rate\(\d+ (minute|hour|day)s?\)|cron\([^)]+\))$")


def route_guard() -> None:
    """Route moto's Lambda, Scheduler and Budgets to the classes below. Harmless when done twice."""
    routes: tuple[tuple[Any, Any], ...] = (
        (moto.awslambda.urls, SandboxLambdaResponse),
        (moto.scheduler.urls, SandboxSchedulerResponse),
        (moto.budgets.urls, SandboxBudgetsResponse),
    )
    for urls, response in routes:
        for path in urls.url_paths:
            urls.url_paths[path] = response.dispatch


def is_invocation(environ: Mapping[str, Any]) -> bool:
    """Whether a request invokes a function, which makes requests of its own before this one is answered."""
    return "/lambda/aws4_request" in environ.get("HTTP_AUTHORIZATION", "") and "/invocations" in environ["PATH_INFO"]


class SandboxLambdaResponse(LambdaResponse):
    """One request. A function that is invoked really runs, with the account as its AWS."""

    def create_function(self) -> Any:
        """CreateFunction: refuses a role that is not there or that Lambda may not take on."""
        role = self.json_body.get("Role", "")
        known = {r.arn: r for r in iam_backends[self.current_account][self.partition].roles.values()}
        if role not in known or "lambda.amazonaws.com" not in str(known[role].assume_role_policy_document):
            raise Refusal(
                "InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."
            )
        return super().create_function()

    def invoke(self) -> Any:
        """Invoke: for an event too the caller waits, so that what comes after sees what the function did."""
        function: Any = self.backend.get_function(unquote(self.path.rsplit("/", 2)[-2]), self._get_param("qualifier"))
        variables = {
            "AWS_ENDPOINT_URL": f"http://{self.headers['Host']}",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_LAMBDA_FUNCTION_NAME": function.function_name,
            **function.environment_vars,
        }
        body = self.body.encode() if isinstance(self.body, str) else self.body
        outcome = call(function.code_bytes, function.handler, body, variables, float(function.timeout))
        headers = {"content-type": "application/json", "x-amz-executed-version": "$LATEST"}
        if self.headers.get("X-Amz-Invocation-Type") == "Event":
            return 202, {**headers, "status": "202"}, ""
        if outcome.failed:
            headers["x-amz-function-error"] = "Unhandled"
        if self.headers.get("X-Amz-Log-Type") == "Tail":
            headers["x-amz-log-result"] = base64.b64encode(outcome.log.encode()[-4096:]).decode()
        return 200, headers, outcome.payload


class SandboxSchedulerResponse(EventBridgeSchedulerResponse):
    """One request."""

    def create_schedule(self) -> str:
        """CreateSchedule."""
        self._check()
        return super().create_schedule()

    def update_schedule(self) -> str:
        """UpdateSchedule."""
        self._check()
        return super().update_schedule()

    def _check(self) -> None:
        if not _EXPRESSION.match(self._get_param("ScheduleExpression")):
            raise Refusal(
                "ValidationException", f"Invalid Schedule Expression {self._get_param('ScheduleExpression')}."
            )
        moment = re.fullmatch(r"at\((.+)\)", self._get_param("ScheduleExpression"))
        # In UTC, whatever the time zone: the program knows no other.
        if moment and datetime.fromisoformat(moment[1]).replace(tzinfo=UTC) <= datetime.now(UTC):
            raise Refusal("ValidationException", f"The schedule expression {moment[0]} is in the past.")
        self.scheduler_backend.get_schedule_group(self._get_param("GroupName"))
        role = self._get_param("Target")["RoleArn"]
        known = {r.arn: r for r in iam_backends[self.current_account][self.partition].roles.values()}
        if role not in known or "scheduler.amazonaws.com" not in str(known[role].assume_role_policy_document):
            message = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise Refusal("ValidationException", message)


class SandboxBudgetsResponse(BudgetsResponse):
    """One request."""

    def create_budget(self) -> str:
        """CreateBudget, with its tags."""
        answer = super().create_budget()
        name = self._get_param("Budget")["BudgetName"]
        self._budget(name).tags = {tag["Key"]: tag["Value"] for tag in self._get_param("ResourceTags") or []}
        return answer

    def update_budget(self) -> str:
        """UpdateBudget: all of the budget but its notifications."""
        new = self._get_param("NewBudget")
        found = self._budget(new["BudgetName"])
        found.budget = {**found.budget, **new}
        return "{}"

    def list_tags_for_resource(self) -> str:
        """ListTagsForResource."""
        tags = self._tagged().tags
        return json.dumps({"ResourceTags": [{"Key": key, "Value": value} for key, value in tags.items()]})

    def tag_resource(self) -> str:
        """TagResource."""
        self._tagged().tags |= {tag["Key"]: tag["Value"] for tag in self._get_param("ResourceTags")}
        return "{}"

    def untag_resource(self) -> str:
        """UntagResource."""
        for key in self._get_param("ResourceTagKeys"):
            self._tagged().tags.pop(key, None)
        return "{}"

    def _tagged(self) -> Any:
        return self._budget(self._get_param("ResourceARN").rpartition("/")[2])

    def _budget(self, name: str) -> Any:
        self.backend.describe_budget(self.current_account, name)  # refuses one that is not there
        return self.backend.budgets[self.current_account][name]
