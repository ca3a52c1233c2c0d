"""What Capacity Blocks for ML can be had for (EC2 API reference, DescribeCapacityBlockOfferings)."""

from __future__ import annotations

DURATION_DAYS: tuple[int, ...] = (*range(1, 15), *range(21, 183, 7))
"""Days: by the day up to 14, then in weeks up to 182."""
MOST_INSTANCES = 64
"""Instances in one block."""
END_MINUTES = 30
"""EC2 ends a block's instances so many minutes before its end."""


def duration_problem(days: int) -> str | None:
    """Why no block lasts so long; None: it can be had."""
    if days in DURATION_DAYS:
        return None
    near = min(DURATION_DAYS, key=lambda known: (abs(known - days), -known))
    return f"{days} days; accepted: 1 to 14, then whole weeks up to 182, such as {near}"


def count_problem(nodes: int) -> str | None:
    """Why no block has so many instances; None: it can be had."""
    if 1 <= nodes <= MOST_INSTANCES:
        return None
    return f"{nodes}; accepted: 1 to {MOST_INSTANCES}, which is the most of one block"
