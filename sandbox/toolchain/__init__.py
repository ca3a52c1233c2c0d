"""The binaries that the sandbox runs: found on this machine, else built from pinned Go modules into a cache.

Each folder under ``modules/`` is a Go module with a committed ``go.sum``; its binaries go to a folder of the user's
cache that is named after the hash of both files, so that two checkouts share them and a changed pin builds anew.
"""

from .catalogue import MODULES, Binary, Module
from .install import ToolchainError, ensure_toolchain, toolchain_bin

__all__ = ["MODULES", "Binary", "Module", "ToolchainError", "ensure_toolchain", "toolchain_bin"]
