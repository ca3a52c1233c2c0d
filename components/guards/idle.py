"""The idle guard: brings GPU node groups without a job back to their idle count.

It runs in the cluster (``python3 idle.py CONFIG [--once]``) with the standard library and boto3 alone. What it knows from
one round to the next, since when each group is idle, is in a ConfigMap: its own restart changes nothing.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

GROUP_LABEL = "eksfsdp/gpu-group"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
GPU_RESOURCE = "nvidia.com/gpu"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_SECONDS = 20.0

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """A node group as AWS has it, and what it goes back to."""

    name: str
    node_group: str
    desired: int
    minimum: int
    idle: int

    @property
    def target(self) -> int:
        """Nodes without a job: never under the Auto Scaling group's minimum."""
        return max(self.idle, self.minimum)


@dataclass(frozen=True)
class Idle:
    """Since when (seconds since the epoch) a group is idle, and at how many nodes."""

    since: float
    nodes: int


@dataclass(frozen=True)
class Decision:
    """What is done about one group, and why."""

    group: str
    action: str
    """``used``, ``small`` (it is at its idle count), ``wait``, ``scale``, or ``failed`` where AWS refused to."""
    why: str
    to: int | None = None
    """Nodes to scale to."""
    idle: Idle | None = None
    """What is remembered for the next round."""


def decide(
    now: float,
    groups: Iterable[Group],
    used: Mapping[str, str],
    idle: Mapping[str, Idle],
    idle_seconds: float,
) -> list[Decision]:
    """One decision for each group. ``used``: by group, what uses it or waits for it."""
    return [_decide(now, group, used.get(group.name), idle.get(group.name), idle_seconds) for group in groups]


def _decide(now: float, group: Group, user: str | None, before: Idle | None, idle_seconds: float) -> Decision:
    if user is not None:
        return Decision(group.name, "used", user)
    if group.desired <= group.target:
        return Decision(group.name, "small", f"{group.desired} nodes")
    # Somebody who has just added nodes is about to use them: the time begins anew.
    same = before if before is not None and group.desired <= before.nodes else Idle(now, group.desired)
    left = same.since + idle_seconds - now
    if left > 0:
        return Decision(group.name, "wait", f"{group.desired} nodes, idle since {_time(same.since)}", idle=same)
    why = f"{group.desired} nodes, idle since {_time(same.since)}"
    return Decision(group.name, "scale", why, to=group.target, idle=same)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def users(
    groups: Iterable[str],
    nodes: Iterable[Object],
    pods: Iterable[Object],
    workloads: Iterable[Object],
    jobs: Iterable[Object],
) -> dict[str, str]:
    """By group, one thing that uses it: a job's pod on its nodes, or what waits for nodes and may mean this group."""
    names = list(groups)
    where = {node["metadata"]["name"]: (node["metadata"].get("labels") or {}).get(GROUP_LABEL) for node in nodes}
    found: dict[str, str] = {}

    def waiting(what: str, spec: Object) -> None:
        wanted = (spec.get("nodeSelector") or {}).get(GROUP_LABEL)
        # Where nothing says which group is meant, it may be any.
        for name in names if wanted is None else [wanted]:
            found.setdefault(name, what)

    for pod in pods:
        what = f"pod {_name(pod)}"
        if not is_jobs(pod) or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        node = pod["spec"].get("nodeName")
        if node is None:
            waiting(f"{what}, pending", pod["spec"])
        elif where.get(node) is not None:
            found.setdefault(str(where[node]), what)
    for workload in workloads:
        if workload["spec"].get("active", True) and not _holds(workload, "Finished"):
            for part in workload["spec"].get("podSets") or []:
                waiting(f"workload {_name(workload)}", part["template"]["spec"])
    for job in jobs:
        parked = (job["spec"].get("runPolicy") or {}).get("suspend", False)
        if not parked and not _holds(job, "Succeeded") and not _holds(job, "Failed"):
            for part in (job["spec"].get("pytorchReplicaSpecs") or {}).values():
                waiting(f"job {_name(job)}", part["template"]["spec"])
    return found


def is_jobs(pod: Object) -> bool:
    """Whether a pod is a job's: the training operator's, or one that asks for GPUs."""
    if JOB_NAME_LABEL in (pod["metadata"].get("labels") or {}):
        return True
    asked = [container.get("resources") or {} for container in pod["spec"].get("containers") or []]
    return any(
        str((of.get(kind) or {}).get(GPU_RESOURCE, "0")) != "0" for of in asked for kind in ("limits", "requests")
    )


def _name(item: Object) -> str:
    return f"{item['metadata'].get('namespace')}/{item['metadata']['name']}"


def _holds(item: Object, condition: str) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)


