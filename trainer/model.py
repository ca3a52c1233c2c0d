"""The model: built on the meta device, sharded, then filled with weights that depend on the seed alone."""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.distributed.tensor import DTensor

# From the model's own modules: importing transformers itself loads hundreds of others.
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from eks_fsdp.spec.models import ModelShape

from .errors import TrainingFailed
from .loss import token_loss_sum
from .parallel import CHECKPOINT_PREFIX

_BLOCK_ELEMENTS = 1 << 20
_STANDARD_DEVIATION = 0.02


class Llama(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """Transformers' model, whose forward pass ends in the loss: so the logits never stand whole."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
        """Sum of the cross entropies; ``input_ids`` and ``labels`` are [sequences, length]."""
        hidden = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return token_loss_sum(hidden, labels, self.lm_head, chunk_tokens)


def llama_config(shape: ModelShape) -> LlamaConfig:
    """What transformers calls this shape."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=shape.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tie_word_embeddings,
        use_cache=False,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )


def build_on_meta(shape: ModelShape) -> Llama:
    """The model in float32 without memory behind it."""
    with torch.device("meta"):
        return Llama(llama_config(shape))


def materialise(model: Llama, shape: ModelShape, device: torch.device, seed: int) -> None:
    """Give a model, sharded or not, its memory and its first weights; compute its buffers; check all of them.

    Matrices are normal with deviation 0.02, vectors (the norms) one. Raises `TrainingFailed`.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local, first_row = local_rows(parameter)
            if parameter.dim() < 2:
                local.fill_(1.0)
            else:
                fill_normal(local, first_row, f"{seed}/{name.replace(CHECKPOINT_PREFIX, '')}")
        frequencies = inverse_frequencies(shape)
        for name, buffer in model.named_buffers():
            if not name.endswith(("inv_freq", "original_inv_freq")):
                raise TrainingFailed(f"buffer {name}: nobody knows how to fill it")
            buffer.copy_(frequencies)
    verify(model, shape)


def local_rows(parameter: nn.Parameter | torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's rows of a parameter, and the number of the first of them. FSDP shards the first dimension."""
    if not isinstance(parameter, DTensor):
        return parameter.detach(), 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local().detach(), offset[0]


def fill_normal(rows: torch.Tensor, first_row: int, key: str) -> None:
    """Fill ``rows``, which begin at ``first_row`` of a matrix, from blocks of rows that each have a seed of their own.

    So a rank draws little more than it holds, and the matrix is the same however it is cut.
    """
    if rows.numel() == 0:
        return
    height = max(1, _BLOCK_ELEMENTS // rows[0].numel())
    done = 0
    while done < len(rows):
        block, skip = divmod(first_row + done, height)
        digest = hashlib.sha256(f"{key}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        take = min(height - skip, len(rows) - done)
        # A block at the end of the matrix is drawn from its start only as far as it is needed: the values are
        # consumed in order, so this does not change them.
        values = torch.empty(skip + take, *rows.shape[1:]).normal_(0.0, _STANDARD_DEVIATION, generator=generator)
        rows[done : done + take].copy_(values[skip:])
        done += take


def inverse_frequencies(shape: ModelShape) -> torch.Tensor:
    """Rotary frequencies, float32 [head_dim / 2], by their definition."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    return 1.0 / (shape.rope_theta**exponents)


def verify(model: nn.Module, shape: ModelShape) -> None:
    """Hold every parameter and buffer against what it must be. Raises `TrainingFailed` naming the first that is not."""
    for name, parameter in model.named_parameters():
        local, _ = local_rows(parameter)
        if local.is_meta:
            raise TrainingFailed(f"parameter {name}: has no memory")
        if local.numel() and not bool(torch.isfinite(local).all()):
            raise TrainingFailed(f"parameter {name}: not finite after initialisation")
        if local.dim() >= 2 and local.numel() > 1 and float(local.std()) == 0.0:
            raise TrainingFailed(f"parameter {name}: constant after initialisation")
    expected = inverse_frequencies(shape)
    for name, buffer in model.named_buffers():
        if buffer.dtype != torch.float32 or not torch.equal(buffer.cpu(), expected):
            raise TrainingFailed(f"buffer {name}: not the rotary frequencies in float32")
