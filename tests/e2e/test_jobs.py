"""Jobs on the real engine and API server: strict dry-runs, a token that nobody can read, and an image pin that changes."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_fsdp.components import device_plugins, etcd
from eks_fsdp.components.job_access import service_account
from eks_fsdp.components.training_job import JobPlan
from eks_fsdp.spec.instances import INSTANCE_TYPES
from eks_fsdp.spec.settings import JobSettings, TaintSettings

from .conftest import ROOT, Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
TOKEN = "hf_" + "PlantedTokenOfTests" * 2


def eventually(what: str, holds: Callable[[], Any], seconds: float = 90.0) -> Any:
    """The first true value of ``holds()``."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}"
        time.sleep(0.3)
    return value


def rendered(instance: str, **job: Any) -> dict[str, Any]:
    plan = JobPlan(
        job="dry",
        settings=JobSettings.parse({"nodes": 2, **job}),
        instance=INSTANCE_TYPES[instance],
        namespace="training",
        team="research",
        queue="training",
        node_selector={"eksfsdp/gpu-group": "p5"},
        taints=[TaintSettings(key="team", value="research")],
        image_version="registry.example/trainer:0.1.0",
        claim="checkpoints",
        s3_mounts={"models": "/mnt/models"},
        scratch="empty-dir",
        hugging_face=True,
        region="us-west-2",
    )
    return plan.pytorch_job(plan.resource_name, "registry.example/trainer:0.1.0")


def test_the_api_server_takes_what_is_rendered_and_nothing_that_it_does_not_know(
    platform: Sandbox, tmp_path: Path
) -> None:
    objects = [
        *(rendered(name, run=name.partition(".")[0]) for name in ("p4de.24xlarge", "p5.48xlarge", "g5.48xlarge")),
        rendered("p5.48xlarge", topology="required", rendezvous="c10d", image="mine:1", transport="tcp"),
        *(
            # Beside the stack's own, of which some fields never change.
            {**manifest, "metadata": {**manifest["metadata"], "name": "dry"}}
            for manifest in (
                etcd.storage_class({"eksfsdp:owner": "team a"}),
                etcd.data_claim(8),
                etcd.etcd_stateful_set({"eksfsdp/role": "system"}, persistent=True),
                etcd.etcd_stateful_set({"eksfsdp/role": "system"}, persistent=False),
                etcd.disruption_budget(),
            )
        ),
        device_plugins.nvidia_device_plugin([TaintSettings(key="team")]),
        device_plugins.efa_device_plugin(),
        service_account("training"),
    ]
    file = tmp_path / "objects.json"
    strict = ("kubectl", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f")
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert platform.run(*strict, str(file)).count("serverside-applied") == len(objects)
    misspelt = rendered("p5.48xlarge")
    misspelt["spec"]["runPolicy"]["ttlSecondsAfterFinnished"] = 1
    file.write_text(json.dumps(misspelt))
    assert "serverside-applied" not in platform.run(*strict, str(file), check=False)


class Pinned:
    """A job that runs until it is ended, in a copy of the stack's file with an encrypted token."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.file = folder / "Pulumi.sandbox.yaml"
        shutil.copy(ROOT / "stacks/Pulumi.sandbox.yaml", self.file)
        job = {"nodes": 1, "processes_per_node": 1, "transport": "gloo", "env": {"OMP_NUM_THREADS": "1"}}
        self.change(jobs={"pinned": {**job, "trainer": {"steps": 1_000_000, "param_dtype": "float32"}}})
        self.pulumi("config", "set", "--secret", "--path", "eks-fsdp:hugging_face.token", TOKEN)

    def change(self, **values: Any) -> None:
        content = yaml.safe_load(self.file.read_text())
        content["config"] |= {f"eks-fsdp:{key}": value for key, value in values.items()}
        self.file.write_text(yaml.safe_dump(content))

    def pulumi(self, *arguments: str) -> str:
        return self.sandbox.run("pulumi", *arguments, "-s", "sandbox", "--config-file", str(self.file))

    def up(self) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", "--non-interactive", "--diff")

    def get(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        found = self.sandbox.run("kubectl", "get", kind, *arguments, "-o", "json")
        items: list[dict[str, Any]] = json.loads(found)["items"]
        return items

    def running(self) -> dict[str, str]:
        """UIDs of the job's running pods by name."""
        pods = self.get("pods", "-n", "training", "-l", "eksfsdp/job=pinned")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] == "Running"}


@pytest.fixture(scope="module")
def pinned(platform: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Any:
    stack = Pinned(platform, tmp_path_factory.mktemp("pinned"))
    try:
        yield stack
    finally:
        platform.run("kubectl", "-n", "training", "delete", "pytorchjobs", "-l", "eksfsdp/job=pinned", check=False)


def test_the_token_is_in_the_pods_and_in_one_secret_and_nowhere_else(pinned: Pinned) -> None:
    shown = pinned.up()
    pods = eventually("the job runs", pinned.running)
    sandbox = pinned.sandbox
    [name] = pods
    inside = ("kubectl", "-n", "training", "exec", name, "--", "sh", "-c", 'printf %s "$HF_TOKEN"')
    assert sandbox.run(*inside) == TOKEN
    assert TOKEN not in shown
    assert TOKEN not in pinned.pulumi("preview", "--diff", "--non-interactive")
    encoded = base64.b64encode(TOKEN.encode()).decode()
    exported = sandbox.run("pulumi", "stack", "export", "-s", "sandbox")
    assert "eks-fsdp-access-training-token" in exported
    for secret in (TOKEN, encoded):
        assert secret not in exported
        assert secret not in pinned.file.read_text()
        for kind in ("pytorchjobs", "pods", "configmaps", "events", "statefulsets,daemonsets,deployments"):
            assert secret not in json.dumps(pinned.get(kind, "-A")), kind
        assert secret not in sandbox.run("kubectl", "-n", "training", "logs", name)
    holders = [item for item in pinned.get("secrets", "-A") if encoded in json.dumps(item)]
    assert {item["metadata"]["name"] for item in holders} == {"hugging-face"}
    assert {item["metadata"]["namespace"] for item in holders} == {"training", "research"}


def test_a_changed_image_pin_makes_a_new_job_and_leaves_the_running_pods_alone(pinned: Pinned) -> None:
    before = eventually("the job runs", pinned.running)
    pinned.change(image={"tag": "0.1.1"})
    pinned.up()
    jobs = pinned.get("pytorchjobs", "-n", "training", "-l", "eksfsdp/job=pinned")
    assert len(jobs) == 2, "the new one stands beside the old one"
    images = {
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] for job in jobs
    }
    assert {image.rpartition(":")[2] for image in images} == {"sandbox", "0.1.1"}
    after = eventually("both run", lambda: found if len(found := pinned.running()) == 2 else None)
    assert before.items() < after.items(), "the same pods, by their UIDs"
