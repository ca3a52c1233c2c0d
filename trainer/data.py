"""Tokens: text to packed sequences, and which of them a rank sees in which step.

Everything follows from the configuration and one number, the count of sequences consumed: there is no iterator to
save, resuming costs nothing, and the sequences of a step are the same whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eks_fsdp.spec.base import SettingsError
from eks_fsdp.spec.trainer import TrainerConfig

END_OF_DOCUMENT = 256
VOCABULARY = 257
"""Bytes, and the end of a document."""
IGNORED = -100
"""Label of a position that has none."""


def documents() -> list[str]:
    """The English reference prose that CPython ships, one document for each topic, in order of their names."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def tokenize(texts: list[str]) -> torch.Tensor:
    """All texts as one stream of tokens, int64 [tokens]; each ends with `END_OF_DOCUMENT`. Empty ones are left out."""
    parts = []
    for text in texts:
        if text:
            parts.append(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long())
            parts.append(torch.tensor([END_OF_DOCUMENT]))
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def pack(stream: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut a stream into inputs and labels, both int64 [sequences, length].

    A label is the token after its input, also across sequences: each token but the very first is a label exactly
    once. The last sequence is filled up with ends of document whose labels are `IGNORED`.
    """
    count = max(0, -(-(len(stream) - 1) // length))
    inputs = torch.full((count * length,), END_OF_DOCUMENT, dtype=torch.long)
    labels = torch.full((count * length,), IGNORED, dtype=torch.long)
    if count:
        used = len(stream) - 1
        inputs[:used] = stream[:-1]
        labels[:used] = stream[1:]
    return inputs.view(count, length), labels.view(count, length)


@dataclass(frozen=True)
class Batch:
    """What one rank computes in one forward pass."""

    inputs: torch.Tensor
    """int64 [sequences, length]."""
    labels: torch.Tensor
    """int64 [sequences, length]; `IGNORED` where there is none."""

    @property
    def tokens(self) -> int:
        """Labels that count."""
        return int((self.labels != IGNORED).sum())


class PackedData:
    """The packed sequences, split for good into those for training and those for evaluation."""

    def __init__(self, config: TrainerConfig, texts: list[str] | None = None) -> None:
        """``texts``: None for the configured source. Raises `SettingsError` where nothing is left to train on."""
        self._inputs, self._labels = pack(
            tokenize(documents() if texts is None else texts), config.data.sequence_length
        )
        total = len(self._inputs)
        held_out = round(total * config.data.eval_fraction)
        if total - held_out < 1:
            raise SettingsError(
                f"data.sequence_length: {config.data.sequence_length} cuts {config.data.source!r} into {total} sequences, "
                f"and {held_out} of them are for evaluation; accepted: a length that leaves some to train on"
            )
        self._seed = config.seed
        shuffled = torch.randperm(total, generator=torch.Generator().manual_seed(config.seed))
        self._held_out = shuffled[:held_out].sort().values
        self._training = shuffled[held_out:].sort().values
        self._orders: dict[int, torch.Tensor] = {}

    @property
    def training_sequences(self) -> int:
        """Sequences in one epoch."""
        return len(self._training)

    @property
    def held_out_sequences(self) -> int:
        """Sequences for evaluation."""
        return len(self._held_out)

    def training_ids(self, start: int, count: int) -> list[int]:
        """Ids of the sequences at positions ``start`` to ``start + count`` of the endless stream of epochs."""
        ids, size = [], len(self._training)
        for position in range(start, start + count):
            epoch, index = divmod(position, size)
            ids.append(int(self._training[self._order(epoch)[index]]))
        return ids

    def step(self, consumed: int, rank: int, world_size: int, micro: int, accumulation: int) -> list[Batch]:
        """The micro-batches of ``rank`` in the step that follows ``consumed`` sequences.

        Micro-batch ``a`` of rank ``r`` holds the positions from ``consumed + (a * world_size + r) * micro``.
        """
        starts = (consumed + (a * world_size + rank) * micro for a in range(accumulation))
        return [self._batch(self.training_ids(start, micro)) for start in starts]

    def evaluation(self, rank: int, world_size: int, micro: int, steps: int) -> list[Batch]:
        """``steps`` micro-batches for ``rank``; where the sequences run out, batches without labels."""
        batches = []
        for step in range(steps):
            first = (step * world_size + rank) * micro
            ids = [int(i) for i in self._held_out[first : first + micro]]
            batch = self._batch(ids + [0] * (micro - len(ids)))
            batch.labels[len(ids) :] = IGNORED
            batches.append(batch)
        return batches

    def _batch(self, ids: list[int]) -> Batch:
        return Batch(self._inputs[ids], self._labels[ids])

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            if len(self._orders) > 1:
                self._orders.pop(min(self._orders))
            generator = torch.Generator().manual_seed(self._seed + 1_000_003 * (epoch + 1))
            self._orders[epoch] = torch.randperm(len(self._training), generator=generator)
        return self._orders[epoch]
