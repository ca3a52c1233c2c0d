"""What goes wrong, and what must happen: killed processes, a device plugin that is not there, a dead sandbox, a full disk."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eks_fsdp.sandbox.machine_room import SocketMachineRoom

from .conftest import CLI, ROOT, Sandbox, processes_naming

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

# torchrun's own command line names the module too; a worker is the interpreter that runs it.
WORKER = r"python\S* -u -m eks_fsdp\.trainer"


def kill_worker_at(sandbox: Sandbox, selector: str, step: int, deadline: float = 120) -> threading.Thread:
    """Kill one trainer process of the pods that ``selector`` names with SIGKILL once ``step`` is in their logs."""

    def watch() -> None:
        room = SocketMachineRoom(sandbox.folder / "run" / "machine.sock")
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            logs = sandbox.run(
                "kubectl", "-n", "training", "logs", "-l", selector, "--tail=-1", "--prefix", timeout=60, check=False
            )
            found = re.search(rf'\[pod/([^/]+)/.*"eksfsdp":"step".*"step":{step},', logs)
            if found:
                fault = {"kind": "kill", "namespace": "training", "pod": found[1], "signal": 9, "match": WORKER}
                assert room.request("POST", "/faults", fault)["killed"]
                return
            time.sleep(0.2)
        raise AssertionError(f"step {step} was not seen within {deadline} s")

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.parametrize(("max_restarts", "kind"), [(0, "container_restarts"), (2, "rendezvous_rounds")])
def test_a_killed_trainer_goes_on_from_its_checkpoint(
    platform: Sandbox, tmp_path: Path, max_restarts: int, kind: str
) -> None:
    out = tmp_path / "run"
    killer: dict[str, threading.Thread] = {}
    run = subprocess.Popen(
        [
            *CLI, "run", "-s", "sandbox", "--nodes", "2", "--steps", "40", "--out", str(out),
            "--set", f"max_restarts={max_restarts}", "--set", "trainer.checkpoint.every=5",
            "--set", 'labels={"test":"kill"}',
        ],
        cwd=ROOT, env=platform.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    killer["thread"] = kill_worker_at(platform, "test=kill", step=12)
    printed, _ = run.communicate(timeout=300)
    killer["thread"].join(timeout=10)

    record = json.loads((out / "record.json").read_text())
    assert record["condition"] == "Succeeded", printed
    assert record["restarts"][kind] >= 1, record["restarts"]
    assert {step["step"] for step in record["steps"]} == set(range(1, 41))
    resumed = [start["resumed_from_step"] for start in record["starts"]]
    assert resumed[0] == 0
    assert resumed[-1] in (5, 10), resumed
    by_step: dict[int, list[float]] = {}
    for row in record["steps"]:
        by_step.setdefault(row["step"], []).append(row["loss"])
    repeated = {step: losses for step, losses in by_step.items() if len(losses) > 1}
    assert repeated, "the steps after the checkpoint are taken again"
    for losses in repeated.values():
        assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_a_point_with_a_restart_is_refused_and_the_sweep_goes_on(platform: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep = subprocess.Popen(
        [*CLI, "sweep", "-s", "sandbox", "--nodes", "1,2", "--steps", "40", "--out", str(out)],
        cwd=ROOT, env=platform.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    thread = kill_worker_at(platform, "eksfsdp/sweep", step=12)
    printed, _ = sweep.communicate(timeout=350)
    thread.join(timeout=10)
    points = json.loads((out / "scaling.json").read_text())["points"]
    assert [point["accepted"] for point in points] == [False, True], printed
    assert any("container restart" in reason for reason in points[0]["reasons"]), points[0]["reasons"]
    assert points[0]["restarts"]["container_restarts"] == 1
    assert points[1]["efficiency"] == pytest.approx(1.0), "the baseline is the smallest accepted point"


def wait_for(condition: Any, what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.2)


def pending_reason(platform: Sandbox, out: Path, words: str) -> None:
    """Run a job that cannot be placed: the queue's ``words`` are shown within 30 s, and end the job."""
    began = time.monotonic()
    with subprocess.Popen(
        [*CLI, "run", "-s", "sandbox", "--out", str(out), "--queue-timeout", "20"],
        cwd=ROOT, env=platform.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        shown = 0.0
        text = ""
        for line in run.stdout:
            text += line
            if not shown and words in line:
                shown = time.monotonic() - began
    assert run.returncode != 0
    assert 0 < shown < 30, text
    record = json.loads((out / "record.json").read_text())
    assert record["condition"] != "Succeeded"
    assert words in record["message"]


def test_without_the_device_plugin_the_queues_reason_is_shown_within_30_seconds(
    platform: Sandbox, tmp_path: Path
) -> None:
    plugin = "daemonset/nvidia-device-plugin"
    nowhere = '{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":"true"}}}}}'
    somewhere = '{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":null}}}}}'
    kubectl = ("kubectl", "-n", "eks-fsdp-system")
    platform.run(*kubectl, "patch", plugin, "-p", nowhere)
    try:
        wait_for(
            lambda: "nvidia" not in platform.run(*kubectl, "get", "pods"), "the end of the device plugin's pods", 60
        )
        pending_reason(platform, tmp_path / "run", 'resource "nvidia.com/gpu": 4')
    finally:
        platform.run(*kubectl, "patch", plugin, "-p", somewhere)
        platform.run(*kubectl, "rollout", "status", plugin, "--timeout=60s")


def test_without_a_toleration_the_queues_reason_is_shown_within_30_seconds(platform: Sandbox, tmp_path: Path) -> None:
    taint = ("kubectl", "taint", "nodes", "-l", "eksfsdp/gpu-group=p5")
    platform.run(*taint, "maintenance=true:NoSchedule")
    try:
        pending_reason(platform, tmp_path / "run", 'taint "maintenance')
    finally:
        platform.run(*taint, "maintenance-")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("jobs", '{"first":{"nodes":0}}', ["jobs.first.nodes", "0", "greater than or equal to 1"]),
        (
            "jobs",
            '{"first":{"nodes":1,"trainer":{"model":"llama9"}}}',
            ["jobs.first.trainer.model", "llama9", "llama2-7b"],
        ),
        ("jobs", '{"first":{"nodes":1,"trainer":{"stps":3}}}', ["jobs.first.trainer.stps", "'steps'"]),
        (
            "gpu_nodes",
            '[{"name":"p5","instance_type":"p9.48xlarge","zone":"us-west-2a"}]',
            ["gpu_nodes[0].instance_type", "p9.48xlarge", "p5.48xlarge"],
        ),
        ("gpu_nodess", "[]", ["gpu_nodess", "'gpu_nodes'"]),
    ],
)
def test_bad_settings_are_refused_at_preview_without_a_traceback(
    platform: Sandbox, tmp_path: Path, key: str, value: str, words: list[str]
) -> None:
    config = tmp_path / "Pulumi.sandbox.yaml"
    config.write_text((ROOT / "stacks" / "Pulumi.sandbox.yaml").read_text())
    arguments = ["-s", "sandbox", "--config-file", str(config)]
    platform.run("pulumi", "config", "set", *arguments, "--path", f"eks-fsdp:{key}", value, check=False)
    text = config.read_text()
    if f"eks-fsdp:{key}:" in text:
        text = re.sub(rf"(?m)^  eks-fsdp:{key}:.*\n(?:    .*\n|  #.*\n)*", "", text + "\n")
    config.write_text(text.rstrip() + f"\n  eks-fsdp:{key}: {value}\n")
    done = subprocess.run(
        ["pulumi", "preview", *arguments, "--non-interactive"],
        cwd=ROOT, env=platform.environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode != 0, printed
    assert "Traceback" not in printed
    for word in words:
        assert word in printed, printed


def test_only_the_node_group_changes_with_the_node_count(platform: Sandbox, tmp_path: Path) -> None:
    config = tmp_path / "Pulumi.sandbox.yaml"
    config.write_text((ROOT / "stacks" / "Pulumi.sandbox.yaml").read_text().replace("desired: 4", "desired: 3"))
    printed = platform.run(
        "pulumi", "preview", "-s", "sandbox", "--config-file", str(config), "--non-interactive", "--json"
    )
    steps = [step for step in json.loads(printed)["steps"] if step["op"] != "same"]
    assert [(step["op"], step["urn"].split("::")[2].split("$")[-1]) for step in steps] == [
        ("update", "aws:eks/nodeGroup:NodeGroup")
    ]


def test_a_second_up_changes_nothing_and_neither_does_a_refresh(platform: Sandbox) -> None:
    def changes(verb: str) -> dict[str, int]:
        platform.run("pulumi", verb, "-s", "sandbox", "--yes", "--skip-preview", "--non-interactive")
        history = json.loads(platform.run("pulumi", "stack", "history", "-s", "sandbox", "--json", "--page-size", "1"))
        result: dict[str, int] = history[0]["resourceChanges"]
        return result

    for verb in ("up", "refresh", "up"):
        assert set(changes(verb)) == {"same"}, verb


def sandbox_at(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "sandbox", *arguments, "--dir", str(folder)],
        capture_output=True, text=True, timeout=90, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_crashed_sandbox_is_told_of_and_its_state_moved_aside(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    assert sandbox_at(folder, "up").returncode == 0
    pid = json.loads((folder / "run" / "daemon.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    try:
        told = sandbox_at(folder, "status")
        assert told.returncode != 0
        assert "Traceback" not in told.stdout + told.stderr
        assert sandbox_at(folder, "up").returncode == 0
        assert list(tmp_path.glob("sandbox.stale-*"))
        assert sandbox_at(folder, "status").returncode == 0
    finally:
        assert sandbox_at(folder, "down").returncode == 0
    assert not folder.exists()


def test_two_sandboxes_run_side_by_side(platform: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    assert sandbox_at(folder, "up").returncode == 0
    try:
        assert "nodes          0" in sandbox_at(folder, "status").stdout
        assert "Ready" in platform.run("kubectl", "get", "nodes")
    finally:
        assert sandbox_at(folder, "down").returncode == 0
    assert "Ready" in platform.run("kubectl", "get", "nodes")


def test_what_is_missing_is_said_first_in_one_line(tmp_path: Path) -> None:
    told = sandbox_at(tmp_path / "sandbox", "up", PATH="/nonexistent")
    assert told.returncode != 0
    lines = (told.stdout + told.stderr).strip().splitlines()
    assert len(lines) == 1, lines
    assert "unshare" in lines[0]


def test_a_full_disk_is_one_clear_message(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    script = 'mount -t tmpfs -o size=2m small "$1" && shift && exec "$@"'
    up = [*CLI, "sandbox", "up", "--dir", str(folder / "sandbox")]
    told = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(folder), *up],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    printed = told.stdout + told.stderr
    assert told.returncode != 0
    assert "Traceback" not in printed
    assert re.search(r"(?i)no space left|free", printed), printed
    assert processes_naming(folder) == []
