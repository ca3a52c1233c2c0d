"""Rules of storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings


def needs_network(settings: Settings) -> Iterable[str]:
    """A file system stands in the program's own network."""
    if settings.cluster.mode == "existing" and settings.storage.mode == "fsx":
        yield (
            "storage.mode: 'fsx' makes a file system in the program's own network, and cluster.mode is 'existing'; "
            "accepted: existing, none"
        )
