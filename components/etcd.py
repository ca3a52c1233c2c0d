"""etcd for torchrun's rendezvous. What it holds lives as long as a job, so one member without a disk will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from eks_fsdp.spec.names import ETCD_CLIENT_PORT, ETCD_SERVICE, SYSTEM_NAMESPACE
from eks_fsdp.spec.versions import ETCD_IMAGE

from .objects import LOCKED_DOWN, Manifest, declare, http_probe, resources, service, workload

ETCD_HOST = f"{ETCD_SERVICE}.{SYSTEM_NAMESPACE}.svc"
"""Where jobs of every namespace find it."""
_DATA = "/var/lib/etcd"


def etcd_service() -> Manifest:
    """The Service in front of the one member."""
    return service(ETCD_SERVICE, {"client": ETCD_CLIENT_PORT})


def etcd_stateful_set(node_selector: Mapping[str, str]) -> Manifest:
    """One member, on the nodes that ``node_selector`` selects."""
    container = {
        "name": "etcd",
        "image": ETCD_IMAGE,
        "command": ["etcd"],
        "args": [
            "--name=rendezvous",
            f"--data-dir={_DATA}",
            f"--listen-client-urls=http://0.0.0.0:{ETCD_CLIENT_PORT}",
            f"--advertise-client-urls=http://{ETCD_HOST}:{ETCD_CLIENT_PORT}",
            # Nobody joins this member, so its peer port stays inside the pod.
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=rendezvous=http://127.0.0.1:2380",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=1h",
        ],
        "ports": [{"name": "client", "containerPort": ETCD_CLIENT_PORT}],
        "readinessProbe": http_probe("/readyz", ETCD_CLIENT_PORT, period=2),
        "livenessProbe": {**http_probe("/livez", ETCD_CLIENT_PORT), "failureThreshold": 6},
        "securityContext": LOCKED_DOWN,
        "resources": resources("100m", "512Mi"),
        "volumeMounts": [{"name": "data", "mountPath": _DATA}],
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "2Gi"}}],
    }
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    return workload("StatefulSet", ETCD_SERVICE, pod)


@dataclass(frozen=True, kw_only=True)
class EtcdArgs:
    """Inputs of `Etcd`."""

    node_selector: Mapping[str, str]
    """Labels of the nodes that it may run on; empty: any without a taint."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the system namespace and nodes to run on."""


class Etcd(pulumi.ComponentResource):
    """One etcd behind the Service ``etcd``, ready once a client can write to it."""

    def __init__(self, name: str, args: EtcdArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:etcd:Etcd", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on))
        declare(f"{name}-server", etcd_stateful_set(args.node_selector), child)
        declare(f"{name}-service", etcd_service(), child)
        self.register_outputs({"endpoint": f"{ETCD_HOST}:{ETCD_CLIENT_PORT}"})
