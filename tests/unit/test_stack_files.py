"""What a stack file says of itself: its cost, what to fill in, and that nothing in it is secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from eks_fsdp.policies.tokens import found_in
from eks_fsdp.spec import prices
from eks_fsdp.spec.settings import GpuNodeGroupSettings

STACKS = Path(__file__).parents[2] / "stacks"
FILES = sorted(file for file in STACKS.glob("Pulumi.*.yaml") if file.name != "Pulumi.sandbox.yaml")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_comment_at_the_top(file: Path) -> None:
    text = file.read_text()
    comment = text[: text.index("config:")]
    assert "# Costs: " in comment
    assert "# Fill in: " in comment
    assert found_in(text) is None
    config = yaml.safe_load(text)["config"]
    for values in config["eks-fsdp:gpu_nodes"]:
        group = GpuNodeGroupSettings.model_validate(values)
        if group.capacity.kind == "capacity-block":
            continue
        each = prices.ON_DEMAND_USD_PER_HOUR[config["eks-fsdp:region"]][group.instance_type]
        dollars = f"${(group.desired or 1) * each:,.2f}"
        assert re.search(re.escape(dollars) + r"\D", comment), f"{dollars} an hour is not what the comment says"
        assert prices.PRICED_ON in comment
