"""Rules of the cost guard."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eks_fsdp.spec.settings import Settings

LONGEST_EPHEMERAL = timedelta(days=14)


def ephemeral_expires(settings: Settings) -> Iterable[str]:
    """A stack that is to live for hours says when it ends."""
    if settings.ephemeral and settings.cluster.mode == "create" and settings.guard.expiry is None:
        yield (
            "guard.expiry: not set, and ephemeral is true: nobody would end its GPU nodes where the run that made them "
            f"dies; accepted: a time within {LONGEST_EPHEMERAL.days} days, such as 2027-01-31T18:00:00Z"
        )


def guards_own_groups(settings: Settings) -> Iterable[str]:
    """What is guarded is made by this stack."""
    if settings.cluster.mode == "existing" and settings.guard.expiry is not None:
        yield (
            f"guard.expiry: {settings.guard.expiry.isoformat()} with cluster.mode 'existing': the GPU groups of that "
            "cluster are not this stack's to end; accepted: no expiry"
        )


def blocks_start_before_expiry(settings: Settings) -> Iterable[str]:
    """A capacity block's scheduled start is no start after the end."""
    expiry = settings.guard.expiry
    for index, group in enumerate(settings.gpu_nodes):
        starts = group.capacity.starts
        if expiry is not None and starts is not None and starts >= expiry:
            yield (
                f"gpu_nodes[{index}].capacity.starts: {starts.isoformat()} is not before guard.expiry "
                f"{expiry.isoformat()}, after which no node may start; accepted: a later expiry"
            )


def within_reach(settings: Settings, now: datetime) -> Iterable[str]:
    """An ephemeral stack ends soon. Needs the time, and so is asked for beside the other rules."""
    expiry = settings.guard.expiry
    if settings.ephemeral and expiry is not None and expiry - now > LONGEST_EPHEMERAL:
        yield (
            f"guard.expiry: {expiry.isoformat()} is more than {LONGEST_EPHEMERAL.days} days away, and ephemeral is true; "
            f"accepted: until {(now + LONGEST_EPHEMERAL).isoformat(timespec='seconds')}, or ephemeral: false"
        )


def has_expired(settings: Settings, now: datetime) -> bool:
    """Whether the stack's GPU groups are ended, and stay so until the expiry is renewed."""
    return settings.guard.expiry is not None and settings.guard.expiry <= now
