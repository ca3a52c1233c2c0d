"""How large a checkpoint is: arithmetic on a model's shape."""

from __future__ import annotations

from .models import MODEL_PRESETS

GIB = 2**30
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one parameter by the type that it is saved in. The trainer saves its master weights: float32."""
OPTIMIZER_BYTES = 8
"""Bytes of AdamW's state for one parameter: two moments in float32."""
USABLE = 0.9
"""Share of a file system that may be planned with: one that is full fails the next save, and the run with it."""


def checkpoint_bytes(parameters: int, *, dtype: str = "float32", optimizer: bool = True) -> int:
    """Bytes of one checkpoint of a model with ``parameters``, over all ranks together. Raises `KeyError` for a type."""
    return parameters * (WEIGHT_BYTES[dtype] + (OPTIMIZER_BYTES if optimizer else 0))


def checkpoint_gib(model: str) -> float:
    """GiB of one of the trainer's checkpoints of a preset of `spec.models`. Raises `KeyError`."""
    return checkpoint_bytes(MODEL_PRESETS[model].num_parameters) / GIB


def needed_gib(model: str, keep: int) -> float:
    """GiB that a run fills at most: the next checkpoint is complete before the oldest goes."""
    return (keep + 1) * checkpoint_gib(model)


def capacity_for(gib: float) -> int:
    """The smallest capacity of an FSx for Lustre file system (GiB: 1200, or a multiple of 2400) that holds ``gib``."""
    wanted = gib / USABLE
    return 1200 if wanted <= 1200 else -int(-wanted // 2400) * 2400
