"""The Kubeflow training operator, from its own manifests by the kustomization in ``operator/``."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.versions import TRAINING_OPERATOR_MANIFESTS

KUSTOMIZATION = Path(__file__).parent / "operator"
"""The folder of our kustomization."""


def check_manifests(manifests: str, work_dir: Path) -> None:
    """Raises `SettingsError` where ``manifests`` is a folder, relative to ``work_dir``, without a kustomization."""
    if "://" not in manifests and not (work_dir / manifests / "kustomization.yaml").is_file():
        raise SettingsError(
            f"training_operator.manifests: {manifests!r} has no kustomization.yaml (looked in {work_dir.resolve()}); "
            f"accepted: the operator's folder manifests/base, or a URL such as {TRAINING_OPERATOR_MANIFESTS}"
        )


def kustomization_folder(manifests: str, work_dir: Path) -> Path:
    """The folder to build: ours, or where ``manifests`` is not the pinned URL, a copy of it that takes that instead.

    ``manifests`` is a URL or a folder relative to ``work_dir``. kustomize takes relative folders alone, so a copy is
    made for this process, which removes it at its end. Raises `SettingsError` where the folder has no kustomization.
    """
    check_manifests(manifests, work_dir)
    if manifests == TRAINING_OPERATOR_MANIFESTS:
        return KUSTOMIZATION
    folder = Path(tempfile.mkdtemp(prefix="eks-fsdp-operator-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(KUSTOMIZATION, folder, dirs_exist_ok=True)
    if "://" not in manifests:
        # Links resolved: kustomize resolves them too, and would count the steps up from elsewhere.
        manifests = os.path.relpath((work_dir / manifests).resolve(), folder)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace(TRAINING_OPERATOR_MANIFESTS, manifests))
    return folder


class _Directory(k8s.kustomize.v2.Directory):
    """A kustomization's objects. The SDK takes the list of them for text, and fails once they are all there."""

    @property
    @pulumi.getter
    def resources(self) -> pulumi.Output[Sequence[Any]]:  # type: ignore[override]
        """The resources that were declared."""
        return pulumi.get(self, "resources")  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class TrainingOperatorArgs:
    """Inputs of `TrainingOperator`."""

    manifests: str = TRAINING_OPERATOR_MANIFESTS
    """The operator's kustomization ``manifests/base``: a URL with a ``ref``, or a folder relative to ``work_dir``."""
    work_dir: Path = Path()
    """What a relative folder is relative to; the program's own by default."""
    depends_on: Sequence[pulumi.Resource] = ()
    """What must be there before: nodes to run on."""


class TrainingOperator(pulumi.ComponentResource):
    """The operator with its PyTorchJob resource and webhook. What depends on it is declared once it is ready."""

    def __init__(self, name: str, args: TrainingOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eksfsdp:operator:TrainingOperator", name, None, opts)
        _Directory(
            f"{name}-manifests",
            directory=str(kustomization_folder(args.manifests, args.work_dir)),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.depends_on)),
        )
        self.register_outputs({})
