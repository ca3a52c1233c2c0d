"""Stack files, run folders and the settings of a sweep's points: all without an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_fsdp.launcher import run as runs
from eks_fsdp.launcher import stack as stacks
from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.run import RunRequest, changed_job
from eks_fsdp.launcher.stack import Engine, Platform, settings_of, with_settings
from eks_fsdp.launcher.sweep import Request, plan_jobs, scaled_group
from eks_fsdp.spec.settings import GuardSettings, Settings

CONTENT: dict[str, Any] = {
    "encryptionsalt": "v1:salt",
    "config": {
        "aws:region": "us-west-2",
        "eks-fsdp:network": {"zones": ["us-west-2a", "us-west-2b"]},
        "eks-fsdp:gpu_nodes": [
            {"name": "p5", "instance_type": "p5.48xlarge", "zone": "us-west-2a", "desired": 1, "max": 8}
        ],
        "eks-fsdp:storage": {"mode": "fsx"},
        "eks-fsdp:jobs": {
            "llama": {
                "nodes": 1,
                "processes_per_node": 1,
                "transport": "gloo",
                "trainer": {"steps": 9, "checkpoint": {"directory": "/mnt/checkpoints/llama"}},
            }
        },
    },
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    project = {
        "name": "eks-fsdp",
        "runtime": {"name": "python", "options": {"virtualenv": ".venv"}},
        "stackConfigDir": "stacks",
        "config": {"owner": {"type": "string", "default": "x"}},
    }
    (tmp_path / "Pulumi.yaml").write_text(yaml.safe_dump(project))
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.big.yaml").write_text(yaml.safe_dump(CONTENT))
    return tmp_path


@pytest.fixture
def platform(checkout: Path) -> Platform:
    outputs = {
        "namespace": "training",
        "image": "123456789012.dkr.ecr.us-west-2.amazonaws.com/big/eks-fsdp/trainer:0.1.0",
        "gpu_node_groups": [{"name": "p5", "instance_type": "p5.48xlarge", "desired": 1}],
    }
    return Platform("big", checkout, CONTENT, settings_of(CONTENT, "file"), outputs)


def test_the_checkout_is_found_from_below(checkout: Path) -> None:
    assert stacks.find_checkout(checkout / "stacks") == checkout
    assert stacks.stack_file(checkout, "big").name == "Pulumi.big.yaml"
    with pytest.raises(UserError, match=r"stack 'none': .* does not exist; there is: big"):
        stacks.stack_file(checkout, "none")


def test_settings_survive_the_way_through_a_stack_file() -> None:
    settings = settings_of(CONTENT, "file")
    written = with_settings(CONTENT, settings)
    assert settings_of(written, "copy") == settings
    assert written["encryptionsalt"] == "v1:salt"
    assert written["config"]["aws:region"] == "us-west-2"


def test_a_stack_file_with_a_mistake_is_refused_with_the_settings_name() -> None:
    bad = {"config": {**CONTENT["config"], "eks-fsdp:jobs": {"llama": {"nodes": 1, "transprot": "tcp"}}}}
    with pytest.raises(UserError, match=r"file: jobs\.llama\.transprot: unknown key\. did you mean 'transport'\?"):
        settings_of(bad, "file")
    with pytest.raises(UserError, match="eks-fsdp:owner is encrypted"):
        settings_of({"config": {"eks-fsdp:owner": {"secure": "v1:abc"}}}, "file")


def test_the_run_folder_points_at_the_checkout_and_changes_nothing_in_it(checkout: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    engine = Engine(checkout, tmp_path / "out" / "pulumi")
    engine.stage("big-sweep-s1", CONTENT)
    project = yaml.safe_load((engine.folder / "Pulumi.yaml").read_text())
    assert project["main"] == str(checkout)
    assert project["stackConfigDir"] == "."
    assert project["runtime"]["options"]["virtualenv"] == str(checkout / ".venv")
    assert project["config"] == {"owner": {"type": "string", "default": "x"}}
    assert (engine.folder / "Pulumi.big-sweep-s1.yaml").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_points_of_a_strong_sweep_keep_the_global_batch(platform: Platform) -> None:
    jobs = plan_jobs(platform, Request(stack="big", nodes=[4, 1, 2], steps=20), "llama", "sab12cd")
    assert list(jobs) == [1, 2, 4]
    names = [name for name, _ in jobs.values()]
    settings = [job for _, job in jobs.values()]
    assert names == ["llama-n1", "llama-n2", "llama-n4"]
    assert [job.nodes for job in settings] == [1, 2, 4]
    assert {job.trainer.global_batch_size for job in settings} == {8}
    assert {job.trainer.steps for job in settings} == {20}
    assert {job.labels["eksfsdp/sweep"] for job in settings} == {"sab12cd"}
    # No point may resume from another's checkpoints.
    assert len({job.trainer.checkpoint.directory for job in settings}) == 3


def test_points_of_a_weak_sweep_grow_the_global_batch(platform: Platform) -> None:
    jobs = plan_jobs(platform, Request(stack="big", nodes=[2, 4], mode="weak"), "llama", "s1")
    assert [job.trainer.global_batch_size for _, job in jobs.values()] == [8, 16]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([3], "--nodes 3: jobs.llama-n3.trainer.global_batch_size: 8 does not divide over 3 ranks"),
        ([1, 16], "--nodes 16: .*16 is more than group 'p5' may have"),
        ([0, 1], "--nodes: '0,1'; accepted: node counts from 1"),
    ],
)
def test_points_that_cannot_be_are_refused_before_the_first_starts(
    platform: Platform, nodes: list[int], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        plan_jobs(platform, Request(stack="big", nodes=nodes), "llama", "s1")


def test_the_stack_beside_the_platform_uses_its_cluster_and_image(platform: Platform) -> None:
    _, job = platform.template(None)
    settings = platform.with_jobs("/run/kubeconfig", {"llama": job})
    assert settings.cluster.mode == "existing"
    assert settings.image.repository == "123456789012.dkr.ecr.us-west-2.amazonaws.com/big/eks-fsdp/trainer"
    assert settings.image.tag == "0.1.0"
    assert (settings.storage.mode, settings.etcd.mode, settings.namespace.mode) == ("existing",) * 3
    again = settings_of(with_settings(CONTENT, settings), "copy")
    assert isinstance(again, Settings)
    assert again == settings


def test_a_job_that_is_not_there_is_named(platform: Platform) -> None:
    with pytest.raises(UserError, match="job 'lama' is not in stack 'big'; jobs: llama"):
        platform.template("lama")
    with pytest.raises(UserError, match="run `pulumi up -s big` first"):
        _ = platform.kubeconfig


def test_flags_change_a_run(platform: Platform) -> None:
    _, job = platform.template(None)
    request = RunRequest(stack="big", nodes=2, steps=3, changes=["trainer.seed=7", "env.A=b", "transport=tcp"])
    changed = changed_job(job, request, "r1")
    assert (changed.nodes, changed.trainer.steps, changed.trainer.seed) == (2, 3, 7)
    assert (changed.env, changed.transport, changed.run) == ({"A": "b"}, "tcp", "r1")
    with pytest.raises(UserError, match=r"job\.trainer\.sede: unknown key\. did you mean 'seed'\?"):
        changed_job(job, RunRequest(stack="big", changes=["trainer.sede=7"]), "r1")
    with pytest.raises(UserError, match="accepted: KEY=VALUE"):
        changed_job(job, RunRequest(stack="big", changes=["trainer.seed"]), "r1")
    with pytest.raises(UserError, match="'nodes' has no settings below it"):
        changed_job(job, RunRequest(stack="big", changes=["nodes.x=7"]), "r1")


def test_what_an_interrupted_submission_made_is_found_by_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    selectors: list[str] = []

    class Cluster:
        def jobs(self, namespace: str, selector: str) -> list[dict[str, Any]]:
            selectors.append(f"{namespace} {selector}")
            return [{"metadata": {"name": "llama-abc"}}]

        def delete_job(self, namespace: str, name: str) -> None:
            selectors.append(f"{namespace} {name}")

        def pods(self, namespace: str, job: str) -> list[dict[str, Any]]:
            return []

    runs._end_job(Cluster(), "training", "r1a2b3c")  # type: ignore[arg-type]
    assert selectors == ["training eksfsdp/run=r1a2b3c", "training llama-abc"]


def test_nodes_that_could_not_be_returned_are_told(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    class Locked:
        ups = 0

        def refreshed_nodes(self, stack: str, group: str) -> int:
            return 1

        def up(self, stack: str, content: Any) -> None:
            self.ups += 1
            if self.ups > 1:
                raise UserError("the stack is locked")

    _, job = platform.template(None)
    with pytest.raises(UserError, match="locked"), scaled_group(Locked(), platform, job, 8):  # type: ignore[arg-type]
        pass
    told = " ".join(capsys.readouterr().out.split())
    assert "left behind: up to 8 x p5.48xlarge in group p5, which should be at 0: `pulumi up -s big`" in told


class Behind:
    """An engine whose state has missed that a group is at 0."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.desired: list[int] = []

    def refreshed_nodes(self, stack: str, group: str) -> int:
        return self.nodes

    def up(self, stack: str, content: Any) -> None:
        self.desired.append(content["config"]["eks-fsdp:gpu_nodes"][0].get("desired", 0))


