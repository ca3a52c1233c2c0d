"""Rules of the cluster."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING

from eks_fsdp.spec.addons import addon_version, release
from eks_fsdp.spec.versions import ADDON_VERSIONS, KUBERNETES_SUPPORT, VPC_CNI, VPC_CNI_EFA_ONLY

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

EFA_KUBERNETES_MINOR = 33
"""From 1.33 on, the security group that EKS makes lets its members send to each other by group, as EFA needs."""


def efa_needs_version(settings: Settings) -> Iterable[str]:
    """EFA nodes need a cluster whose own security group lets EFA traffic out."""
    version = settings.cluster.kubernetes_version
    efa = any(group.uses_efa for group in settings.gpu_nodes)
    if settings.cluster.mode == "create" and efa and int(version.partition(".")[2]) < EFA_KUBERNETES_MINOR:
        yield (
            f"cluster.kubernetes_version: {version!r} with EFA nodes; before 1.{EFA_KUBERNETES_MINOR} the cluster's own "
            f"security group does not let EFA traffic out; accepted: 1.{EFA_KUBERNETES_MINOR} or later"
        )


def offered(settings: Settings) -> Iterable[str]:
    """EKS offers the Kubernetes version. One that is later than all that are known here is let through: EKS is asked for it."""
    version = settings.cluster.kubernetes_version
    if settings.cluster.mode == "create" and _minor(version) < min(_minor(known) for known in KUBERNETES_SUPPORT):
        yield _not_offered(version, "", KUBERNETES_SUPPORT)


def support_ended(settings: Settings, today: date) -> Iterable[str]:
    """The Kubernetes version's extended support has not ended ``today``."""
    version = settings.cluster.kubernetes_version
    ends = KUBERNETES_SUPPORT.get(version)
    if settings.cluster.mode == "create" and ends is not None and ends[1] < today:
        left = {known: dates for known, dates in KUBERNETES_SUPPORT.items() if dates[1] >= today}
        yield _not_offered(version, f" since {ends[1]}", left)


def extended_support(settings: Settings, today: date) -> str | None:
    """What to tell where the Kubernetes version is past its standard support ``today``; None where it is not."""
    version = settings.cluster.kubernetes_version
    ends = KUBERNETES_SUPPORT.get(version)
    if settings.cluster.mode == "existing" or ends is None or not ends[0] < today <= ends[1]:
        return None
    return (
        f"cluster.kubernetes_version: {version!r} has been in EKS' extended support since {ends[0]}, which costs more for each hour "
        f"of the cluster and ends {ends[1]}; docs/upgrades.md says how to go on"
    )


def _not_offered(version: str, since: str, known: Mapping[str, tuple[date, date]]) -> str:
    accepted = ", ".join(
        f"{v} (standard support until {standard}, extended until {extended})"
        for v, (standard, extended) in known.items()
    )
    return f"cluster.kubernetes_version: {version!r} is no longer offered by EKS{since}; accepted: {accepted or 'a later one'}"


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def addon_versions(settings: Settings) -> Iterable[str]:
    """Every add-on has a version that fits the cluster, and versions are those of add-ons that are known."""
    if settings.cluster.mode == "existing":
        return
    wanted, version = settings.cluster.addons.versions, settings.cluster.kubernetes_version
    for name, value in wanted.items():
        path = f"cluster.addons.versions.{name}"
        if name not in ADDON_VERSIONS:
            close = difflib.get_close_matches(name, ADDON_VERSIONS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            yield f"{path}: the program installs no such add-on. {hint}Accepted: {', '.join(ADDON_VERSIONS)}"
            continue
        try:
            release(value)
        except ValueError as error:
            yield f"{path}: {error}"
    for name in ADDON_VERSIONS:
        if addon_version(name, version, wanted) is None:
            yield (
                f"cluster.addons.versions.{name}: missing, and the program has no version of its own for Kubernetes "
                f"{version}; accepted: one of `aws eks describe-addon-versions --addon-name {name} "
                f"--kubernetes-version {version}`"
            )


def cni_knows_efa_only(settings: Settings) -> Iterable[str]:
    """vpc-cni leaves EFA-only interfaces alone: an earlier one gives them addresses, and the nodes never become ready."""
    version = addon_version(VPC_CNI, settings.cluster.kubernetes_version, settings.cluster.addons.versions)
    if settings.cluster.mode == "existing" or version is None:
        return
    try:
        too_old = release(version)[:3] < release(VPC_CNI_EFA_ONLY)[:3]
    except ValueError:
        return
    for index, group in enumerate(settings.gpu_nodes):
        if too_old and any(interface.kind == "efa-only" for interface in group.instance.interfaces(group.efa)):
            yield (
                f"cluster.addons.versions.{VPC_CNI}: {version!r} is too old for the EFA-only interfaces of "
                f"gpu_nodes[{index}] ({group.instance_type}); accepted: {VPC_CNI_EFA_ONLY} or later"
            )
