"""A pod's status from the states of its containers: pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass
class ContainerStatus:
    """What is known of one container."""

    name: str
    image: str
    kind: str = "main"
    """main, init or sidecar (an init container that stays)."""
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    container_id: str = ""
    passed_startup: bool = False
    passed_readiness: bool = False

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return "running" in self.state

    @property
    def started(self) -> bool:
        """Running, and past its startup probe."""
        return self.running and self.passed_startup

    @property
    def ready(self) -> bool:
        """Started, and past its readiness probe; an init container that has done its work."""
        if self.kind == "init":
            return self.exit_code == 0
        return self.started and self.passed_readiness

    @property
    def exit_code(self) -> int | None:
        """Of the run that ended last, where none runs now."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    def render(self) -> Object:
        """As the API has it."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"eks-fsdp://sandbox/{self.image}" if self.container_id else "",
            "containerID": self.container_id,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }


def phase(statuses: list[ContainerStatus], restart_policy: str) -> str:
    """The pod's phase, by the kubelet's rules."""
    mains = [status for status in statuses if status.kind == "main"]
    inits = [status for status in statuses if status.kind == "init"]
    if restart_policy == "Never" and any(init.exit_code not in (None, 0) for init in inits):
        return "Failed"
    if any(init.exit_code != 0 for init in inits):
        return "Pending"
    if any("waiting" in main.state and not main.last_state for main in mains):
        return "Pending"
    if any(main.exit_code is None for main in mains) or restart_policy == "Always":
        return "Running"
    if all(main.exit_code == 0 for main in mains):
        return "Succeeded"
    return "Failed" if restart_policy == "Never" else "Running"


def conditions(statuses: list[ContainerStatus], current: str, previous: list[Object], now: str) -> list[Object]:
    """The pod's own conditions; a transition time changes only with the status. ``now`` is RFC 3339."""
    mains = [status for status in statuses if status.kind != "init"]
    unready = [main.name for main in mains if not main.ready]
    uninitialised = [init.name for init in statuses if init.kind == "init" and init.exit_code != 0]
    values: dict[str, tuple[bool, str, str]] = {
        "PodReadyToStartContainers": (current in ("Pending", "Running"), "", ""),
        "Initialized": (
            not uninitialised,
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(uninitialised)}]",
        ),
    }
    if current == "Succeeded":
        values["Initialized"] = (True, "PodCompleted", "")
        unready_reason, message = "PodCompleted", ""
    elif current == "Failed":
        unready_reason, message = "PodFailed", ""
    else:
        unready_reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    is_ready = current == "Running" and not unready and not uninitialised
    for kind in ("ContainersReady", "Ready"):
        values[kind] = (is_ready, unready_reason, message)
    before = {condition["type"]: condition for condition in previous}
    found = []
    for kind, (holds, reason, text) in values.items():
        status = "True" if holds else "False"
        condition: Object = {"type": kind, "status": status, "lastProbeTime": None}
        # null, so that a strategic merge takes an old reason away.
        shown = not holds or reason == "PodCompleted"
        condition["reason"] = reason if shown and reason else None
        condition["message"] = text if shown and text else None
        old = before.get(kind)
        condition["lastTransitionTime"] = old["lastTransitionTime"] if old and old["status"] == status else now
        found.append(condition)
    return found


def terminated(code: int, number: int, started: str | None, ended: str, container_id: str, message: str) -> Object:
    """The state of a container that ended. ``number`` is the signal that ended it, or 0."""
    state: Object = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": started,
        "finishedAt": ended,
        "containerID": container_id,
    }
    if number:
        state["signal"] = number
    if message:
        state["message"] = message
    return {"terminated": state}


def restarts_after(policy: str, code: int) -> bool:
    """Whether a container with restart policy ``policy`` runs again after it ended with ``code``."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def backoff_seconds(restart: int, *, first: float = 10.0, most: float = 300.0) -> float:
    """Seconds before restart number ``restart`` (from 1): none before the first, then 10, 20, 40, … as the kubelet waits."""
    return 0.0 if restart <= 1 else min(first * 2.0 ** (restart - 2), most)
