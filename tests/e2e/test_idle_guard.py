"""The idle guard as it runs in the cluster: what it sees, what it does, what it may not do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eks_fsdp.sandbox.account import account_client

from .conftest import Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SYSTEM = ("kubectl", "-n", "eks-fsdp-system")
ROUND = (
    *SYSTEM,
    "exec",
    "deploy/idle-guard",
    "--",
    "python3",
    "/etc/idle-guard/idle.py",
    "/etc/idle-guard/config.json",
)
WAITING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "waits", "namespace": "training"},
    "spec": {
        "nodeSelector": {"eksfsdp/gpu-group": "p5", "nobody": "has-this"},
        "containers": [{"name": "c", "image": "busybox:1.36", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    },
}


def looks(sandbox: Sandbox) -> dict[str, Any]:
    """One round of the guard, in its own pod."""
    seen: dict[str, Any] = json.loads(sandbox.run(*ROUND, "--once"))
    return seen


def test_a_group_that_no_job_uses_goes_to_its_idle_count(platform: Sandbox) -> None:
    platform.run(
        "kubectl", "wait", "-n", "training", "--for=condition=Succeeded", "pytorchjob", "--all", "--timeout=120s"
    )
    eks: Any = account_client(platform.environment["AWS_ENDPOINT_URL"], "eks")
    cluster = eks.list_clusters()["clusters"][0]
    group = next(name for name in eks.list_nodegroups(clusterName=cluster)["nodegroups"] if "gpu-p5" in name)
    long_ago = {"data": {"idle": json.dumps({"p5": {"since": 0, "nodes": 4}})}}
    remember = (*SYSTEM, "patch", "configmap", "idle-guard-state", "--type=merge", "-p", json.dumps(long_ago))
    try:
        platform.run("bash", "-c", 'kubectl apply -f - <<< "$1"', "bash", json.dumps(WAITING))
        platform.run(*remember)
        assert looks(platform)["why"] == "pod training/waits, pending", "it is about to be used"
        platform.run("kubectl", "-n", "training", "delete", "pod", "waits", "--now")

        assert looks(platform)["action"] == "wait", "its time begins anew"
        platform.run(*remember)
        done = looks(platform)
        assert (done["action"], done["to"]) == ("scale", 0)
        scaling = eks.describe_nodegroup(clusterName=cluster, nodegroupName=group)["nodegroup"]["scalingConfig"]
        assert scaling == {"minSize": 0, "desiredSize": 0, "maxSize": 4}
        assert platform.run("kubectl", "get", "nodes", "-l", "eksfsdp/gpu-group=p5", "-o", "name") == ""
        assert looks(platform)["action"] == "small"
    finally:
        eks.update_nodegroup_config(clusterName=cluster, nodegroupName=group, scalingConfig={"desiredSize": 4})


@pytest.mark.parametrize(
    "what", ["get secrets", "delete pods", "patch nodes", "patch configmaps/grafana", "create pods -n training"]
)
def test_it_may_do_nothing_else(platform: Sandbox, what: str) -> None:
    who = "--as=system:serviceaccount:eks-fsdp-system:idle-guard"
    assert platform.run(*SYSTEM, "auth", "can-i", who, *what.split(), check=False).strip() == "no"
