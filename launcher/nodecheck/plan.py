"""Pure: which nodes are measured together, what is asked of a node, and which of them is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eks_fsdp.launcher.objects import labels_of
from eks_fsdp.spec.bandwidth import GATES
from eks_fsdp.spec.instances import InstanceType
from eks_fsdp.spec.names import EFA_RESOURCE, GPU_RESOURCE, INSTANCE_TYPE_LABEL

Backend = Literal["nccl", "gloo"]

CONDITIONS = ("AcceleratedHardwareReady", "NetworkingReady", "StorageReady", "KernelReady", "ContainerRuntimeReady")
"""What EKS' node monitoring agent reports; an XID is the first one's reason, such as ``NvidiaXID79Error``."""


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pairs in rounds: every two names once, and in a round no name twice. n - 1 rounds, or n where n is odd."""
    ring: list[str | None] = list(names)
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    made: list[list[tuple[str, str]]] = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        made.append([(a, b) for a, b in pairs if a is not None and b is not None])
        # The first stays, the others move on by one place.
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return [pairs for pairs in made if pairs]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One all-reduce over some nodes."""

    nodes: tuple[str, ...]
    gb_per_second: float | None = None
    """Bus bandwidth of the largest message; None: none was measured, or there is one rank alone."""
    transport: str = ""
    error: str = ""
    """Why nothing was measured."""

    @property
    def kind(self) -> str:
        """What was measured."""
        return {1: "node", 2: "pair"}.get(len(self.nodes), "all")


def fault(measure: Measure, instance: InstanceType, backend: Backend) -> str:
    """What is wrong with a measurement; empty: nothing. Gates are for NCCL between nodes."""
    if measure.error:
        return measure.error
    if backend == "gloo" or len(measure.nodes) == 1:
        return ""
    if instance.efa_interfaces and measure.transport != "efa":
        return f"the ranks talked over {measure.transport}, and {instance.name} has EFA"
    gate, got = GATES.get(instance.name), measure.gb_per_second
    if gate is not None and got is not None and got < gate.gb_per_second:
        return f"{got:.1f} GB/s, and {instance.name} must reach {gate.gb_per_second:.0f} ({gate.source})"
    return ""


def node_faults(node: Mapping[str, Any], instance: InstanceType) -> list[str]:
    """What a node's own object says against it: type, devices that are not allocatable, conditions of its monitoring."""
    status, kind = node.get("status") or {}, labels_of(dict(node)).get(INSTANCE_TYPE_LABEL)
    found = [f"is a {kind}, and the group's type is {instance.name}"] if kind not in (None, instance.name) else []
    for resource, wanted in ((GPU_RESOURCE, instance.gpus), (EFA_RESOURCE, instance.efa_interfaces)):
        got = int((status.get("allocatable") or {}).get(resource, 0))
        if got != wanted:
            found.append(f"{got} of {wanted} {resource} are allocatable")
    for condition in status.get("conditions") or []:
        if condition.get("type") in CONDITIONS and condition.get("status") == "False":
            found.append(f"{condition.get('reason') or condition['type']}: {condition.get('message') or 'no message'}")
    return found


def device_faults(seen: Mapping[str, Any], instance: InstanceType) -> list[str]:
    """What a pod that was given the whole node sees less of than it should."""
    found = []
    gpus, domains = seen.get("gpus"), seen.get("efa_domains")
    if gpus is None:
        found.append("nvidia-smi is not in the pod: the container runtime did not add the driver")
    elif gpus != instance.gpus:
        found.append(f"nvidia-smi lists {gpus} GPUs, not {instance.gpus}")
    if instance.efa_interfaces:
        devices = int(seen.get("efa_devices") or 0)
        if devices != instance.efa_interfaces:
            found.append(f"{devices} of {instance.efa_interfaces} /dev/infiniband/uverbs* are in the pod")
        elif domains is None:
            found.append("fi_info is not in the image: libfabric is not installed, or not on PATH")
        elif domains != instance.efa_interfaces:
            found.append(f"fi_info -p efa lists {domains} of {instance.efa_interfaces} interfaces")
    return found


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Who is to blame for what was measured."""

    bad: Mapping[str, str]
    """Why, by node."""
    links: tuple[tuple[str, str], ...] = ()
    """Pairs that failed though neither node is to blame for its others."""
    notes: tuple[str, ...] = ()


def judge(nodes: Sequence[str], faults: Mapping[str, Sequence[str]], wrong: Mapping[tuple[str, ...], str]) -> Verdict:
    """Name the bad nodes.

    ``faults``: what each node was found to be by itself. ``wrong``: the measurements that failed, with why, by their
    nodes. A pair says that one of two is bad; a node most of whose pairs fail is, and its pairs then say nothing of the
    others.
    """
    bad = {node: "; ".join(why) for node, why in faults.items() if why}
    for measured, why in wrong.items():
        if len(measured) == 1 and measured[0] not in bad:
            bad[measured[0]] = f"alone: {why}"
    pairs = {frozenset(measured) for measured in wrong if len(measured) == 2}
    while open_pairs := [pair for pair in pairs if not pair & bad.keys()]:
        count = {node: sum(node in pair for pair in open_pairs) for node in nodes if node not in bad}
        worst = max(count, key=lambda node: (count[node], node))
        others = len(count) - 1
        # With two nodes left, or one failure of several, nothing tells which of the two it is.
        if others < 2 or count[worst] * 2 <= others:
            break
        why = next(text for measured, text in wrong.items() if len(measured) == 2 and worst in measured)
        bad[worst] = f"{count[worst]} of {others} pairs with sound nodes fail: {why}"
    links = tuple(
        sorted(
            (measured[0], measured[1]) for measured in wrong if len(measured) == 2 and not set(measured) & bad.keys()
        )
    )
    notes = tuple(
        f"all {len(measured)} nodes together: {why}"
        for measured, why in wrong.items()
        if len(measured) > 2 and not set(measured) & bad.keys()
    )
    return Verdict(bad=bad, links=links, notes=notes)


def figures(measures: Iterable[Measure], node: str) -> list[float]:
    """Bus bandwidths of the pairs that a node was in."""
    return sorted(
        m.gb_per_second for m in measures if m.kind == "pair" and node in m.nodes and m.gb_per_second is not None
    )
