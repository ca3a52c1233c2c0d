"""AdamW, its schedule, and the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from eks_fsdp.spec.trainer import OptimizerConfig


def build(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Learning rate of optimizer step ``step`` (1 for the first) of ``steps``.

    Linear from ``peak / warmup_steps`` to the peak at step ``warmup_steps``, then a half cosine that ends at step
    ``steps`` at ``peak * min_learning_rate_ratio``.
    """
    peak, floor = config.learning_rate, config.learning_rate * config.min_learning_rate_ratio
    if step <= config.warmup_steps:
        return peak * step / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, steps - config.warmup_steps))
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use ``value`` in the next step."""
    for group in optimizer.param_groups:
        group["lr"] = value


def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale gradients so that their global norm is at most ``max_norm``; returns the norm before, a plain scalar."""
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    # Of sharded gradients it is a partial sum on each rank until asked for as a whole.
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
