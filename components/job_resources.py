"""What a worker asks for: a whole node, less what kubelet, system and daemons have of it."""

from __future__ import annotations

from collections.abc import Sequence

from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE

from .objects import Manifest

OWN_DAEMONS_CPU_MILLIS, OWN_DAEMONS_MEMORY_MIB = 160, 1344
"""What the program's own DaemonSets request on a GPU node, together; a test sums it up from their manifests."""
_ADDONS_CPU_MILLIS, _ADDONS_MEMORY_MIB = 1500, 2048
"""Room for the daemons of EKS add-ons: vpc-cni, kube-proxy, Pod Identity, the CSI drivers', node monitoring, CloudWatch."""
_MEMORY_SHARE = 0.95
"""Of what is left, what is asked for. Only p4de and p5 nodes were looked at, and a job that asks for more than there is never
starts; one that asks for less may use the rest all the same, as it has no limit."""
_SHM_MIB_PER_GPU, _SHM_SHARE = 16 * 1024, 4


def devices(instance: InstanceType, efa_interfaces: int) -> dict[str, str]:
    """Requests and limits: every GPU and EFA interface of the node, so that nobody else is placed on it."""
    found = {GPU_RESOURCE: str(instance.gpus)}
    if efa_interfaces:
        # Without this request libfabric falls back to TCP, whatever the environment says.
        found[EFA_RESOURCE] = str(efa_interfaces)
    return found


def cpu_and_memory(instances: Sequence[InstanceType], hugepages_2mib: int | None) -> tuple[int, int]:
    """CPUs and memory in MiB that every one of ``instances`` has left for a job.

    ``hugepages_2mib``: huge pages on each node; None: those that EFA's installer sets aside on the type.
    """
    cpu = min(i.allocatable_cpu_millis for i in instances) - OWN_DAEMONS_CPU_MILLIS - _ADDONS_CPU_MILLIS
    pages = [i.hugepages_2mib if hugepages_2mib is None else hugepages_2mib for i in instances]
    memory = min(i.memory_left(p) for i, p in zip(instances, pages, strict=True))
    memory -= OWN_DAEMONS_MEMORY_MIB + _ADDONS_MEMORY_MIB
    return max(1, cpu // 1000), max(512, int(memory * _MEMORY_SHARE))


def shared_memory_mib(gpus: int, memory_mib: int) -> int:
    """Size of ``/dev/shm``: it counts as the container's memory, so a quarter of that at most."""
    return min(gpus * _SHM_MIB_PER_GPU, memory_mib // _SHM_SHARE)


def worker_resources(cpu: int, memory_mib: int, devices: dict[str, str]) -> Manifest:
    """Requests of all, limits of the devices alone: they must be equal there, and elsewhere would only hold a job back."""
    return {"requests": {"cpu": str(cpu), "memory": f"{memory_mib}Mi", **devices}, "limits": dict(devices)}
