"""The pods of a check: one on each node, which sleeps until it is told what to run, and goes with the check."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eks_fsdp.launcher import objects
from eks_fsdp.launcher.errors import WaitError
from eks_fsdp.launcher.kube import ApiError, Cluster, Object
from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE, GPU_TAINT_KEY
from eks_fsdp.spec.records import CHECK_KEY
from eks_fsdp.spec.settings import GpuNodeGroupSettings

from .plan import Backend, Measure

T = TypeVar("T")
R = TypeVar("R")
CHECK_LABEL = "eksfsdp/check-nodes"
MODULE = "eks_fsdp.trainer.check_nodes"
FIRST_PORT = 29500
POD_SECONDS = 4 * 3600
"""After which Kubernetes ends a pod of a check whose launcher was killed."""
START_SECONDS = 60.0
"""For torchrun and NCCL to come up, beyond what a measurement itself may take."""


def pod_manifest(
    name: str,
    node: str,
    *,
    check: str,
    image: str,
    namespace: str,
    group: GpuNodeGroupSettings,
    instance: InstanceType,
    environment: Mapping[str, str],
) -> Object:
    """A pod that takes every GPU and EFA interface of one node, so that it disturbs no job and no job disturbs it."""
    devices = {GPU_RESOURCE: str(instance.gpus)}
    if group.uses_efa:
        devices[EFA_RESOURCE] = str(instance.efa_interfaces)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    container = {
        "name": "check",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(POD_SECONDS)],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": key, "value": value} for key, value in environment.items()),
        ],
        "resources": {"requests": {"cpu": "1", "memory": "4Gi", **devices}, "limits": devices},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {CHECK_LABEL: check}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": POD_SECONDS,
            # `sleep` is the first process of its container, and so deaf to SIGTERM.
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "affinity": affinity,
            "tolerations": [
                {"key": GPU_TAINT_KEY, "operator": "Exists"},
                *({"key": taint.key, "operator": "Exists"} for taint in group.taints),
            ],
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How each measurement is run."""

    backend: Backend
    processes: int
    """Ranks on each node."""
    mib: Sequence[float]
    """Message sizes, the last of which counts."""
    seconds: float
    """For one measurement, after everything has come up."""


