"""Records, rows and API objects for the launcher's tests."""

from __future__ import annotations

import json
from typing import Any

from eks_fsdp.spec.records import RunRecord, StartRow, StepRow
from eks_fsdp.spec.settings import JobSettings

STEPS = 8


def job_settings(nodes: int = 2, **changes: Any) -> JobSettings:
    """A job with one process for each node on gloo."""
    trainer = {"steps": STEPS, "global_batch_size": 8, "micro_batch_size": 1}
    return JobSettings.parse(
        {"nodes": nodes, "processes_per_node": 1, "transport": "gloo", "trainer": trainer, **changes}
    )


def node_names(nodes: int) -> list[str]:
    """Names as EKS gives them."""
    return [f"ip-10-0-1-{10 + i}.us-west-2.compute.internal" for i in range(nodes)]


def start_row(count: int = 2, **changes: Any) -> StartRow:
    """The row at the beginning of a rendezvous round."""
    return StartRow(
        **{
            "time": 100.0,
            "world_size": count,
            "nodes": node_names(count),
            "pods": [f"job-worker-{i}" for i in range(count)],
            "transport": "gloo",
            "restart_count": 0,
            "resumed_from_step": 0,
            "model": "llama-debug",
            "parameters": 1_000_000,
            "strategy": "FULL_SHARD",
            "accumulation": max(1, 8 // count),
            "torch_version": "2.15.0",
            "device": "cpu",
            **changes,
        }
    )


def step_row(step: int, tokens_per_second: float = 1000.0, **changes: Any) -> StepRow:
    """One step's row."""
    return StepRow(
        **{
            "step": step,
            "time": 100.0 + step,
            "loss": 5.0 - 0.1 * step,
            "grad_norm": 1.0,
            "learning_rate": 1e-3,
            "tokens": 1000,
            "step_seconds": 1000 / tokens_per_second,
            "data_seconds": 0.0,
            "tokens_per_second": tokens_per_second,
            "mfu": None,
            "peak_memory_bytes": 300 * 2**20 + step,
            **changes,
        }
    )


def record(nodes: int = 2, tokens_per_second: float = 1000.0, **changes: Any) -> RunRecord:
    """A run that is a valid point."""
    return RunRecord(
        **{
            "job": f"llama-n{nodes}-s1-abcdef01",
            "run": "s1",
            "nodes_asked": nodes,
            "gpus_per_node": 8,
            "processes_per_node": 1,
            "transport": "gloo",
            "instance_types": ["p5.48xlarge"],
            "nodes_seen": node_names(nodes),
            "simulated": True,
            "condition": "Succeeded",
            "settings": job_settings(nodes),
            "starts": [start_row(nodes)],
            "steps": [step_row(step, tokens_per_second) for step in range(1, STEPS + 1)],
            **changes,
        }
    )


def line(row: Any) -> str:
    """A row as rank 0 prints it."""
    return json.dumps(row.model_dump())


def pod(
    name: str = "job-worker-0", *, uid: str = "u0", phase: str = "Running", restarts: int = 0, **more: Any
) -> dict[str, Any]:
    """A pod of job ``job`` as the API gives it. ``node``, ``state``, ``last``, ``conditions`` fill it in."""
    state = more.get("state", {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}})
    status: dict[str, Any] = {"phase": phase, "conditions": more.get("conditions", [])}
    if phase != "Pending" or "state" in more:
        status["containerStatuses"] = [
            {"name": "pytorch", "restartCount": restarts, "state": state, "lastState": more.get("last", {})}
        ]
    return {
        "metadata": {
            "name": name,
            "uid": uid,
            "labels": {
                "training.kubeflow.org/job-name": "job",
                "training.kubeflow.org/replica-index": name.rsplit("-", 1)[-1],
            },
        },
        "spec": {"nodeName": more.get("node")} if more.get("node") else {},
        "status": status,
    }


UNSCHEDULABLE = "0/5 nodes are available: 1 Insufficient nvidia.com/gpu, 4 node(s) had untolerated taint(s)."


def pending_pod(name: str = "job-worker-0", uid: str = "u0") -> dict[str, Any]:
    """A pod that the scheduler could not place."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
    return pod(name, uid=uid, phase="Pending", conditions=[condition])


def pytorch_job(*conditions: tuple[str, str]) -> dict[str, Any]:
    """A PyTorchJob with these conditions true, each with its message."""
    return {
        "metadata": {"name": "job", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"eksfsdp/job": "llama"}},
        "status": {"conditions": [{"type": t, "status": "True", "message": m} for t, m in conditions]},
    }
