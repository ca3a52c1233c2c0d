"""Parameter counts against those that transformers gives (facts of the published models)."""

from __future__ import annotations

import pytest

from eks_fsdp.spec.models import MODEL_PRESETS


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320), ("llama2-70b", 68_976_648_192)],
)
def test_parameter_counts(preset: str, parameters: int) -> None:
    assert MODEL_PRESETS[preset].num_parameters == parameters
