"""Preflight asks of the add-ons that the program installs: of each, and of no other."""

from __future__ import annotations

from typing import Any

import pytest

from eks_fsdp.components.addons import addons_after_nodes, addons_before_nodes
from eks_fsdp.launcher.preflight.parts import installed_addons
from eks_fsdp.spec.settings import Settings


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"storage": {"mode": "fsx"}},
        {"cluster": {"addons": {"node_monitoring": False, "cloudwatch": True}}},
    ],
)
def test_preflight_knows_what_is_installed(values: dict[str, Any]) -> None:
    settings = Settings.parse(values)
    addons, version = settings.cluster.addons, settings.cluster.kubernetes_version
    declared = [
        *addons_before_nodes(addons, version, tags={}, region=settings.region, pods=None),
        *addons_after_nodes(addons, version, tags={}, node_selector={}, fsx=settings.storage.mode == "fsx"),
    ]
    assert sorted(addon.name for addon in declared) == sorted(installed_addons(settings))
