"""Cross entropy, normalised by the tokens of the whole global batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .data import IGNORED


def token_loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of the cross entropies in float32 over the labels that count.

    ``logits`` [sequences, length, vocabulary], ``labels`` [sequences, length].
    """
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def for_backward(loss_sum: torch.Tensor, global_tokens: float, world_size: int) -> torch.Tensor:
    """What to call ``backward`` on, so that the reduced gradient is that of the mean over all the global batch's tokens.

    FSDP averages gradients over the ranks: the factor ``world_size`` undoes that. Means of micro-batches or of ranks
    would weigh tokens differently wherever their counts differ.
    """
    return loss_sum * (world_size / global_tokens)
