"""Where a job's pods are placed: taints that they tolerate, and nodes that are close to each other in the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from eks_fsdp.spec.names import NETWORK_LAYER_LABELS, OPERATOR_JOB_NAME_LABEL
from eks_fsdp.spec.settings import TaintSettings

from .objects import GPU_TOLERATION, Manifest

_WEIGHTS = (20, 50, 100)
"""For nodes that share the network's first, second, third layer: the lower the layer they share, the fewer hops between them."""


def tolerations(taints: Iterable[TaintSettings]) -> list[Manifest]:
    """Of the GPUs' taint and of the group's own ones."""
    own = [
        {"key": t.key, "operator": "Equal", "value": t.value, "effect": t.effect}
        if t.value
        else {"key": t.key, "operator": "Exists", "effect": t.effect}
        for t in taints
    ]
    return [GPU_TOLERATION, *own]


def affinity(topology: Literal["preferred", "required", "none"], job: str) -> Manifest:
    """Pods of ``job`` beside each other, by the labels that EKS puts on nodes of types with a known place; {} for ``none``.

    ``preferred`` takes what there is, and nodes without labels. ``required`` keeps the job below one switch of the first
    layer, and leaves it pending where there is no such place.
    """
    if topology == "none":
        return {}

    def beside(key: str) -> Manifest:
        return {"labelSelector": {"matchLabels": {OPERATOR_JOB_NAME_LABEL: job}}, "topologyKey": key}

    terms = [
        {"weight": weight, "podAffinityTerm": beside(key)}
        for key, weight in zip(NETWORK_LAYER_LABELS, _WEIGHTS, strict=True)
    ]
    rules: Manifest = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    if topology == "required":
        rules["requiredDuringSchedulingIgnoredDuringExecution"] = [beside(NETWORK_LAYER_LABELS[0])]
    return {"podAffinity": rules}
