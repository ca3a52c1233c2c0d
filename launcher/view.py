"""Look at a cluster's nodes, jobs and logs, and end a job: through the Kubernetes API alone."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from eks_fsdp.spec.names import (
    EFA_RESOURCE,
    GPU_GROUP_LABEL,
    GPU_RESOURCE,
    INSTANCE_TYPE_LABEL,
    JOB_LABEL,
    NODE_GROUP_LABEL,
    RUN_LABEL,
    SIMULATED_LABEL,
)

from . import objects
from .aws import Aws, AwsError
from .errors import UserError
from .health import NodeGroups, ask_node_groups, cluster_name_of, expected_nodes, print_trouble, size_differences
from .kube import UNREACHABLE_SECONDS, ApiError, Cluster, Object
from .live import console, live_line
from .logs import Cursor, PodFollower, read_log
from .run import is_own_run, run_stack
from .runfolder import seconds_text
from .stack import Engine, Platform, cluster_without_stack, find_checkout, open_platform
from .sweep import GONE_SECONDS
from .tracker import RowError, parse_row
from .watch import wait_until_gone

DEFAULT_NAMESPACE = "training"
AWAY_SECONDS = 1.0
"""Between two attempts while the API server is away."""


@dataclass(frozen=True)
class Place:
    """A cluster, a namespace, and the platform's stack where there is one."""

    cluster: Cluster
    namespaces: tuple[str, ...]
    """The jobs' namespaces: the one that was asked for, else the stack's own and its teams'."""
    platform: Platform | None
    engine: Engine | None


@contextmanager
def place(stack: str | None, namespace: str | None) -> Iterator[Place]:
    """The cluster of the stack, else of KUBECONFIG. Raises `UserError`."""
    if stack is None:
        yield Place(cluster_without_stack(), (namespace or DEFAULT_NAMESPACE,), None, None)
        return
    with tempfile.TemporaryDirectory(prefix="eks-fsdp-") as folder:
        engine = Engine(find_checkout(), Path(folder))
        platform = open_platform(stack, engine)
        every = (platform.namespace, *platform.settings.teams)
        yield Place(platform.cluster(), (namespace,) if namespace else every, platform, engine)


def find_job(at: Place, name: str | None) -> Object:
    """A PyTorchJob by its own name or by its job's; the newest where several match. Raises `UserError`."""
    jobs = _jobs(at)
    found = [
        job
        for job in jobs
        if name is None or objects.name_of(job) == name or objects.labels_of(job).get(JOB_LABEL) == name
    ]
    if not found:
        known = ", ".join(objects.name_of(job) for job in jobs) or "none"
        what = f"no job {name!r}" if name else "no job"
        raise UserError(f"{what} in namespace {' or '.join(map(repr, at.namespaces))}; there: {known}")
    return found[-1]


def _jobs(at: Place) -> list[Object]:
    """PyTorchJobs of all the namespaces, oldest first."""
    found = [job for namespace in at.namespaces for job in at.cluster.jobs(namespace)]
    return sorted(found, key=lambda job: objects.created_at(job) or 0.0)


def show_status(stack: str | None, namespace: str | None) -> None:
    """Print nodes, jobs and why pods wait. Raises `UserError`."""
    with place(stack, namespace) as at:
        groups, why_not = _ask_aws(at)
        declared = expected_nodes(at.platform.outputs) if at.platform is not None else {}
        _print_nodes(at, {name: groups.desired.get(name, count) for name, count in declared.items()})
        if why_not:
            console.print(Text(why_not, "dim"), soft_wrap=True)
        own = at.platform is not None and at.platform.settings.cluster.mode == "create"
        _print_troubles(groups, declared if own else {})
        _print_jobs(at)


def _ask_aws(at: Place) -> tuple[NodeGroups, str]:
    """The cluster's node groups, and why they are not shown where AWS cannot be asked."""
    name = cluster_name_of(at.platform) if at.platform is not None else None
    if at.platform is None or name is None:
        return NodeGroups(), ""
    try:
        return ask_node_groups(Aws(at.platform.settings.region, attempts=1), name), ""
    except AwsError as error:
        return NodeGroups(), f"Nodes only; AWS' own view of the node groups is not shown: {error}"


