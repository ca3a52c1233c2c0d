"""What is refused before anything is declared: one pure function for each rule.

A rule takes the whole of `Settings` and yields problems, each naming the setting, the value, why, and what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from . import addresses, capacity, cluster, gpu_nodes, guard, jobs, network, storage

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

RULES: tuple[Callable[[Settings], Iterable[str]], ...] = (
    gpu_nodes.names,
    gpu_nodes.zones,
    gpu_nodes.alternatives,
    gpu_nodes.ami,
    capacity.capacity,
    capacity.block_outlasts_jobs,
    network.zones_of_region,
    network.pod_range,
    cluster.offered,
    cluster.efa_needs_version,
    cluster.addon_versions,
    cluster.cni_knows_efa_only,
    storage.needs_network,
    storage.retention,
    storage.mount_paths,
    storage.checkpoint_places,
    storage.checkpoints_fit,
    storage.build_project,
    jobs.fit,
    jobs.teams,
    jobs.queue,
    jobs.grace,
    jobs.environment,
    jobs.labels,
    jobs.mounts,
    addresses.fit,
    guard.ephemeral_expires,
    guard.guards_own_groups,
    guard.blocks_start_before_expiry,
)
"""All of them, in the order in which their problems are told."""


def problems(settings: Settings) -> list[str]:
    """Every problem of ``settings``."""
    return [problem for rule in RULES for problem in rule(settings)]
