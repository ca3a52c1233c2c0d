"""Software that comes as a kustomization: ours in a folder beside its component, over the pinned release's own."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from eks_fsdp.spec.base import SettingsError


class Directory(k8s.kustomize.v2.Directory):
    """A kustomization's objects. The SDK takes the list of them for text, and fails once they are all there."""

    @property
    @pulumi.getter
    def resources(self) -> pulumi.Output[Sequence[Any]]:  # type: ignore[override]
        """The resources that were declared."""
        return pulumi.get(self, "resources")  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Kustomization:
    """Our kustomization over a release's manifests."""

    folder: Path
    """Ours. Its first resource is `pinned`."""
    pinned: str
    """URL with a ``ref``: the release's own kustomization."""
    setting: str
    """The setting that names another one."""
    meant: str
    """What a folder in its place must be, such as "the operator's folder manifests/base"."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files beside ours, by name: what depends on settings."""

    def check(self, manifests: str, work_dir: Path) -> None:
        """Raises `SettingsError` where ``manifests`` is a folder, relative to ``work_dir``, without a kustomization."""
        if "://" not in manifests and not (work_dir / manifests / "kustomization.yaml").is_file():
            raise SettingsError(
                f"{self.setting}: {manifests!r} has no kustomization.yaml (looked in {work_dir.resolve()}); "
                f"accepted: {self.meant}, or a URL such as {self.pinned}"
            )

    def built_from(self, manifests: str, work_dir: Path) -> Path:
        """The folder to build: ours, or where it is not ours as it is, a copy for this process, which removes it.

        ``manifests`` is a URL or a folder relative to ``work_dir``; kustomize takes relative folders alone. Raises
        `SettingsError` where the folder has no kustomization.
        """
        self.check(manifests, work_dir)
        if manifests == self.pinned and not self.files:
            return self.folder
        copy = Path(tempfile.mkdtemp(prefix=f"eks-fsdp-{self.folder.name}-")).resolve()
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        if "://" not in manifests:
            # Links resolved: kustomize resolves them too, and would count the steps up from elsewhere.
            manifests = os.path.relpath((work_dir / manifests).resolve(), copy)
        file = copy / "kustomization.yaml"
        file.write_text(file.read_text().replace(self.pinned, manifests))
        for name, text in self.files.items():
            (copy / name).write_text(text)
        return copy