class Kube:
    """The API server as the pod's service account sees it. Raises `OSError` where it does not answer or refuses."""

    def __init__(self, url: str, account: Path = ACCOUNT) -> None:
        self._url = url
        self._account = account
        self._context = ssl.create_default_context(cafile=str(account / "ca.crt")) if url.startswith("https") else None

    def request(self, method: str, path: str, body: Object | None = None) -> Any:
        """A decoded answer; a body is a merge patch."""
        headers = {
            # Read anew: the kubelet renews it.
            "Authorization": f"Bearer {(self._account / 'token').read_text().strip()}",
            "Content-Type": "application/merge-patch+json",
        }
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS, context=self._context) as answer:
            return json.load(answer)

    def items(self, path: str) -> list[Object]:
        """All of a list, page by page."""
        found: list[Object] = []
        more = ""
        joint = "&" if "?" in path else "?"
        while True:
            page = self.request("GET", f"{path}{joint}limit=500&continue={more}")
            found += page["items"]
            more = urllib.parse.quote((page.get("metadata") or {}).get("continue") or "", safe="")
            if not more:
                return found

    def custom(self, api: str, plural: str) -> list[Object]:
        """All of a custom resource in its preferred version; none where the cluster does not know it."""
        try:
            version = self.request("GET", f"/apis/{api}")["preferredVersion"]["groupVersion"]
            return self.items(f"/apis/{version}/{plural}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise


def look(kube: Kube, groups: Iterable[str]) -> dict[str, str]:
    """`users` of the cluster as it is. Raises `OSError`: half of what there is would be idle that is not."""
    return users(
        groups,
        kube.items(f"/api/v1/nodes?labelSelector={urllib.parse.quote(GROUP_LABEL, safe='')}"),
        kube.items("/api/v1/pods?fieldSelector=status.phase!=Succeeded,status.phase!=Failed"),
        kube.custom("kueue.x-k8s.io", "workloads"),
        kube.custom("kubeflow.org", "pytorchjobs"),
    )


def round_(config: Object, kube: Kube, eks: Any, now: float) -> list[Decision]:
    """Look, decide, and do it; one group that AWS does not change now holds up no other.

    Raises `OSError`, and botocore's errors where AWS does not tell what there is.
    """
    groups = _groups(config, eks)
    place = f"/api/v1/namespaces/{config['namespace']}/configmaps/{config['state']}"
    text = (kube.request("GET", place).get("data") or {}).get("idle", "{}")
    idle = {name: Idle(**value) for name, value in json.loads(text).items()}
    decisions = decide(now, groups, look(kube, [g.name for g in groups]), idle, config["idle_seconds"])
    after = json.dumps({d.group: asdict(d.idle) for d in decisions if d.idle is not None}, sort_keys=True)
    if after != text:
        kube.request("PATCH", place, {"data": {"idle": after}})
    return [_do(config["cluster"], eks, *pair) for pair in zip(groups, decisions, strict=True)]


def _groups(config: Object, eks: Any) -> list[Group]:
    """The groups that are there: one that its expiry has deleted is not."""
    found = []
    for wanted in config["groups"]:
        try:
            answer = eks.describe_nodegroup(clusterName=config["cluster"], nodegroupName=wanted["node_group"])
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "ResourceNotFoundException":
                continue
            raise
        scaling = answer["nodegroup"]["scalingConfig"]
        found.append(
            Group(wanted["name"], wanted["node_group"], scaling["desiredSize"], scaling["minSize"], wanted["idle"])
        )
    return found


def _do(cluster: str, eks: Any, group: Group, decision: Decision) -> Decision:
    """The decision as it came out."""
    if decision.to is None:
        return decision
    try:
        eks.update_nodegroup_config(
            clusterName=cluster, nodegroupName=group.node_group, scalingConfig={"desiredSize": decision.to}
        )
    except ClientError as error:
        return replace(decision, action="failed", why=f"{decision.why}: {error}")
    return decision


def tell(what: Mapping[str, Any]) -> None:
    """One line of JSON on standard output."""
    print(json.dumps({"time": _time(time.time()), **what}), flush=True)


def main(arguments: list[str]) -> int:
    """Rounds for ever, or one with ``--once``; its exit code is then 1 where the round failed."""
    config: Object = json.loads(Path(arguments[0]).read_text())
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    kube = Kube(f"https://{host}:{port}")
    eks = boto3.client("eks", region_name=config["region"])
    told: dict[str, tuple[str, str]] = {}
    while True:
        failed = False
        try:
            # Read anew: groups come and go.
            config = json.loads(Path(arguments[0]).read_text())
            for decision in round_(config, kube, eks, time.time()):
                failed |= decision.action == "failed"
                if told.get(decision.group) != (decision.action, decision.why):
                    told[decision.group] = (decision.action, decision.why)
                    shown = {"group": decision.group, "action": decision.action, "why": decision.why}
                    tell(shown if decision.to is None else {**shown, "to": decision.to})
        except (OSError, BotoCoreError, ClientError) as error:
            # On half of the truth nothing is scaled: the next round sees again.
            failed = True
            tell({"error": f"{type(error).__name__}: {error}"})
        if "--once" in arguments:
            return int(failed)
        time.sleep(config["period_seconds"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