def _print_nodes(at: Place, expected: Mapping[str, int]) -> None:
    groups: dict[tuple[str, str], list[Object]] = {}
    try:
        every = at.cluster.nodes()
    except ApiError as error:
        if error.status != 403:
            raise
        console.print("Nodes: not shown; these credentials may look at jobs alone.")
        return
    for node in every:
        labels = objects.labels_of(node)
        group_name = labels.get(GPU_GROUP_LABEL) or labels.get(NODE_GROUP_LABEL, "–")
        groups.setdefault((group_name, labels.get(INSTANCE_TYPE_LABEL, "–")), []).append(node)
    for name, count in expected.items():
        if count and not any(group_name == name for group_name, _ in groups):
            groups[name, "–"] = []
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("Node group", "Instance type", "Ready", "Expected", "GPUs", "EFA", ""):
        left = heading in ("Node group", "Instance type", "")
        shown.add_column(heading, justify="left" if left else "right", overflow="fold")
    for (name, kind), nodes in sorted(groups.items()):
        ready = sum(objects.is_ready(node) for node in nodes)
        wanted = expected.get(name, len(nodes))
        simulated = any(objects.labels_of(node).get(SIMULATED_LABEL) == "true" for node in nodes)
        style = "green" if ready == wanted else "yellow"
        shown.add_row(
            name,
            kind,
            Text(str(ready), style),
            str(wanted),
            str(_allocatable(nodes, GPU_RESOURCE)),
            str(_allocatable(nodes, EFA_RESOURCE)),
            Text("simulated", "dim") if simulated else "",
        )
    console.print(shown)


def _print_troubles(groups: NodeGroups, declared: Mapping[str, int]) -> None:
    """What AWS says of the cluster's node groups, and of sizes that are not those last deployed."""
    differences = size_differences(groups.desired, declared)
    for line in differences:
        console.print(Text(line, "yellow"), soft_wrap=True)
    for trouble in groups.troubles:
        print_trouble(trouble)
    if differences or groups.troubles:
        console.print()


def _allocatable(nodes: list[Object], resource: str) -> int:
    return sum(int(node.get("status", {}).get("allocatable", {}).get(resource, 0)) for node in nodes)


def _print_jobs(at: Place) -> None:
    jobs = _jobs(at)
    if not jobs:
        console.print(f"No jobs in namespace {' or '.join(at.namespaces)}.")
        return
    several = len(at.namespaces) > 1
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in (*(["Namespace"] if several else []), "Job", "Phase", "Pods", "Restarts", "Age"):
        shown.add_column(heading, justify="left" if heading in ("Namespace", "Job", "Phase") else "right")
    reasons: list[str] = []
    for job in jobs:
        name, namespace = objects.name_of(job), objects.namespace_of(job)
        pods = at.cluster.pods(namespace, name)
        waiting = [] if objects.job_end(job) else [pod for pod in pods if objects.waiting_reason(pod)]
        events = at.cluster.events(namespace, *(objects.name_of(pod) for pod in waiting)) if waiting else []
        reasons += [f"{objects.name_of(pod)}: {objects.waiting_reason(pod, events)}" for pod in waiting]
        queued = objects.is_queued(job)
        if queued:
            reasons.append(f"{name}: {objects.queue_reason(at.cluster.workload(namespace, job))}")
        phase = "Queued" if queued else objects.job_phase(job)
        colour = {"Succeeded": "green", "Running": "cyan", "Failed": "red"}.get(phase, "yellow")
        running = sum(objects.phase_of(pod) in ("Running", "Succeeded") for pod in pods)
        shown.add_row(
            *([namespace] if several else []),
            name,
            Text(phase, colour),
            f"{running}/{len(pods)}",
            str(sum(objects.restart_count(pod) for pod in pods)),
            seconds_text(time.time() - (objects.created_at(job) or time.time())),
        )
    console.print(shown)
    for reason in reasons:
        console.print(Text.assemble(("waits  ", "yellow"), reason), soft_wrap=True)


def show_logs(stack: str | None, namespace: str | None, job: str | None, *, follow: bool, every: bool) -> None:
    """Print logs: the leader's (the pods that print rows), or with ``every`` all pods'. Raises `UserError`."""
    with place(stack, namespace) as at:
        found = find_job(at, job)
        name, namespace = objects.name_of(found), objects.namespace_of(found)
        if follow:
            _follow(at.cluster, namespace, name, every=every)
            return
        pods = sorted(at.cluster.pods(namespace, name), key=objects.replica_of)
        texts = {
            objects.name_of(pod): _whole_log(at.cluster, pod) for pod in pods if objects.container_has_started(pod)
        }
        if not texts:
            if objects.is_queued(found):
                raise UserError(
                    f"job {name} has no log yet; {objects.queue_reason(at.cluster.workload(namespace, found))}"
                )
            waiting = [f"{objects.name_of(p)}: {objects.waiting_reason(p)}" for p in pods if objects.waiting_reason(p)]
            raise UserError(f"job {name} has no log yet; " + ("; ".join(waiting) or "it has no pods"))
        leaders = [pod for pod, lines in texts.items() if any(map(is_row, lines))] or list(texts)[:1]
        for pod, lines in texts.items():
            if every or pod in leaders:
                for line in lines:
                    _say(pod if every else None, line)


