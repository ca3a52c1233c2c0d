"""Cross entropy, normalised by the tokens of the whole global batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .data import IGNORED


def token_loss_sum(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Module, chunk_tokens: int) -> torch.Tensor:
    """Sum of the cross entropies in float32 over the labels that count.

    ``hidden`` [sequences, length, width], ``labels`` [sequences, length]; ``head`` makes logits of hidden states. Logits
    exist for ``chunk_tokens`` tokens at a time, and again in the backward pass: whole ones of a 32,000-token vocabulary
    are the largest tensor of a step, and computing them twice costs less than 1 % of it.
    """
    states, targets = hidden.flatten(0, 1), labels.flatten()
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for state, target in zip(torch.split(states, chunk_tokens), torch.split(targets, chunk_tokens), strict=True):
        total = total + checkpoint(_chunk_loss_sum, head, state, target, use_reentrant=False, preserve_rng_state=False)
    return total


def _chunk_loss_sum(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(hidden).float(), labels, ignore_index=IGNORED, reduction="sum")


def for_backward(loss_sum: torch.Tensor, global_tokens: float, world_size: int) -> torch.Tensor:
    """What to call ``backward`` on, so that the reduced gradient is that of the mean over all the global batch's tokens.

    FSDP averages gradients over the ranks: the factor ``world_size`` undoes that. Means of micro-batches or of ranks
    would weigh tokens differently wherever their counts differ.
    """
    return loss_sum * (world_size / global_tokens)
