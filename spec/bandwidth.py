"""All-reduce bandwidth: how it is computed, and what each instance type must reach."""

from __future__ import annotations

from dataclasses import dataclass


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of one all-reduce in GB/s: ``size / seconds * 2 (n - 1) / n``.

    ``size``: bytes of each rank's buffer. The formula is nccl-tests' ``busbw`` (NVIDIA/nccl-tests, doc/PERFORMANCE.md):
    it does not depend on the number of ranks, so it compares with what the slowest link can do.
    """
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What all-reduces over several nodes must reach."""

    gb_per_second: float
    """Bus bandwidth of the largest message."""
    source: str


GATES: dict[str, Gate] = {
    "p5.48xlarge": Gate(
        gb_per_second=300.0, source="NVIDIA/aicr: nccl-all-reduce-bw of its H100 on EKS recipe, >= 300"
    ),
    "p4d.24xlarge": Gate(
        gb_per_second=70.0, source="nine tenths of the 77.9 that skypilot's examples/aws_efa measured on 2 x p4d, 4 EFA"
    ),
}
"""By instance type. A type without a source that can be named has no gate: its figures are shown and not judged."""
