"""Health of node groups: what AWS says, in whose words, and what to do about it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from eks_fsdp.launcher import view
from eks_fsdp.launcher.aws import Aws, AwsError
from eks_fsdp.launcher.health import (
    REMEDIES,
    HealthWatch,
    Trouble,
    ask_node_groups,
    code_in,
    ready_counts,
    ready_text,
    size_differences,
    too_few_nodes,
    troubles_of,
)
from eks_fsdp.launcher.kube import ApiError
from eks_fsdp.launcher.stack import Platform
from eks_fsdp.sandbox.account_capacity import CAPACITY

from .account_doubles import NOW, P5, ScriptedAws, settings
from .test_account_api import Cloud, cloud

__all__ = ["cloud"]
SAID = "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-west-2a)."


def group(*issues: tuple[str, str]) -> dict[str, Any]:
    return {
        "nodegroupName": "big-p5-1a2b",
        "labels": {"eksfsdp/gpu-group": "p5"},
        "health": {"issues": [{"code": code, "message": message} for code, message in issues]},
    }


def activity(status: str, minutes_ago: float, message: str = SAID) -> dict[str, Any]:
    return {
        "StatusCode": status,
        "StatusMessage": message,
        "Description": "Launching a new EC2 instance",
        "StartTime": NOW - timedelta(minutes=minutes_ago),
    }


def test_the_cause_is_read_out_of_the_message() -> None:
    found = troubles_of(group(("AsgInstanceLaunchFailures", f"Could not launch On-Demand Instances. {SAID}")), [], NOW)
    assert [(t.group, t.code) for t in found] == [("p5", "InsufficientInstanceCapacity")]
    assert "eks-fsdp capacity" in found[0].do


def test_one_cause_is_told_once_with_its_time() -> None:
    failed = [activity("Failed", 2), activity("Failed", 4)]
    found = troubles_of(group(("AsgInstanceLaunchFailures", SAID)), failed, NOW)
    assert [(t.code, t.when) for t in found] == [("InsufficientInstanceCapacity", NOW - timedelta(minutes=2))]


def test_failures_before_a_start_that_went_well_are_over() -> None:
    assert troubles_of(group(), [activity("Successful", 1), activity("Failed", 2)], NOW) == []
    assert troubles_of(group(), [activity("Failed", 90)], NOW) == []
    assert len(troubles_of(group(), [activity("InProgress", 0), activity("Failed", 2)], NOW)) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of 0",
            "VcpuLimitExceeded",
        ),
        ("Max spot instance count exceeded", "MaxSpotInstanceCountExceeded"),
        (
            "ReservationCapacityExceeded - cr-1: insufficient capacity in the reservation.",
            "ReservationCapacityExceeded",
        ),
        ("something new", "NodeCreationFailure"),
    ],
)
def test_codes_in_sentences(message: str, code: str) -> None:
    assert code_in(message, "NodeCreationFailure") == code


def test_every_code_of_a_remedy_is_one_that_eks_or_ec2_has() -> None:
    shapes = get_session().get_service_model("eks").shape_for("NodegroupIssueCode")
    own = {
        "InsufficientInstanceCapacity",
        "ReservationCapacityExceeded",
        "VcpuLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "UnauthorizedOperation",
    }
    assert set(REMEDIES) - own <= set(shapes.enum)
    assert Trouble(group="g", code="New", message="m").do


def test_the_stand_in_account_reports_what_it_cannot_start(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.account.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "sandbox")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sandbox")
    cloud.cluster()
    CAPACITY.leave_on_demand("p5.48xlarge", "us-west-2a", 1)
    scaling = {"minSize": 0, "desiredSize": 4, "maxSize": 4}
    cloud.group(instanceTypes=["p5.48xlarge"], scalingConfig=scaling, labels={"eksfsdp/gpu-group": "p5"})
    seen = ask_node_groups(Aws("us-west-2"), "c")
    assert seen.desired == {"p5": 4}
    (trouble,) = seen.troubles
    assert (trouble.group, trouble.code) == ("p5", "InsufficientInstanceCapacity")
    assert trouble.when is not None, "the failed scaling activity says when"
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        ask_node_groups(Aws("us-west-2"), "other")


def test_activities_that_may_not_be_read_leave_eks_own_issues() -> None:
    described = {**group(("NodeCreationFailure", "no route")), "resources": {"autoScalingGroups": [{"name": "asg"}]}}
    aws = ScriptedAws(
        {
            "list_nodegroups": {"nodegroups": ["g"]},
            "describe_nodegroup": {"nodegroup": described},
            "describe_scaling_activities": AwsError("AccessDenied", "no"),
        }
    )
    assert [trouble.code for trouble in ask_node_groups(aws, "c", NOW).troubles] == ["NodeCreationFailure"]


def node(name: str, ready: bool = True) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return {"metadata": {"name": name, "labels": {"eksfsdp/gpu-group": "p5"}}, "status": status}


def test_ready_nodes_against_those_expected() -> None:
    counts = ready_counts([node("a"), node("b", ready=False)])
    assert ready_text(counts, {"p5": 4, "g5": 0}) == "p5 1/4 nodes Ready"
    assert ready_text({"p5": 4}, {"p5": 4}) == ""


class Nodes:
    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    def nodes(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def scripted(*rounds_: list[tuple[str, str]]) -> ScriptedAws:
    left = list(rounds_)

    def describe(**_: Any) -> dict[str, Any]:
        return {"nodegroup": group(*(left.pop(0) if len(left) > 1 else left[0]))}

    return ScriptedAws({"list_nodegroups": {"nodegroups": ["g"]}, "describe_nodegroup": describe})


def test_a_trouble_is_told_once_while_it_lasts_and_again_when_it_comes_back() -> None:
    told: list[Trouble] = []
    issue = [("NodeCreationFailure", "no route")]
    cluster: Any = Nodes([[node("a")], ApiError(0, "away"), [node("a"), node("b")]])
    watch = HealthWatch(cluster, {"p5": 2}, scripted(issue, issue, [], issue), "c", told.append)
    assert watch.text == "", "nothing is claimed before the first look"
    watch.look()
    assert watch.text == "p5 1/2 nodes Ready"
    watch.look()
    assert watch.text == "p5 1/2 nodes Ready", "an API server that is away leaves what was seen"
    assert len(told) == 1
    watch.look()
    watch.look()
    assert (watch.text, len(told)) == ("", 2)
    watch.expect("p5", 3)
    assert watch.text == "p5 2/3 nodes Ready"


def sized(*sizes: int, **more: Any) -> ScriptedAws:
    """One node group of p5, with one size after the other."""
    left = list(sizes)

    def describe(**_: Any) -> dict[str, Any]:
        size = left.pop(0) if len(left) > 1 else left[0]
        return {"nodegroup": {**group(), "scalingConfig": {"desiredSize": size}, **more}}

    return ScriptedAws({"list_nodegroups": {"nodegroups": ["g"]}, "describe_nodegroup": describe})


def test_the_size_in_aws_is_what_is_expected_and_a_difference_is_said_once() -> None:
    said: list[str] = []
    cluster: Any = Nodes([[]])
    watch = HealthWatch(cluster, {"p5": 16}, sized(0, 0, 16, 0), "c", lambda trouble: None, say=said.append)
    watch.look()
    watch.look()
    assert (watch.text, watch.expected) == ("", {"p5": 0})
    brought_back = "p5: 0 in AWS, 16 declared (idle guard, expiry or schedule); `pulumi up --refresh` brings them back"
    assert said == [brought_back]
    watch.look()
    assert watch.text == "p5 0/16 nodes Ready"
    watch.look()
    assert said.count(brought_back) == 2


def test_sizes_of_somebody_elses_groups_are_expected_and_not_compared() -> None:
    said: list[str] = []
    cluster: Any = Nodes([[]])
    told = HealthWatch(cluster, {"p5": 16}, sized(4), "c", lambda t: None, say=said.append, own_groups=False)
    told.look()
    assert said == ["p5 0/4 Ready"]


def test_status_shows_the_size_in_aws_and_says_where_it_is_not_the_declared_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view, "Aws", lambda *_, **__: sized(1))
    outputs = {"cluster_name": "c", "gpu_node_groups": [{"name": "p5", "desired": 16}]}
    platform = Platform("big", Path(), {}, settings(), outputs)

    class Quiet(Nodes):
        def jobs(self, namespace: str) -> list[Any]:
            return []

    cluster: Any = Quiet([[node("a")]])
    at = view.Place(cluster, ("training",), platform, None)
    monkeypatch.setattr(view, "place", lambda *_: nullcontext(at))
    with view.console.capture() as shown:
        view.show_status("big", None)
    row = next(line.split() for line in shown.get().splitlines() if line.strip().startswith("p5 "))
    assert row[:4] == ["p5", "–", "1", "1"]
    assert shown.get().count("p5: 1 in AWS, 16 declared") == 1


def test_what_the_launcher_asks_for_is_expected_before_aws_has_it() -> None:
    said: list[str] = []
    cluster: Any = Nodes([[]])
    watch = HealthWatch(cluster, {"p5": 0}, sized(0), "c", lambda trouble: None, say=said.append)
    watch.expect("p5", 4)
    watch.look()
    assert watch.text == "p5 0/4 nodes Ready"
    assert said == ["p5 0/4 Ready"]


def test_sizes_of_groups_that_are_deleted_or_none_of_ours_do_not_count() -> None:
    assert ask_node_groups(sized(4, status="DELETING"), "c", NOW).desired == {}
    assert ask_node_groups(sized(4, labels={}), "c", NOW).desired == {}
    assert size_differences({}, {"p5": 4}) == []
    assert size_differences({"p5": 8}, {"p5": 4})[0].startswith("p5: 8 in AWS, 4 declared (a capacity block's")


@pytest.mark.parametrize(
    ("nodes", "aws", "changes", "told"),
    [
        ([node("a"), node("b")], None, {}, None),
        ([], sized(2), {}, None),
        ([], sized(0), {}, "group p5 has 0 of 2 nodes: pulumi up --refresh -s big"),
        ([node("a")], None, {}, "group p5 has 1 of 2 nodes: pulumi up --refresh -s big"),
        (ApiError(403, "no"), None, {}, None),
        (ApiError(403, "no"), sized(1), {}, "group p5 has 1 of 2 nodes: pulumi up --refresh -s big"),
        ([], sized(1), {"gpu_nodes": [{**P5, "desired": 1}]}, "raise desired of gpu_nodes p5 (1)"),
        ([], sized(0), {"guard": {"expiry": "2026-11-30T00:00:00Z"}}, "guard.expiry 2026-11-30"),
        ([], None, {"cluster": {"mode": "existing", "kubeconfig": "/k"}}, "is not this stack's"),
    ],
)
def test_a_run_is_told_at_its_start_that_its_group_has_too_few_nodes(
    nodes: Any, aws: ScriptedAws | None, changes: dict[str, Any], told: str | None
) -> None:
    wanted = settings(**changes)
    platform = Platform("big", Path(), {}, wanted, {"cluster_name": "c"})
    cluster: Any = Nodes([nodes])
    said = too_few_nodes(platform, cluster, wanted.gpu_nodes[0], 2, aws, NOW)
    assert (said is None) if told is None else (said is not None and told in said), said


def test_nodes_are_told_at_first_and_when_they_are_complete_or_no_longer() -> None:
    said: list[str] = []
    one, two = [node("a")], [node("a"), node("b")]
    cluster: Any = Nodes([one, one, two, two, one])
    watch = HealthWatch(cluster, {"p5": 2, "idle": 0}, None, None, lambda trouble: None, say=said.append)
    for _ in range(5):
        watch.look()
    assert said == ["p5 1/2 Ready", "p5 2/2 Ready", "p5 1/2 Ready"]


def test_without_credentials_it_watches_nodes_alone() -> None:
    aws = ScriptedAws({"list_nodegroups": AwsError("NoCredentials", "none")})
    cluster: Any = Nodes([[node("a")]])
    watch = HealthWatch(cluster, {"p5": 2}, aws, "c", lambda trouble: None)
    watch.look()
    watch.look()
    assert watch.text == "p5 1/2 nodes Ready"
    assert len(aws.asked) == 1


def test_it_looks_in_the_background_until_the_block_ends() -> None:
    seen = threading.Event()
    cluster: Any = Nodes([[node("a")]])
    with HealthWatch(
        cluster, {}, scripted([("NodeCreationFailure", "no")]), "c", lambda t: seen.set(), poll_seconds=0.01
    ):
        assert seen.wait(10)
