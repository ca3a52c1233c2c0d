"""What is refused before anything is declared: one pure function for each rule.

A rule takes the whole of `Settings` and yields problems, each naming the setting, the value, why, and what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from . import cluster, gpu_nodes, guard, jobs, storage

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

RULES: tuple[Callable[[Settings], Iterable[str]], ...] = (
    gpu_nodes.names,
    gpu_nodes.zones,
    cluster.efa_needs_version,
    storage.needs_network,
    jobs.fit,
    jobs.teams,
    guard.ephemeral_expires,
    guard.guards_own_groups,
    guard.blocks_start_before_expiry,
)
"""All of them, in the order in which their problems are told."""


def problems(settings: Settings) -> list[str]:
    """Every problem of ``settings``."""
    return [problem for rule in RULES for problem in rule(settings)]
