"""The trainer's configuration: one source for YAML, JSON and command-line flags."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .base import Strict
from .models import MODEL_PRESETS

Strategy = Literal["FULL_SHARD", "NO_SHARD"]


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
        return self

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
