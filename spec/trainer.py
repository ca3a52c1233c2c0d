"""The trainer's configuration: one source for YAML, JSON and command-line flags."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .base import Strict
from .models import MODEL_PRESETS

Strategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "NO_SHARD"]
HYBRID: tuple[Strategy, ...] = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
RESHARDING: tuple[Strategy, ...] = ("FULL_SHARD", "HYBRID_SHARD")
"""Strategies that free a block's parameters after its forward pass and gather them again for the backward pass."""


class DataConfig(Strict):
    """Where the tokens come from."""

    source: Literal["pydoc-topics"] = "pydoc-topics"
    """``pydoc-topics``: the 465,000 characters of English reference prose that CPython ships (``pydoc_data.topics``)."""
    tokenizer: Literal["bytes"] = "bytes"
    """``bytes``: UTF-8 bytes as tokens 0-255, then 256 as end of document."""
    sequence_length: int = Field(default=128, ge=8, le=1_048_576)
    """Tokens in one packed sequence."""
    eval_fraction: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of the sequences that is kept for evaluation."""


class OptimizerConfig(Strict):
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    min_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a share of the peak."""
    warmup_steps: int = Field(default=5, ge=0)
    """Optimizer steps of linear warm-up."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay, on matrices only."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's decay rates."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global gradient norm above which gradients are scaled down."""


class EvalConfig(Strict):
    """Periodic evaluation, the same number of steps on every rank."""

    every: int = Field(default=0, ge=0)
    """Optimizer steps between evaluations; 0: none."""
    steps: int = Field(default=2, ge=1)
    """Micro-batches per rank in one evaluation."""


class CheckpointConfig(Strict):
    """Sharded checkpoints (torch.distributed.checkpoint)."""

    directory: str | None = None
    """Folder on storage that all ranks share; None: no checkpoints, and no resume."""
    every: int = Field(default=0, ge=0)
    """Optimizer steps between saves; 0: only at the end."""
    keep: int = Field(default=2, ge=1)
    """Completed checkpoints that are kept."""


class TrainerConfig(Strict):
    """Everything the training program is told."""

    model: str = "llama-debug"
    """A preset of `spec.models`."""
    strategy: Strategy = "FULL_SHARD"
    """How parameters, gradients and optimizer state are laid out over the ranks."""
    shard_group: int | None = Field(default=None, ge=1)
    """Ranks over which HYBRID_SHARD and HYBRID_SHARD_ZERO2 shard; the groups are replicas. None: the ranks of one node."""
    reshard_after_forward: int | None = Field(default=None, ge=2)
    """Ranks over which parameters stay sharded between forward and backward pass, in place of all of the shard group: a
    smaller number, such as the GPUs of one node, costs memory and saves traffic between nodes."""
    prefetch: int = Field(default=1, ge=1, le=8)
    """Blocks whose parameters are gathered ahead of the one that computes."""
    cpu_offload: bool = False
    """Whether shards of parameters, gradients and optimizer state are in the host's memory."""
    activation_checkpointing: str = Field(default="none", pattern=r"^(none|full|selective-op|every-[1-9][0-9]{0,2})$")
    """What the backward pass computes again: nothing; each block; cheap operations, every second matrix product among
    them; or every k-th block (``every-2``)."""
    compile: bool = False
    """Whether each block is compiled (torch.compile)."""
    loss_chunk_tokens: int = Field(default=4096, ge=16)
    """Tokens for which logits exist at a time; those of a whole batch never do."""
    seed: int = Field(default=1234, ge=0)
    """Seed of weights and of the order of the data."""
    steps: int = Field(default=30, ge=1)
    """Optimizer steps of the whole run, those before a restart included."""
    global_batch_size: int = Field(default=8, ge=1)
    """Sequences per optimizer step over all ranks and micro-batches."""
    micro_batch_size: int = Field(default=1, ge=1)
    """Sequences per rank in one forward pass."""
    param_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the parameters during forward and backward; master weights are float32."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which gradients are reduced."""
    log_every: int = Field(default=1, ge=1)
    """Optimizer steps between the leader's console lines. Rows are written for each step."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of rank 0's Prometheus endpoint; 0: none."""
    data: DataConfig = DataConfig()
    """Tokens."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and schedule."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving and resuming."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainerConfig:
        if self.model not in MODEL_PRESETS:
            raise ValueError(f"model: {self.model!r} does not exist; accepted: {', '.join(MODEL_PRESETS)}")
        if self.global_batch_size % self.micro_batch_size:
            raise ValueError(
                f"global_batch_size: {self.global_batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            )
        if self.shard_group is not None and self.strategy not in HYBRID:
            raise ValueError(
                f"shard_group: {self.shard_group} with strategy {self.strategy!r}; accepted with {', '.join(HYBRID)}"
            )
        if self.reshard_after_forward is not None and self.strategy not in RESHARDING:
            raise ValueError(
                f"reshard_after_forward: {self.reshard_after_forward}, and {self.strategy!r} does not reshard; "
                f"accepted with {', '.join(RESHARDING)}"
            )
        return self

    def shards(self, world_size: int, ranks_per_node: int) -> int:
        """Ranks over which parameters, gradients and optimizer state are cut.

        Raises `ValueError` where groups do not divide.
        """
        if self.strategy == "NO_SHARD":
            return 1
        group = world_size
        if self.strategy in HYBRID:
            group = self.shard_group or min(ranks_per_node, world_size)
            if world_size % group:
                raise ValueError(
                    f"shard_group: {group} does not divide {world_size} ranks; accepted: "
                    f"{', '.join(map(str, _divisors(world_size)))}"
                )
        smaller = self.reshard_after_forward
        if smaller is not None and (smaller >= group or group % smaller):
            fitting = [d for d in _divisors(group) if 1 < d < group]
            raise ValueError(
                f"reshard_after_forward: {smaller} for a shard group of {group} ranks; accepted: "
                f"{', '.join(map(str, fitting)) or 'not set'}"
            )
        return group

    def accumulation(self, world_size: int) -> int:
        """Micro-batches per optimizer step on each of ``world_size`` ranks.

        Raises `ValueError` where the global batch does not divide.
        """
        per_pass = self.micro_batch_size * world_size
        if self.global_batch_size % per_pass:
            raise ValueError(
                f"global_batch_size: {self.global_batch_size} does not divide over {world_size} ranks of "
                f"micro_batch_size {self.micro_batch_size}; accepted: multiples of {per_pass}"
            )
        return self.global_batch_size // per_pass


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
