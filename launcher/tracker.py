"""Pure: what is known of one job so far, from API objects and log lines, and the run record it becomes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ValidationError

from eks_fsdp.spec.names import INSTANCE_TYPE_LABEL, SIMULATED_LABEL
from eks_fsdp.spec.records import EVENT_KEY, EndRow, EvalRow, Restarts, RunRecord, StartRow, StepRow
from eks_fsdp.spec.settings import JobSettings

from . import objects
from .objects import Object

Row = StartRow | StepRow | EvalRow | EndRow
_ROWS: dict[str, type[Row]] = {"start": StartRow, "step": StepRow, "eval": EvalRow, "end": EndRow}

NO_PODS = "(no pods)"
"""Stands for the pods that a job does not have yet, among those that wait."""

Condition = Literal["Succeeded", "Failed", "Stopped", "Unknown"]


class RowError(ValueError):
    """A line claims to be a trainer's row and is none of this schema."""


def parse_row(line: str) -> Row | None:
    """The trainer's row in a log line; None where it is an ordinary line. Raises `RowError`."""
    start = line.find("{")
    if start < 0 or f'"{EVENT_KEY}"' not in line:
        return None
    try:
        value = json.loads(line[start:])
    except ValueError:
        raise RowError(line) from None
    if not isinstance(value, dict) or EVENT_KEY not in value:
        return None
    kind = _ROWS.get(str(value[EVENT_KEY]))
    if kind is None:
        raise RowError(line)
    try:
        return kind.model_validate(value)
    except ValidationError:
        raise RowError(line) from None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for: enough to judge the run."""

    job: str
    """Name of the PyTorchJob."""
    run: str
    nodes: int
    gpus_per_node: int
    settings: JobSettings | None = None

    @property
    def processes_per_node(self) -> int:
        """Ranks on each node."""
        return (self.settings.processes_per_node if self.settings else None) or self.gpus_per_node

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run, where they are known."""
        return self.settings.trainer.steps if self.settings else None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One look at a job."""

    phase: str
    elapsed: float
    """Seconds since the job was created."""
    pods: Mapping[str, str]
    """Phase by pod name."""
    nodes_asked: int
    running: int
    """Pods that run or have ended well."""
    waiting: Mapping[str, str]
    """Why each waiting pod waits, by pod name, in the scheduler's or kubelet's words."""
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    restarts: Restarts = field(default_factory=Restarts)
    trouble: str | None = None
    """What went wrong last, such as a container's exit code or an API server that does not answer."""

    queued: str | None = None
    """Why the job waits in the queue, where it does."""

    @property
    def reason(self) -> str | None:
        """Why the job does not run yet, in one line."""
        if self.queued:
            return self.queued
        if not self.waiting:
            return None
        texts = list(dict.fromkeys(self.waiting.values()))
        if NO_PODS in self.waiting:
            return texts[0]
        more = f" (and {len(texts) - 1} other reasons)" if len(texts) > 1 else ""
        return f"{len(self.waiting)} of {self.nodes_asked} pods wait: {texts[0]}{more}"


@dataclass
class _Pod:
    name: str
    replica: str
    node: str | None = None
    restarts: int = 0
    phase: str = "Pending"


