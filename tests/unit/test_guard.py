"""The expiry: what holds before and after it, what is refused, what it costs, and what enforces it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eks_fsdp.components.guard import as_of, due, expired_warning, expiry_tag, function_policy, once
from eks_fsdp.components.platform import TrainingPlatform, TrainingPlatformArgs
from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.names import TAG_EXPIRY, TAG_GPU_GROUP
from eks_fsdp.spec.prices import ON_DEMAND_USD_PER_HOUR, price_lines
from eks_fsdp.spec.rules.guard import within_reach
from eks_fsdp.spec.settings import GuardSettings, Settings

from .conftest import Declare, Declared
from .test_components import GUARDED, NOW, of_type, one, sandbox_settings

EXPIRY = datetime(2027, 1, 31, 18, tzinfo=UTC)
BEFORE, AFTER = EXPIRY - timedelta(seconds=1), EXPIRY


def settings(**changes: Any) -> Settings:
    group = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "desired": 16, "min": 2}
    return Settings.parse({"gpu_nodes": [group], "guard": {"expiry": EXPIRY.isoformat()}, **changes})


def test_after_the_expiry_every_group_is_at_zero_whatever_the_stack_file_says() -> None:
    stack = settings()
    assert as_of(stack, BEFORE) is stack
    assert expired_warning(stack, BEFORE) is None
    ended = as_of(stack, AFTER).gpu_nodes[0]
    assert (ended.min, ended.desired, ended.max) == (0, 0, 16)
    told = expired_warning(stack, AFTER)
    assert told is not None
    assert "guard.expiry" in told
    assert "p5 (16)" in told
    assert as_of(settings(guard={}), AFTER).gpu_nodes[0].desired == 16


def test_schedules_are_for_what_is_still_to_come() -> None:
    guard = GuardSettings.parse({"expiry": "2027-01-31T20:00:00+02:00", "delete_after_hours": 6})
    assert due(guard, BEFORE) == {"scale": EXPIRY, "delete": EXPIRY + timedelta(hours=6)}
    assert list(due(guard, AFTER)) == ["delete"]
    assert due(guard, EXPIRY + timedelta(hours=7)) == {}
    assert due(GuardSettings(), BEFORE) == {}
    assert once(due(guard, BEFORE)["scale"]) == "at(2027-01-31T18:00:00)", "read in UTC"
    assert expiry_tag(guard) == {TAG_EXPIRY: "2027-01-31T18:00:00+00:00"}
    assert expiry_tag(GuardSettings()) == {TAG_EXPIRY: "never"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ephemeral": True, "guard": {}}, "guard.expiry: not set, and ephemeral is true"),
        (
            {"cluster": {"mode": "existing", "kubeconfig": "k"}, "gpu_nodes": []},
            "guard.expiry: .* with cluster.mode 'existing'",
        ),
        (
            {
                "gpu_nodes": [
                    {
                        "name": "b",
                        "instance_type": "p5.48xlarge",
                        "zone": "us-west-2a",
                        "capacity": {
                            "kind": "capacity-block",
                            "reservation_id": "cr-0123456789abcdef0",
                            "starts": "2027-02-01T11:30:00Z",
                            "ends": "2027-02-03T11:30:00Z",
                            "scheduled_nodes": 16,
                        },
                    }
                ]
            },
            r"gpu_nodes\[0\].capacity.starts: 2027-02-01T11:30:00\+00:00 is not before guard.expiry",
        ),
    ],
)
def test_what_no_guard_could_keep_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        settings(**changes)


def test_an_ephemeral_stack_ends_within_two_weeks(declare_program: Declare) -> None:
    stack = settings(ephemeral=True)
    assert list(within_reach(stack, EXPIRY - timedelta(days=14))) == []
    (told,) = within_reach(stack, EXPIRY - timedelta(days=15))
    assert "guard.expiry: 2027-01-31T18:00:00+00:00 is more than 14 days away" in told
    assert list(within_reach(settings(), EXPIRY - timedelta(days=400))) == []
    args = TrainingPlatformArgs(settings=stack, stack="unit", now=EXPIRY - timedelta(days=15))
    with pytest.raises(SettingsError, match="more than 14 days away"):
        declare_program(lambda: TrainingPlatform("p", args))


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ({"desired": 16}, "16 x p5.48xlarge = $880.64/h on demand (2025-11-30)"),
        ({"desired": 2, "capacity": {"kind": "spot"}}, "2 x p5.48xlarge on spot, at most $110.08/h on demand"),
        (
            {"desired": 2, "capacity": {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0"}},
            "2 x p5.48xlarge = $110.08/h on demand (2025-11-30), which the reservation costs unused too",
        ),
        (
            {"desired": 1, "instance_type": "p5e.48xlarge"},
            "1 x p5e.48xlarge at a price that is not known here (no on-demand price of it in us-west-2)",
        ),
    ],
)
def test_a_preview_says_what_the_nodes_cost(group: dict[str, Any], line: str) -> None:
    base = {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a"}
    (told,) = price_lines(settings(gpu_nodes=[{**base, **group}]))
    assert told.startswith(f"gpu_nodes[0]: {line}")
    assert list(price_lines(settings(gpu_nodes=[base]))) == []


def test_every_price_is_of_a_type_of_the_catalogue() -> None:
    for prices in ON_DEMAND_USD_PER_HOUR.values():
        assert prices.keys() <= INSTANCE_TYPES.keys()
    priced = {name for prices in ON_DEMAND_USD_PER_HOUR.values() for name in prices}
    p_types = {name for name in INSTANCE_TYPES if INSTANCE_TYPES[name].efa_interfaces}
    assert p_types - priced == {"p5e.48xlarge"}, "which is sold in capacity blocks only"


def test_the_function_may_change_gpu_groups_of_its_stack_and_nothing_else() -> None:
    policy = json.loads(function_policy("arn:aws-cn:logs:cn-north-1:123456789012:log-group:l", "c", "p5-16"))
    by_action = {str(s["Action"]): s for s in policy["Statement"]}
    change = by_action["['eks:UpdateNodegroupConfig', 'eks:DeleteNodegroup']"]
    assert change["Resource"] == "arn:aws-cn:eks:cn-north-1:123456789012:nodegroup/c/*/*"
    assert change["Condition"] == {
        "StringEquals": {"aws:ResourceTag/eksfsdp:stack": "p5-16"},
        "Null": {"aws:ResourceTag/eksfsdp:gpu-group": "false"},
    }
    assert by_action["eks:ListNodegroups"]["Resource"] == "arn:aws-cn:eks:cn-north-1:123456789012:cluster/c"
    assert not any("*" in str(s["Action"]) for s in policy["Statement"])


@pytest.fixture(scope="module")
def declared(declare_program: Declare) -> list[Declared]:
    guard = {**GUARDED, "delete_after_hours": 6}
    return declare_program(
        lambda: TrainingPlatform(
            "p", TrainingPlatformArgs(settings=sandbox_settings(guard=guard), stack="unit", now=NOW)
        )
    )


def test_two_schedules_call_the_function(declared: list[Declared]) -> None:
    schedules = {s.name: s.inputs for s in of_type(declared, "aws:scheduler/schedule:Schedule")}
    assert {name: s["scheduleExpression"] for name, s in schedules.items()} == {
        "p-guard-scale": "at(2027-01-31T18:00:00)",
        "p-guard-delete": "at(2027-02-01T00:00:00)",
    }
    for name, action in (("p-guard-scale", "scale"), ("p-guard-delete", "delete")):
        schedule = schedules[name]
        assert json.loads(schedule["target"]["input"]) == {"action": action}
        assert schedule["scheduleExpressionTimezone"] == "UTC"
        assert schedule["flexibleTimeWindow"] == {"mode": "OFF"}
        assert schedule["actionAfterCompletion"] == "NONE"
        assert schedule["target"]["retryPolicy"]["maximumRetryAttempts"] == 185
        assert schedule["target"]["arn"].endswith(":function:p-guard-expire")
    retries = one(declared, "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig").inputs
    assert retries["maximumRetryAttempts"] == 2
    function = one(declared, "aws:lambda/function:Function").inputs
    assert (function["runtime"], function["timeout"]) == ("python3.13", 900)
    assert function["loggingConfig"]["logGroup"] == "p-guard-log"


def test_no_gpu_node_starts_before_its_end_is_scheduled(declared: list[Declared]) -> None:
    needed = {urn.rpartition("::")[2] for urn in one(declared, "eksfsdp:gpu:GpuNodeGroup").depends_on}
    assert {"p-guard-scale", "p-guard-delete", "p-guard-function-rights"} <= needed


def test_the_budget_counts_what_has_the_stacks_tag(declared: list[Declared]) -> None:
    budget = one(declared, "aws:budgets/budget:Budget").inputs
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": ["user:eksfsdp:stack$unit"]}]
    assert (budget["limitAmount"], budget["timeUnit"]) == ("500", "MONTHLY")
    alerts = [(n["notificationType"], n["threshold"], n["subscriberEmailAddresses"]) for n in budget["notifications"]]
    assert alerts == [("ACTUAL", 80, ["team@example.com"]), ("FORECASTED", 100, ["team@example.com"])]


def test_a_renewed_expiry_rolls_no_node_and_touches_few_resources(declare_program: Declare) -> None:
    def inputs(expiry: str) -> dict[str, str]:
        stack = sandbox_settings(guard={"expiry": expiry}, tags={"cost-center": "7"})
        declared = declare_program(
            lambda: TrainingPlatform("p", TrainingPlatformArgs(settings=stack, stack="unit", now=NOW))
        )
        on_aws = [resource for resource in declared if resource.type.startswith(("aws:", "eks:"))]
        shown = {resource.name: json.dumps(resource.inputs, sort_keys=True, default=str) for resource in on_aws}
        assert all('"cost-center": "7"' in text for name, text in shown.items() if name == "p-gpu-p5-template")
        return shown

    before, after = inputs("2027-01-31T18:00:00Z"), inputs("2027-02-28T18:00:00Z")
    assert {name for name in before if before[name] != after[name]} == {
        "p-cluster-eks",
        "p-cluster-system",
        "p-gpu-p5-nodes",
        "p-gpu-p5-tag-eksfsdp-expiry",
        "p-guard-scale",
        "p-storage-lustre",
    }


def test_gpu_groups_alone_have_the_guards_mark(declared: list[Declared]) -> None:
    marked = [r.name for r in declared if TAG_GPU_GROUP in (r.inputs.get("tags") or {})]
    assert marked == ["p-gpu-p5-nodes"]


def test_after_the_expiry_the_program_declares_no_nodes(declare_program: Declare) -> None:
    args = TrainingPlatformArgs(settings=sandbox_settings(guard=GUARDED), stack="unit", now=AFTER)
    declared = declare_program(lambda: TrainingPlatform("p", args))
    group = one(declared, "aws:eks/nodeGroup:NodeGroup").inputs
    assert group["scalingConfig"] == {"minSize": 0, "desiredSize": 0, "maxSize": 4}
    assert of_type(declared, "aws:scheduler/schedule:Schedule") == []
    assert of_type(declared, "aws:lambda/function:Function")
