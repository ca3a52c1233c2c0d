"""Shapes of the Llama models that the trainer builds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only Llama. Fields are those of `transformers.LlamaConfig`."""

    vocab_size: int
    """Rows of the embedding."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width of the SwiGLU MLP."""
    num_hidden_layers: int
    """Decoder blocks."""
    num_attention_heads: int
    """Query heads."""
    num_key_value_heads: int
    """Key and value heads (grouped-query attention where fewer than query heads)."""
    max_position_embeddings: int
    """Longest sequence."""
    rope_theta: float = 10_000.0
    """Base of the rotary embedding."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """Trainable parameters, embeddings included."""
        h, kv = self.hidden_size, self.num_key_value_heads * self.head_dim
        attention = 2 * h * h + 2 * h * kv
        block = attention + 3 * h * self.intermediate_size + 2 * h
        head = 0 if self.tie_word_embeddings else self.vocab_size * h
        return self.vocab_size * h + self.num_hidden_layers * block + h + head


def _llama2(hidden: int, mlp: int, layers: int, heads: int, kv: int | None = None) -> ModelShape:
    return ModelShape(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv or heads,
        max_position_embeddings=4096,
    )


MODEL_PRESETS: dict[str, ModelShape] = {
    "llama-debug": ModelShape(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    ),
    "llama2-7b": _llama2(4096, 11_008, 32, 32),
    "llama2-13b": _llama2(5120, 13_824, 40, 40),
    "llama2-70b": _llama2(8192, 28_672, 80, 64, 8),
}
