"""Watch one PyTorchJob to its end: progress as it comes, a limit on every wait, and a run record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eks_fsdp.spec.records import RunRecord

from . import objects
from .errors import WaitError
from .kube import UNREACHABLE_SECONDS, ApiError, Cluster, Object
from .logs import PodFollower
from .tracker import Asked, Progress, Tracker


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds after which a wait is given up and the job stopped."""

    pending: float = 900.0
    """From the job's start, or its pods' disappearance, until all its pods run. Time in the queue does not count."""
    queue: float | None = None
    """In the queue, where the job holds no nodes; None: for as long as it takes."""
    silent: float = 900.0
    """Without a new row while all pods run: loading, compiling or a step that takes longer is a hang."""
    unreachable: float = UNREACHABLE_SECONDS
    """Without an answer from the API server."""
    drain: float = 15.0
    """For the logs' ends, after the job's own."""


class Watch:
    """Watches one job; `run` returns when it has ended or a limit was reached."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        asked: Asked,
        *,
        limits: Limits = Limits(),
        on_progress: Callable[[Progress], None] = lambda progress: None,
        log_folder: Path | None = None,
        poll_seconds: float = 1.0,
    ) -> None:
        self.tracker = Tracker(asked)
        self._cluster = cluster
        self._namespace = namespace
        self._asked = asked
        self._limits = limits
        self._on_progress = on_progress
        self._folder = log_folder
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        self._poll = poll_seconds
        self._followers: dict[str, PodFollower] = {}
        """By the pod's uid."""
        self._last_answer = self._last_row = self._last_complete = time.monotonic()
        self._queued_since: float | None = None
        self._no_pods: str | None = None
        self._absence: str | None = None
        """What was told of an API server that does not answer."""

    def run(self) -> RunRecord:
        """Watch to the end. A job over a limit is deleted, with the reason in the record's message."""
        self._last_answer = self._last_row = self._last_complete = time.monotonic()
        try:
            while not self.tracker.ended:
                self._look()
                self._on_progress(self.tracker.progress(time.time(), self._no_pods))
                if not self.tracker.ended:
                    self._enforce_limits()
                    time.sleep(self._poll)
            self._drain()
        finally:
            for follower in self._followers.values():
                follower.halt()
        self._on_progress(self.tracker.progress(time.time()))
        return self.tracker.record()

    def _look(self) -> None:
        tracker, now = self.tracker, time.time()
        try:
            pods = self._cluster.pods(self._namespace, self._asked.job)
            if tracker.trouble == self._absence:
                tracker.trouble = None
            # Before any request that can fail: a pod whose log is not followed would lose its rows.
            self._follow(pods)
            tracker.see_pods(pods, lambda names: self._cluster.events(self._namespace, *names))
            for node in tracker.nodes:
                if not tracker.labels.get(node):
                    tracker.see_node(node, self._cluster.node_labels(node))
            job = self._cluster.job(self._namespace, self._asked.job)
            queued = job is not None and objects.is_queued(job)
            tracker.queued = (
                objects.queue_reason(self._cluster.workload(self._namespace, job)) if job and queued else None
            )
            if not pods and not queued:
                self._no_pods = self._why_no_pods() if job else f"PyTorchJob {self._asked.job} does not exist"
            tracker.see_job(job, now)
        except ApiError as error:
            silent = time.monotonic() - self._last_answer
            self._absence = tracker.trouble = f"{error} (for {silent:.0f} s)"
            if silent > self._limits.unreachable:
                raise WaitError(
                    f"waited {silent:.0f} s for the API server while watching job {self._asked.job}: {error}"
                ) from None
            return
        self._last_answer = time.monotonic()
        complete = tracker.progress(now).running >= self._asked.nodes
        if not tracker.queued:
            self._queued_since = None
        elif self._queued_since is None:
            self._queued_since = time.monotonic()
        if complete or tracker.queued:
            self._last_complete = time.monotonic()
        if not complete:
            self._last_row = time.monotonic()

    def _follow(self, pods: list[Object]) -> None:
        for pod in pods:
            uid = objects.uid_of(pod)
            if uid not in self._followers:
                self._followers[uid] = PodFollower(self._cluster, self._namespace, pod, self._take)
                self._followers[uid].start()

    def _why_no_pods(self) -> str:
        events = self._cluster.events(self._namespace, self._asked.job)
        warnings = [event for event in events if event.get("type") == "Warning"]
        if warnings:
            return f"{warnings[-1].get('reason')}: {warnings[-1].get('message')}"
        return "the training operator has made no pods yet"

    def _take(self, pod: str, uid: str, line: str) -> None:
        if self._folder is not None:
            try:
                with (self._folder / f"{pod}-{uid[:8]}.log").open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                # A full disk costs the copy of the log, not the run: its rows are read all the same.
                self._folder = None
                self.tracker.trouble = f"logs are no longer kept: {error}"
        if self.tracker.see_line(pod, uid, line) is not None:
            self._last_row = time.monotonic()

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        queued = now - (self._queued_since or now)
        if self._limits.queue is not None and queued > self._limits.queue:
            self.stop(f"in the queue for more than {self._limits.queue:.0f} s: {self.tracker.queued}")
            return
        pending, silent = now - self._last_complete, now - self._last_row
        if pending > self._limits.pending:
            why = self.tracker.progress(time.time(), self._no_pods).reason or "not all pods run"
            self.stop(f"pending for more than {self._limits.pending:.0f} s: {why}")
        elif silent > self._limits.silent:
            step = self.tracker.progress(time.time()).step
            self.stop(f"no row for more than {self._limits.silent:.0f} s after step {step}")

    def stop(self, reason: str) -> None:
        """Delete the job; ``reason`` goes into the record."""
        try:
            self._cluster.delete_job(self._namespace, self._asked.job)
        except ApiError as error:
            reason = f"{reason} (deleting it failed: {error})"
        self.tracker.end("Stopped", reason, time.time())

    def _drain(self) -> None:
        # A job that was stopped takes its pods, and so their logs, with it.
        stopped = self.tracker.condition == "Stopped"
        deadline = time.monotonic() + min(self._limits.drain, 3.0 if stopped else self._limits.drain)
        for follower in self._followers.values():
            follower.join(max(0.0, deadline - time.monotonic()))
        # A restart between the last look at the pods and the job's end is not to be missed.
        self._look()


def wait_until_gone(cluster: Cluster, namespace: str, job: str, limit: float) -> None:
    """Wait for the last pod of a deleted job to be gone. Raises `WaitError` after ``limit`` seconds, `ApiError`."""
    deadline, left = time.monotonic() + limit, ""
    while True:
        try:
            left = ", ".join(objects.name_of(pod) for pod in cluster.pods(namespace, job))
            if not left:
                return
        except ApiError as error:
            if not error.passes:
                raise
            left = left or str(error)
        if time.monotonic() > deadline:
            raise WaitError(f"waited {limit:.0f} s for the pods of the deleted job {job} to go; left: {left}")
        time.sleep(0.5)
