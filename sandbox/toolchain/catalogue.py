"""What is built from which Go module, and how a binary that is already here is recognised."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from eks_fsdp.spec.versions import (
    ETCD_VERSION,
    KUBERNETES_PATCH,
    KUEUE_VERSION,
    PROMETHEUS_VERSION,
    PULUMI_CLI_VERSION,
    PULUMI_KUBERNETES_VERSION,
)

_MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One executable."""

    name: str
    """File name in the toolchain's folder."""
    package: str
    """Go package that builds it."""
    version: str = ""
    """What ``version_arguments`` must print somewhere for a binary of this machine to be taken; empty: always built."""
    version_arguments: tuple[str, ...] = ("--version",)
    newer_is_fine: bool = False
    """Whether a later version of this machine is taken too."""
    plugin: str = ""
    """Folder of Pulumi's plugin cache that holds it, where it is a plugin."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Go module of its own, with the binaries that it builds."""

    name: str
    binaries: tuple[Binary, ...]
    ldflags: str = ""
    """Linker flags beside ``-s -w``, mostly versions."""
    tags: str = ""
    """Go build tags."""
    data: tuple[tuple[str, str, str], ...] = ()
    """(Go module, folder in it, name in the toolchain's share folder): files that go along with the binaries."""

    @property
    def folder(self) -> Path:
        """Where ``go.mod`` and ``go.sum`` are."""
        return _MODULES / self.name

    @property
    def key(self) -> str:
        """Name of the cache folder: it changes with whatever decides what is built."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.iterdir()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        digest.update(repr((self.binaries, self.ldflags, self.tags, self.data)).encode())
        return f"{self.name}-{digest.hexdigest()[:16]}"


def _kubernetes(name: str) -> Binary:
    arguments = ("version", "--client") if name == "kubectl" else ("--version",)
    return Binary(
        name=name, package=f"k8s.io/kubernetes/cmd/{name}", version=f"v{KUBERNETES_PATCH}", version_arguments=arguments
    )


MODULES: tuple[Module, ...] = (
    Module(
        name="core",
        binaries=(
            *(_kubernetes(n) for n in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")),
            Binary(
                name="pulumi",
                package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
                version=f"v{PULUMI_CLI_VERSION}",
                version_arguments=("version",),
                newer_is_fine=True,
            ),
            Binary(
                name="pulumi-resource-kubernetes",
                package=".",
                plugin=f"resource-kubernetes-v{PULUMI_KUBERNETES_VERSION}",
            ),
        ),
        ldflags=(
            f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{PULUMI_CLI_VERSION} "
            f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_PATCH} "
            f"-X main.version={PULUMI_KUBERNETES_VERSION}"
        ),
    ),
    Module(
        name="etcd",
        binaries=(Binary(name="etcd", package="go.etcd.io/etcd/server/v3", version=f"etcd Version: {ETCD_VERSION}"),),
    ),
    Module(
        name="operator",
        binaries=(
            Binary(name="training-operator", package="github.com/kubeflow/training-operator/cmd/training-operator.v1"),
        ),
        data=(("github.com/kubeflow/training-operator", "manifests", "training-operator"),),
    ),
    Module(
        name="kueue",
        binaries=(Binary(name="kueue", package="sigs.k8s.io/kueue/cmd/kueue"),),
        ldflags=f"-X sigs.k8s.io/kueue/pkg/version.GitVersion=v{KUEUE_VERSION}",
        data=(("sigs.k8s.io/kueue", "config", "kueue"),),
    ),
    Module(
        name="prometheus",
        binaries=(
            Binary(
                name="prometheus",
                package="github.com/prometheus/prometheus/cmd/prometheus",
                version=f"version {PROMETHEUS_VERSION}",
            ),
            Binary(
                name="promtool",
                package="github.com/prometheus/prometheus/cmd/promtool",
                version=f"version {PROMETHEUS_VERSION}",
            ),
        ),
        ldflags=f"-X github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",
        # Of the service discoveries only Kubernetes' is used; the others are most of the compile time.
        tags="remove_all_sd,enable_kubernetes_sd",
    ),
)
