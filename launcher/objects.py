"""Pure readings of Kubernetes objects: why a pod waits, what restarted, how a job ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from eks_fsdp.spec.names import OPERATOR_REPLICA_INDEX_LABEL, QUEUE_LABEL

Object = dict[str, Any]

TRAINER_CONTAINER = "pytorch"
"""The operator's name for the container that trains."""


def name_of(thing: Object) -> str:
    """``metadata.name``."""
    return str(thing["metadata"]["name"])


def namespace_of(thing: Object) -> str:
    """``metadata.namespace``."""
    return str(thing["metadata"]["namespace"])


def uid_of(thing: Object) -> str:
    """``metadata.uid``."""
    return str(thing["metadata"].get("uid", ""))


def labels_of(thing: Object) -> dict[str, str]:
    """``metadata.labels``."""
    return thing["metadata"].get("labels") or {}


def created_at(thing: Object) -> float | None:
    """Unix seconds of ``metadata.creationTimestamp``."""
    return unix_seconds(thing["metadata"].get("creationTimestamp"))


def unix_seconds(text: str | None) -> float | None:
    """Unix seconds of an API time; None where there is none."""
    if not text:
        return None
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def phase_of(pod: Object) -> str:
    """``status.phase``, or Terminating."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(pod.get("status", {}).get("phase") or "Pending")


def node_of(pod: Object) -> str | None:
    """The node that the pod was placed on."""
    return pod.get("spec", {}).get("nodeName") or None


def replica_of(pod: Object) -> str:
    """Which replica of the job the pod is: the operator's index, else the pod's name."""
    return labels_of(pod).get(OPERATOR_REPLICA_INDEX_LABEL) or name_of(pod)


def container_status(pod: Object) -> Object:
    """Status of the container that trains; empty before there is one."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    for status in statuses:
        if status.get("name") == TRAINER_CONTAINER:
            return dict(status)
    return dict(statuses[0]) if statuses else {}


def restart_count(pod: Object) -> int:
    """Container restarts of the pod, all its containers together."""
    return sum(int(s.get("restartCount", 0)) for s in pod.get("status", {}).get("containerStatuses") or [])


def container_has_started(pod: Object) -> bool:
    """Whether there is a log to read."""
    status = container_status(pod)
    state = status.get("state") or {}
    return bool("running" in state or "terminated" in state or (status.get("lastState") or {}).get("terminated"))


def is_over(pod: Object) -> bool:
    """Whether the pod has ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def waiting_reason(pod: Object, events: Iterable[Object] = ()) -> str | None:
    """Why the pod does not run, in the scheduler's or kubelet's own words; None where it runs or has ended."""
    if phase_of(pod) != "Pending":
        state = (container_status(pod).get("state") or {}).get("waiting")
        return _waiting(state) if state else None
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', 'no message')}"
    statuses = [*(pod["status"].get("initContainerStatuses") or []), *(pod["status"].get("containerStatuses") or [])]
    waiting = [s["state"]["waiting"] for s in statuses if (s.get("state") or {}).get("waiting")]
    told = [w for w in waiting if w.get("reason") not in ("ContainerCreating", "PodInitializing")]
    if told:
        return _waiting(told[0])
    mine = [e for e in events if e.get("involvedObject", {}).get("uid") in (uid_of(pod), None)]
    warnings = [e for e in mine if e.get("type") == "Warning"]
    if warnings:
        return f"{warnings[-1].get('reason')}: {warnings[-1].get('message')}"
    if waiting:
        return _waiting(waiting[0])
    return "not yet seen by the scheduler" if node_of(pod) is None else f"starting on {node_of(pod)}"


def _waiting(state: Object) -> str:
    message = state.get("message")
    return f"{state.get('reason', 'Waiting')}: {message}" if message else str(state.get("reason", "Waiting"))


def job_end(job: Object) -> tuple[str, str] | None:
    """``("Succeeded" | "Failed", message)`` of a PyTorchJob that has ended, else None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("type") in ("Succeeded", "Failed") and condition.get("status") == "True":
            return str(condition["type"]), str(condition.get("message", ""))
    return None


def job_phase(job: Object) -> str:
    """The last condition that holds; Created where there is none yet."""
    phase = "Created"
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("status") == "True":
            phase = str(condition.get("type"))
    return phase


def is_queued(job: Object) -> bool:
    """Whether a PyTorchJob waits in a queue. It has no pods then, and is meant to have none."""
    suspended = bool(job.get("spec", {}).get("runPolicy", {}).get("suspend"))
    return suspended and QUEUE_LABEL in labels_of(job) and job_end(job) is None


def queue_reason(workload: Object | None) -> str:
    """Why a queued job waits, in the queue's own words."""
    if workload is None:
        return "waits in the queue, which has not taken it in yet"
    conditions = {c.get("type"): c for c in workload.get("status", {}).get("conditions") or []}
    evicted, reserved = conditions.get("Evicted", {}), conditions.get("QuotaReserved", {})
    if workload.get("spec", {}).get("active") is False:
        return f"the queue has given it up: {evicted.get('message') or 'the workload is not active'}"
    why = reserved.get("message") if reserved.get("status") == "False" else None
    if evicted.get("status") == "True":
        why = "; ".join(filter(None, (f"back in it, {evicted.get('reason')}: {evicted.get('message')}", why)))
    return f"waits in the queue: {why or 'not looked at yet'}"


def exit_story(pod: Object) -> str | None:
    """How the pod's container last ended, where it ended badly: ``worker-0: exit code 137 (OOMKilled)``."""
    status = container_status(pod)
    for state in (status.get("state") or {}, status.get("lastState") or {}):
        ended = state.get("terminated")
        if ended and (ended.get("exitCode") or ended.get("signal")):
            how = f"exit code {ended['exitCode']}" if ended.get("exitCode") else f"signal {ended['signal']}"
            reason = ended.get("reason")
            return f"{name_of(pod)}: {how}" + (f" ({reason})" if reason and reason != "Error" else "")
    return None


def is_ready(node: Object) -> bool:
    """Whether a node is Ready and may be scheduled on."""
    ready = any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in node.get("status", {}).get("conditions") or []
    )
    return ready and not node.get("spec", {}).get("unschedulable")
