"""The few system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Move the calling thread into the namespace behind ``descriptor``. Raises OSError."""
    _check(_libc.setns(descriptor, flags), "setns")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, as PID 1 of a namespace has them anyway. Raises OSError."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")
