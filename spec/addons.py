"""Versions of EKS add-ons: which one is installed, and which of two is the later."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .versions import ADDON_VERSIONS

ADDON_VERSION = re.compile(r"^v(\d+)\.(\d+)\.(\d+)(-eksbuild\.(\d+))?$")


def addon_version(name: str, kubernetes_version: str, wanted: Mapping[str, str]) -> str | None:
    """The version of add-on ``name`` on a cluster: the one of ``wanted``, else the program's pin, else None."""
    pin = ADDON_VERSIONS.get(name)
    return wanted.get(name) or (pin.get(kubernetes_version) if isinstance(pin, dict) else pin)


def release(version: str) -> tuple[int, int, int, int]:
    """``v1.22.4-eksbuild.3`` as numbers that compare. Raises `ValueError`."""
    match = ADDON_VERSION.match(version)
    if match is None:
        raise ValueError(f"{version!r} is not an add-on's version; accepted: v1.22.4-eksbuild.3")
    return int(match[1]), int(match[2]), int(match[3]), int(match[5] or 0)
