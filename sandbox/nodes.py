"""Nodes: their names and addresses, and the Node objects that stand for machines of an instance type."""

from __future__ import annotations

import asyncio
import uuid
import zlib
from dataclasses import dataclass, field
from typing import Any

from eks_fsdp.sandbox.images import EFA_PLUGIN, GPU_PLUGIN
from eks_fsdp.sandbox.logs import timestamp
from eks_fsdp.sandbox.network import FIRST_NODE, NODE_ADDRESSES, dotted
from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE, SIMULATED_LABEL
from eks_fsdp.spec.versions import KUBERNETES_PATCH

Object = dict[str, Any]
KUBELET_PORT = 10250
LEASE_SECONDS = 40
HUGE_PAGES_MIB = ((32, 42242), (2, 21122), (1, 10256))
"""EFA interfaces (at least) -> MiB of 2 MiB pages that EKS' accelerated images set aside: as seen on p5, p4de and g5 nodes."""
CPU_RESERVED = ((1, 0.06), (1, 0.01), (2, 0.005), (10**6, 0.0025))
"""CPUs -> share of them that the kubelet reserves on EKS: 6 % of the first, 1 % of the second, …"""
MEMORY_RESERVED_MIB, MEMORY_PER_POD_MIB, EVICTION_MIB = 255, 11, 100


class NodeGroupError(ValueError):
    """A node group's description is refused. The message names the key."""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """A node group as the machine room is told of it."""

    name: str
    desired: int
    instance_type: str
    cpu: int
    """vCPUs."""
    memory_mib: int
    gpus: int = 0
    efa_interfaces: int = 0
    pods: int = 110
    zone: str = "us-west-2a"
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)

    def huge_pages_mib(self) -> int:
        """MiB in 2 MiB pages."""
        return next((mib for efa, mib in HUGE_PAGES_MIB if self.efa_interfaces >= efa), 0)

    @classmethod
    def parse(cls, name: str, body: Object) -> NodeGroup:
        """Raises `NodeGroupError`."""
        known = set(cls.__dataclass_fields__) - {"name"}
        unknown = sorted(body.keys() - known)
        if unknown:
            raise NodeGroupError(f"{unknown[0]}: unknown key; known: {', '.join(sorted(known))}")
        for key in ("desired", "cpu", "memory_mib", "gpus", "efa_interfaces", "pods"):
            value = body.get(key, 0)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise NodeGroupError(f"{key}: {value!r} is not a whole number of 0 or more")
        try:
            return cls(name=name, **body)
        except TypeError as error:
            raise NodeGroupError(str(error).removeprefix("NodeGroup.__init__() ")) from None


def reserved_millicpu(cpus: int) -> int:
    """What EKS sets aside of ``cpus`` for the system: 80 of 4,000, 550 of 192,000."""
    reserved = 0.0
    for count, share in CPU_RESERVED:
        reserved += min(cpus, count) * share * 1000
        cpus -= min(cpus, count)
    return round(reserved)


@dataclass
class Node:
    """One node. ``devices`` are the device plugins that run on it."""

    group: NodeGroup
    index: int
    address: str
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    lost: bool = False
    devices: frozenset[str] = frozenset()
    xid: dict[int, int] = field(default_factory=dict)
    """GPU index -> the last XID error raised there."""
    reporting: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Held while the node's status is told to the API server."""

    @property
    def name(self) -> str:
        """As EKS names nodes: by private address."""
        region = self.group.zone.rstrip("abcdefgh")
        return f"ip-{self.address.replace('.', '-')}.{region}.compute.internal"

    @property
    def instance_id(self) -> str:
        """Stable for a group and index."""
        return f"i-{zlib.crc32(self.name.encode()):08x}{zlib.crc32(self.group.name.encode()):08x}0"

    def labels(self) -> dict[str, str]:
        """The group's, and those that every kubelet sets."""
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": self.group.instance_type,
            "topology.kubernetes.io/zone": self.group.zone,
            "topology.kubernetes.io/region": self.group.zone.rstrip("abcdefgh"),
            **self.group.labels,
            SIMULATED_LABEL: "true",
        }

    def capacity(self) -> dict[str, str]:
        """What the node has; devices only while their plugin runs on it."""
        group = self.group
        huge = self.group.huge_pages_mib()
        resources = {
            "cpu": str(group.cpu),
            "memory": f"{group.memory_mib}Mi",
            "pods": str(group.pods),
            "ephemeral-storage": "100Gi",
            "hugepages-2Mi": f"{huge}Mi" if huge else "0",
            "hugepages-1Gi": "0",
        }
        if group.gpus:
            resources[GPU_RESOURCE] = str(group.gpus if GPU_PLUGIN in self.devices else 0)
        if group.efa_interfaces:
            resources[EFA_RESOURCE] = str(group.efa_interfaces if EFA_PLUGIN in self.devices else 0)
        return resources

    def allocatable(self) -> dict[str, str]:
        """Capacity less what EKS reserves for system and kubelet."""
        group = self.group
        resources = self.capacity()
        reserved_mib = MEMORY_RESERVED_MIB + MEMORY_PER_POD_MIB * group.pods + EVICTION_MIB + group.huge_pages_mib()
        resources["cpu"] = f"{group.cpu * 1000 - reserved_millicpu(group.cpu)}m"
        resources["memory"] = f"{max(group.memory_mib - reserved_mib, group.memory_mib // 2)}Mi"
        return resources

    def manifest(self) -> Object:
        """The Node object to create."""
        spec: Object = {"providerID": f"aws:///{self.group.zone}/{self.instance_id}"}
        if self.group.taints:
            spec["taints"] = [dict(taint) for taint in self.group.taints]
        metadata = {"name": self.name, "labels": self.labels(), "annotations": {"node.alpha.kubernetes.io/ttl": "0"}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}

    def resources(self) -> Object:
        """The part of the status that changes with the devices."""
        return {"capacity": self.capacity(), "allocatable": self.allocatable()}

    def status(self) -> Object:
        """The status of a node that is well, as it is told when the node joins or comes back."""
        return {
            **self.resources(),
            "addresses": [
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.name},
                {"type": "InternalDNS", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": self.uid,
                "machineID": self.uid.replace("-", ""),
                "systemUUID": self.uid,
                "kernelVersion": "6.12.0-eks-fsdp-sandbox",
                "osImage": "eks-fsdp sandbox (no machine stands behind this node)",
                "operatingSystem": "linux",
                "containerRuntimeVersion": "eks-fsdp://sandbox",
                "kubeletVersion": f"v{KUBERNETES_PATCH}",
                "kubeProxyVersion": "",
            },
            "conditions": node_conditions(),
        }


def node_conditions() -> list[Object]:
    """Ready, and under no pressure."""
    now = timestamp()[:19] + "Z"
    well = {
        "Ready": ("True", "KubeletReady", "the node agent is running"),
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "enough memory"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "enough process ids"),
    }
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, (status, reason, message) in well.items()
    ]


def lease(node: Node, renewed: str) -> Object:
    """The node's heartbeat."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node.name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": node.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed},
    }


def node_address(group: str, index: int, taken: set[str]) -> str:
    """The same address for a group and index each time, unless another node has it."""
    offset = zlib.crc32(f"{group}/{index}".encode()) % NODE_ADDRESSES
    while (address := dotted(FIRST_NODE + 1 + offset)) in taken:
        offset = (offset + 1) % NODE_ADDRESSES
    return address