def _whole_log(cluster: Cluster, pod: Object) -> list[str]:
    name, namespace, cursor = objects.name_of(pod), objects.namespace_of(pod), Cursor()
    lines: list[str] = []
    if objects.restart_count(pod):
        try:
            lines += read_log(cluster, namespace, name, cursor, previous=True)
        except ApiError as error:
            if error.status not in (400, 404):
                raise
    lines += read_log(cluster, namespace, name, cursor)
    return lines


class LeaderFilter:
    """Lets through the lines of pods that print rows; what others said before the first row waits for it."""

    def __init__(self) -> None:
        self._held: dict[str, list[str]] = {}
        self._leaders: set[str] = set()

    def take(self, pod: str, line: str) -> list[str]:
        """The lines that may now be shown."""
        if pod in self._leaders:
            return [line]
        self._held.setdefault(pod, []).append(line)
        if not is_row(line):
            return []
        self._leaders.add(pod)
        return self._held.pop(pod)

    def rest(self) -> list[str]:
        """Where no pod ever led: the lines of the first that said anything."""
        return [] if self._leaders or not self._held else self._held[min(self._held)]


def _follow(cluster: Cluster, namespace: str, name: str, *, every: bool) -> None:
    lines: queue.Queue[tuple[str, str]] = queue.Queue()
    followers: dict[str, PodFollower] = {}
    leader = LeaderFilter()
    told: set[str] = set()
    over_since: float | None = None
    answered = time.monotonic()
    try:
        while True:
            try:
                job = cluster.job(namespace, name)
                pods = cluster.pods(namespace, name)
                queued = job is not None and objects.is_queued(job)
                in_queue = objects.queue_reason(cluster.workload(namespace, job)) if job and queued else None
                answered = time.monotonic()
            except ApiError as error:
                if not error.passes or time.monotonic() - answered > UNREACHABLE_SECONDS:
                    raise
                time.sleep(AWAY_SECONDS)
                continue
            if in_queue and in_queue not in told:
                told.add(in_queue)
                console.print(Text(f"{name} {in_queue}", "yellow"), soft_wrap=True)
            for pod in pods:
                uid = objects.uid_of(pod)
                if uid not in followers:
                    emit = lambda pod_name, _, line: lines.put((pod_name, line))  # noqa: E731
                    followers[uid] = PodFollower(cluster, namespace, pod, emit)
                    followers[uid].start()
                reason = objects.waiting_reason(pod)
                if (
                    reason
                    and reason not in told
                    and objects.phase_of(pod) == "Pending"
                    and objects.node_of(pod) is None
                ):
                    told.add(reason)
                    console.print(Text(f"{objects.name_of(pod)} waits: {reason}", "yellow"), soft_wrap=True)
            deadline = time.monotonic() + 1
            while (left := deadline - time.monotonic()) > 0:
                try:
                    pod_name, line = lines.get(timeout=left)
                except queue.Empty:
                    break
                for shown in [line] if every else leader.take(pod_name, line):
                    _say(pod_name if every else None, shown)
            if job is None or objects.job_end(job):
                over_since = over_since or time.monotonic()
                idle = lines.empty() and not any(f.is_alive() for f in followers.values())
                if idle or time.monotonic() - over_since > 15:
                    break
    finally:
        for follower in followers.values():
            follower.halt()
    for line in leader.rest():
        _say(None, line)
    if job is not None and (ended := objects.job_end(job)):
        console.print(
            Text(f"{name}: {ended[0]}. {ended[1]}", "green" if ended[0] == "Succeeded" else "red"), soft_wrap=True
        )


def is_row(line: str) -> bool:
    """Whether a line is one of rank 0's rows."""
    try:
        return parse_row(line) is not None
    except RowError:
        return False


def _say(pod: str | None, line: str) -> None:
    console.print(Text.assemble((f"{pod}  ", "cyan") if pod else "", line), soft_wrap=True)


def stop_job(stack: str | None, namespace: str | None, job: str) -> None:
    """Delete a job and wait for its pods to go; a stack that the launcher made for it goes too. Raises `UserError`."""
    with place(stack, namespace) as at:
        found = find_job(at, job)
        name, namespace = objects.name_of(found), objects.namespace_of(found)
        run = objects.labels_of(found).get(RUN_LABEL)
        if at.platform is None and run and is_own_run(run):
            raise UserError(f"job {name} has a Pulumi stack of its own, which goes with it: pass -s STACK")
        with live_line(f"Stopping {name}"):
            at.cluster.delete_job(namespace, name)
            wait_until_gone(at.cluster, namespace, name, GONE_SECONDS)
            if at.platform is not None and at.engine is not None and run:
                own = run_stack(at.platform.stack, run)
                if at.engine.exists(own):
                    at.engine.stage(own, {"config": {}, **_secrets(at.platform)})
                    at.engine.down(own)
        console.print(f"Stopped [bold]{name}[/].")


def _secrets(platform: Platform) -> dict[str, object]:
    from .stack import KEEP_SECRETS

    return {key: platform.content[key] for key in KEEP_SECRETS if key in platform.content}
