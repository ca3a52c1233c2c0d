"""Jobs share nodes through the queue, and a team's people may do what they need and nothing else."""

from __future__ import annotations

import copy
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from eks_fsdp.components.platform import job_plan
from eks_fsdp.spec.settings import Settings

from .conftest import CLI, ROOT, Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 120) -> Any:
    """The first value of ``condition`` that is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.3)
    return value


def get(sandbox: Sandbox, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sandbox.run("kubectl", "get", *arguments, "-o", "json"))["items"]
    return found


def pods_of(sandbox: Sandbox, job: dict[str, Any]) -> list[dict[str, Any]]:
    name = job["metadata"]["name"]
    return get(sandbox, "pods", "-n", "training", "-l", f"training.kubeflow.org/job-name={name}")


def has_ended(job: dict[str, Any]) -> bool:
    return any(c["type"] == "Succeeded" and c["status"] == "True" for c in job["status"].get("conditions", []))


def test_of_two_jobs_that_do_not_fit_together_one_waits_holding_nothing(platform: Sandbox) -> None:
    run = [*CLI, "run", "-s", "sandbox", "--nodes", "3", "--steps", "4", "--detach"]
    changes = ["--set", "trainer.global_batch_size=6", "--set", 'labels={"test":"queue"}']
    submissions = [
        subprocess.Popen([*run, *changes], cwd=ROOT, env=platform.environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [submission.wait(timeout=120) for submission in submissions] == [0, 0]

    def jobs() -> list[dict[str, Any]]:
        return get(platform, "pytorchjobs", "-n", "training", "-l", "test=queue")

    def one_runs() -> bool:
        return sorted(bool(job["spec"]["runPolicy"].get("suspend")) for job in jobs()) == [False, True]

    wait_for("one job running and one waiting", one_runs, 30)
    # The one that waits still does once the other has all its pods.
    runs, waits = sorted(jobs(), key=lambda job: bool(job["spec"]["runPolicy"]["suspend"]))
    wait_for("all pods of the job that runs", lambda: len(pods_of(platform, runs)) == 3, 30)
    assert pods_of(platform, waits) == []
    status = platform.cli("status", "-s", "sandbox")
    told = f"{waits['metadata']['name']}: waits in the queue: couldn't assign flavors to pod set worker"
    assert "Queued" in status
    assert told in status

    wait_for("the end of both jobs", lambda: all(map(has_ended, jobs())))
    assert [len(pods_of(platform, job)) for job in (runs, waits)] == [3, 3]
    stops = [
        subprocess.Popen(
            [*CLI, "stop", job["metadata"]["name"], "-s", "sandbox"],
            cwd=ROOT, env=platform.environment, stdout=subprocess.DEVNULL,
        )
        for job in (runs, waits)
    ]  # fmt: skip
    assert [stop.wait(timeout=120) for stop in stops] == [0, 0]
    assert jobs() == []


def test_kueue_is_asked_about_its_own_objects_and_pytorchjobs_alone(platform: Sandbox) -> None:
    # Any other of its webhooks would stop the whole cluster's pods, say, whenever Kueue is away.
    asked = {
        hook["name"].removesuffix(".kb.io")[1:]
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
        for configuration in get(platform, kind, "-l", "app.kubernetes.io/name=kueue")
        for hook in configuration["webhooks"]
    }
    assert asked == {"clusterqueue", "cohort", "pytorchjob", "resourceflavor", "workload"}


class Member:
    """Somebody with no rights but those of team ``research``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        groups = ("--as-group=eksfsdp:team:research", "--as-group=system:authenticated")
        self._kubectl = ("kubectl", "--as=ann", *groups)

    def may(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of a request that must be answered."""
        done = self._run(arguments, stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def may_not(self, *arguments: str, stdin: str | None = None) -> None:
        """A request that must be refused for want of rights."""
        done = self._run(arguments, stdin)
        assert done.returncode != 0, done.stdout
        assert "forbidden" in done.stderr, done.stderr

    def _run(self, arguments: tuple[str, ...], stdin: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._kubectl, *arguments],
            env=self._sandbox.environment, input=stdin, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def teams_job(image: str) -> list[dict[str, Any]]:
    """A job of one node as the program renders it for the team, with its configuration."""
    config = yaml.safe_load((ROOT / "stacks" / "Pulumi.sandbox.yaml").read_text())["config"]
    values = {key.removeprefix("eks-fsdp:"): value for key, value in config.items()}
    job = {**values["jobs"]["first"], "team": "research"}
    job["trainer"] = {key: value for key, value in job["trainer"].items() if key != "checkpoint"} | {"steps": 5000}
    settings = Settings.parse({**values, "jobs": {"mine": job}, "storage": {"mode": "none"}})
    plan = job_plan(settings, "mine")
    metadata = {"name": "mine", "namespace": "research"}
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"trainer.json": plan.trainer_json()},
    }
    return [files, plan.pytorch_job("mine", image)]


def test_a_member_of_a_team_runs_reads_and_stops_a_job_and_may_do_nothing_else(platform: Sandbox) -> None:
    member = Member(platform)
    image = json.loads(platform.run("pulumi", "stack", "output", "-s", "sandbox", "--json"))["image"]
    files, job = teams_job(image)
    here = ("-n", "research")
    count_jobs(platform)
    member.may("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([files, job]))
    wait_for("the pod", lambda: "Running" in member.may("get", "pods", *here), 60)
    wait_for("a step", lambda: '"eksfsdp":"step"' in member.may("logs", *here, "mine-worker-0", "--ignore-errors"), 60)
    assert member.may("exec", *here, "mine-worker-0", "--", "echo", "here").strip() == "here"
    assert "mine" in member.may("get", "pytorchjobs,workloads,localqueues,events", *here)
    member.may("delete", "pytorchjob/mine", "configmap/mine", *here)
    wait_for("the end of the pod", lambda: "mine-worker-0" not in member.may("get", "pods", *here), 60)

    elsewhere = copy.deepcopy(job)
    elsewhere["metadata"]["namespace"] = "training"
    member.may_not("create", "-f", "-", stdin=yaml.safe_dump(elsewhere))
    member.may_not("create", "-f", "-", stdin=yaml.safe_dump(bare_pod()))
    member.may_not("get", "pytorchjobs", "-A")
    for kind in ("pytorchjobs", "pods", "configmaps", "workloads", "secrets"):
        member.may_not("get", kind, "-n", "training")
    for kind in ("nodes", "namespaces", "clusterqueues", "resourceflavors", "persistentvolumes"):
        member.may_not("get", kind)
    member.may_not("get", "secrets", *here)
    member.may_not("delete", "localqueue/training", *here)
    member.may_not("delete", "resourcequota/jobs", *here)
    member.may_not("create", "rolebinding", "more", "--clusterrole=admin", "--user=ann", *here)
    member.may_not("create", "serviceaccount", "more", *here)
    member.may_not("create", "token", "default", *here)


def count_jobs(sandbox: Sandbox) -> None:
    """Kubernetes finds new kinds within a minute, and looks at a quota of before every five, or when it changes."""

    def counted() -> bool:
        for limit in (51, 50):
            patch = json.dumps({"spec": {"hard": {"count/pytorchjobs.kubeflow.org": str(limit)}}})
            sandbox.run("kubectl", "-n", "research", "patch", "resourcequota", "jobs", "-p", patch)
        (quota,) = [q for q in get(sandbox, "resourcequotas", "-n", "research") if q["metadata"]["name"] == "jobs"]
        return bool(quota["status"].get("used"))

    wait_for("that Kubernetes counts PyTorchJobs", counted)


def bare_pod() -> dict[str, Any]:
    metadata = {"name": "past-the-queue", "namespace": "research"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "bash"}]},
    }


def test_nothing_gets_past_a_teams_limits(platform: Sandbox) -> None:
    _, job = teams_job("x")
    del job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    job["metadata"]["name"] = "past-the-queue"
    kubectl = ("kubectl", "-n", "research")
    made = subprocess.run(
        [*kubectl, "create", "-f", "-", "-o", "json"],
        env=platform.environment, input=yaml.safe_dump(job), capture_output=True, text=True, check=True,
    )  # fmt: skip
    try:
        # Without a queue it never starts.
        assert json.loads(made.stdout)["spec"]["runPolicy"]["suspend"] is True
    finally:
        platform.run(*kubectl, "delete", "pytorchjob", "past-the-queue")
    for arguments, words in [
        (["create", "service", "loadbalancer", "x", "--tcp=80"], "exceeded quota"),
        (
            ["run", "x", "--image=bash", '--overrides={"spec":{"hostNetwork":true}}'],
            'violates PodSecurity "baseline',
        ),
    ]:
        done = subprocess.run(
            [*kubectl, *arguments], env=platform.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert words in done.stderr, done.stderr
