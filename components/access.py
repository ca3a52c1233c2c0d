"""Who may use the cluster: EKS access entries from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eks_fsdp.spec.names import TEAM_GROUP_PREFIX
from eks_fsdp.spec.settings import AccessEntrySettings, TeamSettings

from .objects import digest

POLICIES: dict[str, str] = {
    "cluster-admin": "AmazonEKSClusterAdminPolicy",
    "admin": "AmazonEKSAdminPolicy",
    "edit": "AmazonEKSEditPolicy",
    "view": "AmazonEKSViewPolicy",
}


def team_group(team: str) -> str:
    """Kubernetes group of the members of ``team``. EKS' access policies do not cover custom resources such as jobs."""
    return f"{TEAM_GROUP_PREFIX}{team}"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One access policy of a principal."""

    policy_arn: str
    namespaces: tuple[str, ...] = ()
    """Namespaces that it is limited to; none: the whole cluster."""


@dataclass(frozen=True, kw_only=True)
class AccessEntry:
    """One IAM principal. EKS takes one entry for each, so all that it may do is here."""

    principal_arn: str
    groups: tuple[str, ...] = ()
    """Kubernetes groups."""
    grants: Mapping[str, Grant] = field(default_factory=dict)
    """Policies by their name in the settings."""


def access_entries(
    access: Mapping[str, AccessEntrySettings], teams: Mapping[str, TeamSettings]
) -> dict[str, AccessEntry]:
    """Entries by a name that is the principal's own: the order of the settings changes nothing."""
    grants: dict[str, dict[str, Grant]] = {}
    groups: dict[str, list[str]] = {}
    for entry in access.values():
        arn = f"arn:aws:eks::aws:cluster-access-policy/{POLICIES[entry.policy]}"
        given = grants.setdefault(entry.principal_arn, {})
        before = given.get(entry.policy)
        wide = not entry.namespaces or (before is not None and not before.namespaces)
        together = () if wide else (*(before.namespaces if before else ()), *entry.namespaces)
        given[entry.policy] = Grant(policy_arn=arn, namespaces=tuple(sorted(set(together))))
    for team, wanted in teams.items():
        for principal in wanted.principal_arns:
            groups.setdefault(principal, []).append(team_group(team))
    return {
        entry_name(principal): AccessEntry(
            principal_arn=principal, groups=tuple(groups.get(principal, ())), grants=grants.get(principal, {})
        )
        for principal in sorted({*grants, *groups})
    }


def entry_name(principal_arn: str) -> str:
    """``role-trainers-1a2b3c4d``: readable, and one for each principal."""
    kind, _, rest = principal_arn.rpartition(":")[2].partition("/")
    return f"{kind}-{rest.rpartition('/')[2]}-{digest(principal_arn)}"
