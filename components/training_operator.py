"""The Kubeflow training operator, from its own manifests by the kustomization in ``operator/``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pulumi

from eks_fsdp.spec.versions import TRAINING_OPERATOR_MANIFESTS

from .kustomization import Directory, Kustomization

OPERATOR = Kustomization(
    folder=Path(__file__).parent / "operator",
    pinned=TRAINING_OPERATOR_MANIFESTS,
    setting="training_operator.manifests",
    meant="the operator's folder manifests/base",
)

PATCH, CPU, MEMORY = "operator.yaml", "100m", "256Mi"
"""Our patch of its Deployment, and what stands there as CPU request, and as memory request and limit."""


def kustomization(cpu: str, memory: str) -> Kustomization:
    """Ours, with these resources in its patch."""
    if (cpu, memory) == (CPU, MEMORY):
        return OPERATOR
    text = (OPERATOR.folder / PATCH).read_text()
    text = text.replace(f"cpu: {CPU}", f"cpu: {cpu}").replace(f"memory: {MEMORY}", f"memory: {memory}")
    return replace(OPERATOR, files={PATCH: text})


@dataclass(frozen=True, kw_only=True)
class TrainingOperatorArgs:
    """Inputs of `TrainingOperator`."""

    manifests: str = TRAINING_OPERATOR_MANIFESTS
    """The operator's kustomization ``manifests/base``: a URL with a ``ref``, or a folder relative to ``work_dir``."""
    cpu: str = CPU
    """CPU request."""
    memory: str = MEMORY
    """Memory request and limit."""
    work_dir: Path = Path()
    """What a relative folder is relative to; the program's own by default."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: nodes to run on."""


class TrainingOperator(pulumi.ComponentResource):
    """The operator with its PyTorchJob resource and webhook. What depends on it is declared once it is ready."""

    def __init__(self, name: str, args: TrainingOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:operator:TrainingOperator", name, None, opts)
        Directory(
            f"{name}-manifests",
            directory=str(kustomization(args.cpu, args.memory).built_from(args.manifests, args.work_dir)),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on)),
        )
        self.register_outputs({})