class Nodes:
    """A cluster with so many nodes of group p5."""

    def __init__(self, count: int) -> None:
        self.count = count

    def nodes(self) -> list[dict[str, Any]]:
        return [{"metadata": {"labels": {"eksfsdp/gpu-group": "p5"}}}] * self.count + [{"metadata": {}}]


@pytest.mark.parametrize(
    ("there", "in_aws", "ups"),
    [
        (8, None, []),
        # The last `up` made 8, and the idle guard has taken them since.
        (0, 0, [8, 0]),
        # They are on their way.
        (3, 8, []),
    ],
)
def test_a_sweep_has_its_nodes_whoever_took_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, there: int, in_aws: int | None, ups: list[int]
) -> None:
    platform = replace(platform, outputs={"gpu_node_groups": [{"name": "p5", "desired": 8}]})
    monkeypatch.setattr(Platform, "cluster", lambda self: Nodes(there))
    engine: Any = Behind(-1 if in_aws is None else in_aws)
    _, job = platform.template(None)
    with scaled_group(engine, platform, job, 8):
        assert engine.desired == ups[:1]
    assert engine.desired == ups


def test_after_the_expiry_no_sweep_starts_nodes(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Platform, "cluster", lambda self: Nodes(0))
    expired = platform.settings.model_copy(update={"guard": GuardSettings.parse({"expiry": "2020-01-01T00:00:00Z"})})
    _, job = platform.template(None)
    engine: Any = Behind(0)
    with (
        pytest.raises(UserError, match=r"guard\.expiry: .* has passed.*8 x p5.48xlarge are needed: renew it"),
        scaled_group(engine, replace(platform, settings=expired), job, 8),
    ):
        pass
    assert engine.desired == []
