"""How a model is laid out over ranks: checkpoint activations, compile, shard, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from eks_fsdp.spec.trainer import RESHARDING, TrainerConfig

from .world import World

if TYPE_CHECKING:
    from .model import Llama

CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."
"""What a checkpointed block adds to the names of its parameters."""


def parallelise(model: Llama, config: TrainerConfig, world: World) -> None:
    """Apply what ``config`` says to each block and to the rest, in place. The model may be on the meta device.

    Compiling before activations are checkpointed breaks the graph at each block's inputs, and sharding before compiling
    puts hooks into the graph: hence the order.
    """
    blocks = cast(nn.ModuleList, model.model.layers)
    for index, block in enumerate(blocks):
        blocks[index] = _checkpointed(block, index, config.activation_checkpointing)
    if config.compile:
        for block in blocks:
            block.compile()
    _shard(model, list(blocks), config, world)


def _checkpointed(block: nn.Module, index: int, what: str) -> nn.Module:
    if what == "none" or (what.startswith("every-") and index % int(what.removeprefix("every-"))):
        return block
    if what == "selective-op":
        return checkpoint_wrapper(block, context_fn=_selective_contexts, preserve_rng_state=False)
    return checkpoint_wrapper(block, preserve_rng_state=False)


_ATTENTION = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def _selective_contexts() -> Any:
    """Keep attention's results and those of every second matrix product; compute the rest again.

    The forward pass and its repetition count apart, so that they agree on which products are kept.
    """
    seen = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        if operation in _PRODUCTS:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operation in _ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def device_mesh(config: TrainerConfig, world: World) -> DeviceMesh:
    """One dimension where all ranks share one set of shards, else (replicate, shard).

    NO_SHARD is replicas of shards of one, which needs no second code path.
    """
    size = world.ranks.world_size
    shards = config.shards(size, world.ranks.local_world_size)
    if shards == size and config.strategy != "NO_SHARD":
        return init_device_mesh(world.device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(world.device.type, (size // shards, shards), mesh_dim_names=("replicate", "shard"))


def _shard(model: Llama, blocks: Sequence[nn.Module], config: TrainerConfig, world: World) -> None:
    apply = partial(
        fully_shard,
        mesh=device_mesh(config, world),
        mp_policy=MixedPrecisionPolicy(
            param_dtype=getattr(torch, config.param_dtype),
            # Never left to its default, which torch 2.15 changed.
            reduce_dtype=getattr(torch, config.reduce_dtype),
            cast_forward_inputs=False,
        ),
        offload_policy=CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
        if config.cpu_offload
        else OffloadPolicy(),
    )
    reshard: bool | int = config.strategy in RESHARDING
    if config.reshard_after_forward is not None:
        reshard = config.reshard_after_forward
    for block in blocks:
        apply(block, reshard_after_forward=reshard)
    # Embedding, last norm and head: needed again at once in backward, so they stay whole in between. Together also
    # because head and embedding may be one tensor.
    apply(model, reshard_after_forward=False)
    _prefetch(blocks, config.prefetch)


def _prefetch(blocks: Sequence[nn.Module], depth: int) -> None:
    """Gather ``depth`` blocks ahead in both passes. One ahead is what FSDP does by itself."""
    if depth == 1:
        return
    sharded = [cast(FSDPModule, block) for block in blocks]
    for index, block in enumerate(sharded):
        block.set_modules_to_forward_prefetch(sharded[index + 1 : index + 1 + depth])
        block.set_modules_to_backward_prefetch(sharded[max(0, index - depth) : index][::-1])


def mark_last_micro_batch(model: nn.Module, last: bool) -> None:
    """Let replicas all-reduce their gradients once in a step, after the last micro-batch.

    Shards reduce-scatter after each, which keeps no more than a shard of the gradients.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(last)