@dataclass
class Pods:
    """The pods of one check, by node."""

    cluster: Cluster
    namespace: str
    check: str
    names: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """Of the pods that run."""
    _port: int = FIRST_PORT
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def start(self, manifests: Mapping[str, Object]) -> None:
        """Create a pod for each node. Raises `ApiError`."""
        for node, manifest in manifests.items():
            self.names[node] = objects.name_of(manifest)
            self.cluster.create(self._path, manifest)

    def wait(self, limit: float, show: Callable[[str], None]) -> dict[str, str]:
        """Wait until every pod runs. Returns why, by node, for those that do not after ``limit`` seconds."""
        deadline = time.monotonic() + limit
        while True:
            pods = self.cluster.items(self._path, labelSelector=f"{CHECK_LABEL}={self.check}")
            by_name = {objects.name_of(pod): pod for pod in pods}
            waiting: dict[str, str] = {}
            for node, name in self.names.items():
                pod = by_name.get(name)
                address = (pod or {}).get("status", {}).get("podIP")
                if pod is not None and objects.phase_of(pod) == "Running" and address:
                    self.addresses[node] = str(address)
                else:
                    waiting[node] = self._why(pod)
            if not waiting or time.monotonic() > deadline:
                return waiting
            show(f"{len(self.addresses)} of {len(self.names)} pods run; {next(iter(waiting.values()))}")
            time.sleep(1)

    @staticmethod
    def _why(pod: Object | None) -> str:
        if pod is None:
            return "its pod is gone"
        return objects.waiting_reason(pod) or objects.exit_story(pod) or f"its pod is {objects.phase_of(pod)}"

    def devices(self, node: str) -> dict[str, Any] | str:
        """What the node's pod sees of GPUs and EFA, or why that could not be told."""
        code, text = self._run(node, ["python", "-m", MODULE, "devices"], 120.0)
        rows = check_rows(text)
        return rows[-1] if rows else f"looking at its devices failed ({_ended(code)}): {_last_line(text)}"

    def reduce(self, nodes: Sequence[str], shape: Shape) -> Measure:
        """One all-reduce over the nodes' pods."""
        with self._lock:
            # A port of its own: the one before may not be free yet.
            port, self._port = self._port, self._port + 1
        limit = shape.seconds + START_SECONDS
        command = ["timeout", "-k", "5", str(int(limit)), "torchrun", "--nnodes", str(len(nodes))]
        command += ["--nproc-per-node", str(shape.processes), "--max-restarts", "0"]
        command += ["--master-addr", self.addresses[nodes[0]], "--master-port", str(port), "--node-rank"]
        what = ["-m", MODULE, "reduce", "--backend", shape.backend, "--timeout", str(shape.seconds), "--mib"]
        what += [str(mib) for mib in shape.mib]
        # A little longer than the pods' own limit: then it is they who tell.
        ended = side_by_side(
            lambda rank: self._run(nodes[rank], [*command, str(rank), *what], limit + 15), range(len(nodes))
        )
        return measure_of(nodes, ended)

    def _run(self, node: str, command: Sequence[str], limit: float) -> tuple[int | None, str]:
        try:
            return self.cluster.execute(self.namespace, self.names[node], command, limit)
        except ApiError as error:
            return None, str(error)

    def remove(self, limit: float = 60.0) -> None:
        """Delete every pod of the check, and wait until they are gone. Raises `ApiError`, `WaitError`."""
        for name in self.names.values():
            self.cluster.delete(f"{self._path}/{name}")
        deadline = time.monotonic() + limit
        while left := self.cluster.items(self._path, labelSelector=f"{CHECK_LABEL}={self.check}"):
            if time.monotonic() > deadline:
                names = ", ".join(objects.name_of(pod) for pod in left)
                raise WaitError(f"waited {limit:.0f} s for pods of the check to go; left: {names}")
            time.sleep(0.5)


def side_by_side(act: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """``act`` on each thing at once, and the answers in their order. What one of them raises is raised.

    In threads that nobody waits for: an interrupt leaves at once, and their requests end with the pods.
    """
    wanted = list(things)
    answers: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            answers[number] = act(wanted[number])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(wanted))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(wanted))]


def check_rows(text: str) -> list[dict[str, Any]]:
    """The lines of `trainer.check_nodes` in a command's output."""
    found = []
    for line in text.splitlines():
        start = line.find("{")
        if start >= 0 and f'"{CHECK_KEY}"' in line:
            try:
                found.append(dict(json.loads(line[start:])))
            except ValueError:
                continue
    return found


def measure_of(nodes: Sequence[str], ended: Sequence[tuple[int | None, str]]) -> Measure:
    """What the commands of one measurement, one for each node, make of it."""
    rows = check_rows(ended[0][1])
    wrong = [(node, code, text) for node, (code, text) in zip(nodes, ended, strict=True) if code != 0]
    if wrong or not rows:
        # Who ended first cannot be told, but torchrun names the rank that failed in its own words.
        node, code, text = wrong[0] if wrong else (nodes[0], ended[0][0], ended[0][1])
        return Measure(nodes=tuple(nodes), error=f"torchrun on {node} {_ended(code)}: {_last_line(text)}")
    return Measure(nodes=tuple(nodes), gb_per_second=rows[-1]["gb_per_second"], transport=str(rows[-1]["transport"]))


def _ended(code: int | None) -> str:
    if code is None:
        return "did not end"
    return {124: "did not end in time", 137: "was killed"}.get(code, f"ended with {code}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error" in line]
    return (told or lines or ["it wrote nothing"])[-1][:300]
