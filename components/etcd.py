"""etcd for torchrun's rendezvous: one member, with or without a disk of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from eks_fsdp.spec.names import ETCD_CLIENT_PORT, ETCD_SERVICE, SYSTEM_NAMESPACE
from eks_fsdp.spec.versions import ETCD_IMAGE

from .objects import LOCKED_DOWN, Manifest, declare, http_probe, labels, metadata, resources, service, workload

ETCD_HOST = f"{ETCD_SERVICE}.{SYSTEM_NAMESPACE}.svc"
"""Where jobs of every namespace find it."""
EBS_DRIVER = "ebs.csi.aws.com"
STORAGE_CLASS, CLAIM = "eks-fsdp-etcd", "etcd-data"
_DATA = "/var/lib/etcd"
_USER = 10001


def etcd_service() -> Manifest:
    """The Service in front of the one member."""
    return service(ETCD_SERVICE, {"client": ETCD_CLIENT_PORT})


def etcd_stateful_set(node_selector: Mapping[str, str], *, persistent: bool) -> Manifest:
    """One member, on the nodes that ``node_selector`` selects; ``persistent``: its data is on the volume of `CLAIM`."""
    # Names of their own: one of two kinds at once is what an API server sees for a moment where the setting changes.
    if persistent:
        volume: Manifest = {"name": "disk", "persistentVolumeClaim": {"claimName": CLAIM}}
    else:
        volume = {"name": "data", "emptyDir": {"sizeLimit": "2Gi"}}
    container = {
        "name": "etcd",
        "image": ETCD_IMAGE,
        "command": ["etcd"],
        "args": [
            "--name=rendezvous",
            # A folder of its own making: it wants one that nobody else can read, and a volume's has lost+found in it.
            f"--data-dir={_DATA}/member-data",
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
        "volumeMounts": [{"name": volume["name"], "mountPath": _DATA}],
    }
    pod: Manifest = {
        # Every running job restarts through it: it is the last of the system nodes' pods to be evicted.
        "priorityClassName": "system-cluster-critical",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [volume],
    }
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    return workload("StatefulSet", ETCD_SERVICE, pod)


def disruption_budget() -> Manifest:
    """No drain takes a member without a volume as long as it is well: all running jobs would lose what they have agreed on."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(ETCD_SERVICE),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": labels(ETCD_SERVICE)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def storage_class(tags: Mapping[str, str]) -> Manifest:
    """Encrypted gp3 volumes with ``tags``, each made in the zone of its pod and deleted with its claim."""
    tagged = {f"tagSpecification_{n}": f"{key}={value}" for n, (key, value) in enumerate(sorted(tags.items()), 1)}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": metadata(STORAGE_CLASS, ETCD_SERVICE, namespaced=False),
        "provisioner": EBS_DRIVER,
        "parameters": {"type": "gp3", "encrypted": "true", **tagged},
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def data_claim(storage_gib: int) -> Manifest:
    """The claim of the member's volume. No template of the StatefulSet: those outlive it, and so would the volume."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(CLAIM, ETCD_SERVICE),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": STORAGE_CLASS,
            "resources": {"requests": {"storage": f"{storage_gib}Gi"}},
        },
    }


@dataclass(frozen=True, kw_only=True)
class EtcdArgs:
    """Inputs of `Etcd`."""

    node_selector: Mapping[str, str]
    """Labels of the nodes that it may run on; empty: any without a taint."""
    persistent: bool = False
    """Whether its data is on an EBS volume, which needs the EBS CSI driver."""
    storage_gib: int = 8
    """Size of that volume in GiB."""
    tags: Mapping[str, str]
    """Tags of that volume."""
    deleted_with: pulumi.Resource | None = None
    """The cluster, which it ends with, but for what holds an AWS resource or would hold up a drain."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: the system namespace and nodes to run on."""


class Etcd(pulumi.ComponentResource):
    """One etcd behind the Service ``etcd``, ready once a client can write to it."""

    def __init__(self, name: str, args: EtcdArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:etcd:Etcd", name, None, opts)
        # Deleted by itself, and before nodes and cluster: a volume whose claim went with the cluster would stay for ever,
        # its pod holds the claim, and a budget holds up the end of the nodes.
        own = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on))
        inside = pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on), deleted_with=args.deleted_with)
        server = inside
        if args.persistent:
            kind = declare(f"{name}-storage-class", storage_class(args.tags), own)
            after_kind = pulumi.ResourceOptions(parent=self, depends_on=[kind, *args.depends_on])
            claim = declare(f"{name}-claim", data_claim(args.storage_gib), after_kind)
            server = pulumi.ResourceOptions(parent=self, depends_on=[claim, *args.depends_on])
        else:
            declare(f"{name}-budget", disruption_budget(), own)
        declare(f"{name}-server", etcd_stateful_set(args.node_selector, persistent=args.persistent), server)
        declare(f"{name}-service", etcd_service(), inside)
        self.register_outputs({"endpoint": f"{ETCD_HOST}:{ETCD_CLIENT_PORT}"})