@dataclass
class Tracker:
    """Takes in what is seen; safe to use from several threads."""

    asked: Asked
    pods: dict[str, _Pod] = field(default_factory=dict)
    """Every pod ever seen, by uid."""
    rows: list[Row] = field(default_factory=list)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """Labels by node name."""
    leader: str | None = None
    """Name of the pod that printed the last row."""
    condition: Condition = "Unknown"
    message: str = ""
    trouble: str | None = None
    unread_rows: int = 0
    created: float | None = None
    phase: str = "Created"
    finished: float | None = None
    queued: str | None = None
    """Why the job waits in the queue, where it does. It holds no nodes then."""
    _current: list[str] = field(default_factory=list)
    _waiting: dict[str, str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def see_job(self, job: Object | None, now: float) -> None:
        """The PyTorchJob as it is; None: it is gone."""
        with self._lock:
            if job is None:
                if self.phase != "Created":
                    self.end("Stopped", "the job was deleted", now)
                return
            self.created = self.created or objects.created_at(job)
            self.phase = objects.job_phase(job)
            ended = objects.job_end(job)
            if ended:
                succeeded = ended[0] == "Succeeded"
                story = "" if succeeded else "; ".join(filter(None, (ended[1], self.trouble)))
                self.end("Succeeded" if succeeded else "Failed", story, now)

    def see_pods(self, pods: Iterable[Object], events: Callable[[list[str]], list[Object]]) -> None:
        """The job's pods as they are; ``events`` is asked about waiting pods only."""
        with self._lock:
            self._current = []
            waiting = []
            for pod in pods:
                uid = objects.uid_of(pod)
                if uid not in self.pods:
                    self.pods[uid] = _Pod(objects.name_of(pod), objects.replica_of(pod))
                known = self.pods[uid]
                known.node = objects.node_of(pod) or known.node
                known.restarts = max(known.restarts, objects.restart_count(pod))
                known.phase = objects.phase_of(pod)
                self.trouble = objects.exit_story(pod) or self.trouble
                self._current.append(uid)
                if objects.waiting_reason(pod) is not None:
                    waiting.append(pod)
        about = events([objects.name_of(pod) for pod in waiting]) if waiting else []
        with self._lock:
            self._waiting = {}
            for pod in waiting:
                self._waiting[objects.name_of(pod)] = objects.waiting_reason(pod, about) or "unknown"

    def see_node(self, name: str, labels: Mapping[str, str]) -> None:
        """Labels of a node that a pod was placed on."""
        with self._lock:
            self.labels[name] = dict(labels)

    def see_line(self, pod: str, uid: str, line: str) -> Row | None:
        """One new line of a pod's log. Returns the row that it is, if it is one."""
        try:
            row = parse_row(line)
        except RowError:
            with self._lock:
                self.unread_rows += 1
            return None
        if row is not None:
            with self._lock:
                self.rows.append(row)
                self.leader = pod
        return row

    def end(self, condition: Condition, message: str, now: float) -> None:
        """The job has ended; the first end told is the one that counts."""
        with self._lock:
            if self.condition == "Unknown":
                self.condition, self.message, self.finished = condition, message, now

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.condition != "Unknown"

    @property
    def nodes(self) -> list[str]:
        """Nodes that pods were placed on, sorted."""
        with self._lock:
            return sorted({pod.node for pod in self.pods.values() if pod.node})

    @property
    def restarts(self) -> Restarts:
        """What restarted so far."""
        with self._lock:
            starts = [row for row in self.rows if isinstance(row, StartRow)]
            replicas: dict[str, int] = {}
            for pod in self.pods.values():
                replicas[pod.replica] = replicas.get(pod.replica, 0) + 1
            return Restarts(
                # A round can end before its start row; torchrun's own count tells of it.
                rendezvous_rounds=max([len(starts) - 1, 0, *(row.restart_count for row in starts)]),
                container_restarts=sum(pod.restarts for pod in self.pods.values()),
                pod_recreations=sum(count - 1 for count in replicas.values()),
            )

    def progress(self, now: float, no_pods: str | None = None) -> Progress:
        """How the job is doing. ``no_pods``: why it has none yet."""
        with self._lock:
            steps = [row for row in self.rows if isinstance(row, StepRow)]
            last = steps[-1] if steps else None
            current = {self.pods[uid].name: self.pods[uid].phase for uid in self._current}
            waiting = dict(self._waiting)
            if not current and no_pods and not self.ended:
                waiting = {NO_PODS: no_pods}
            return Progress(
                phase=self.condition if self.ended else self.phase,
                elapsed=(self.finished or now) - (self.created or now),
                pods=current,
                nodes_asked=self.asked.nodes,
                running=sum(phase in ("Running", "Succeeded") for phase in current.values()),
                waiting=waiting,
                step=last.step if last else 0,
                steps=self.asked.steps,
                loss=last.loss if last and math.isfinite(last.loss) else None,
                tokens_per_second=last.tokens_per_second if last else None,
                restarts=self.restarts,
                trouble=self.trouble,
                queued=None if self.ended else self.queued,
            )

    def record(self) -> RunRecord:
        """All that is known of the run."""
        with self._lock:
            ends = [row for row in self.rows if isinstance(row, EndRow)]
            return RunRecord(
                job=self.asked.job,
                run=self.asked.run,
                nodes_asked=self.asked.nodes,
                gpus_per_node=self.asked.gpus_per_node,
                processes_per_node=self.asked.processes_per_node,
                transport=self.asked.settings.transport if self.asked.settings else "unknown",
                instance_types=sorted(
                    {v[INSTANCE_TYPE_LABEL] for v in self.labels.values() if INSTANCE_TYPE_LABEL in v}
                ),
                nodes_seen=self.nodes,
                simulated=any(v.get(SIMULATED_LABEL) == "true" for v in self.labels.values()),
                condition=self.condition,
                message=self.message,
                restarts=self.restarts,
                started=self.created,
                finished=self.finished,
                settings=self.asked.settings,
                unread_rows=self.unread_rows,
                starts=[row for row in self.rows if isinstance(row, StartRow)],
                steps=[row for row in self.rows if isinstance(row, StepRow)],
                evals=[row for row in self.rows if isinstance(row, EvalRow)],
                end=ends[-1] if ends else None,
            )
