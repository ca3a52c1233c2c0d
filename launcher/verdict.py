"""Pure: what a run proves. Whether a point counts and why not, its statistics, and what points say together.

Efficiency(N) = T(N) / (N / N0 x T(N0)), with T in tokens/s and N0 the fewest nodes of an accepted point.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from eks_fsdp.spec.records import RunRecord, StepRow, SweepPoint, SweepReport

Mode = Literal["strong", "weak"]

DEFAULT_WARMUP_STEPS = 5


def last_rows(record: RunRecord) -> dict[int, StepRow]:
    """Each step's last row, by step: after a resume a step may have been taken twice."""
    return {row.step: row for row in sorted(record.steps, key=lambda row: row.time)}


def measured_rows(record: RunRecord, warmup: int) -> list[StepRow]:
    """The rows that count, the first ``warmup`` steps left out."""
    return [row for step, row in sorted(last_rows(record).items()) if step > warmup]


def reasons(record: RunRecord, warmup: int = DEFAULT_WARMUP_STEPS) -> list[str]:
    """Why the run is no valid point; empty where it is one."""
    if record.condition != "Succeeded" and not (record.nodes_seen or record.starts or record.steps):
        # It never ran: all the rest follows from that.
        return _ended(record)
    return [*_ended(record), *_placed(record), *_restarted(record), *_started(record), *_trained(record, warmup)]


def _ended(record: RunRecord) -> list[str]:
    if record.condition == "Succeeded":
        return []
    return [f"the job ended as {record.condition}" + (f": {record.message}" if record.message else "")]


def _placed(record: RunRecord) -> list[str]:
    found = []
    seen = len(record.nodes_seen)
    if seen != record.nodes_asked:
        where = f" ({', '.join(record.nodes_seen)})" if seen else ""
        found.append(f"{_count(record.nodes_asked, 'node')} asked, pods ran on {seen}{where}")
    if seen and not record.instance_types:
        found.append("the nodes' instance type is unknown: their labels could not be read")
    if len(record.instance_types) > 1:
        found.append(f"more than one instance type: {', '.join(record.instance_types)}")
    return found


def _restarted(record: RunRecord) -> list[str]:
    counts = record.restarts
    kinds = (
        (counts.rendezvous_rounds, "rendezvous round beyond the first", "rendezvous rounds beyond the first"),
        (counts.container_restarts, "container restart", "container restarts"),
        (counts.pod_recreations, "pod recreation", "pod recreations"),
    )
    return [f"{n} {one if n == 1 else many}" for n, one, many in kinds if n]


def _started(record: RunRecord) -> list[str]:
    if not record.starts:
        return ["no start row: the process group never formed"]
    start = record.starts[-1]
    found = []
    if len(start.nodes) != record.nodes_asked:
        found.append(f"the ranks were on {_count(len(start.nodes), 'node')}, {record.nodes_asked} asked")
    elif record.nodes_seen and set(start.nodes) != set(record.nodes_seen):
        found.append(
            f"the ranks name other nodes ({', '.join(start.nodes)}) than the pods ({', '.join(record.nodes_seen)})"
        )
    ranks = record.nodes_asked * record.processes_per_node
    if start.world_size != ranks:
        found.append(f"world size {start.world_size}, expected {ranks}")
    used = sorted({s.transport for s in record.starts})
    if used != [record.transport]:
        found.append(f"transport {record.transport!r} declared, {', '.join(map(repr, used))} used")
    if start.resumed_from_step and not record.restarts.total:
        found.append(f"resumed from step {start.resumed_from_step} of an earlier run")
    return found


def _trained(record: RunRecord, warmup: int) -> list[str]:
    rows = last_rows(record)
    found = []
    if record.settings is not None:
        steps = record.settings.trainer.steps
        missing = [step for step in range(1, steps + 1) if step not in rows]
        if missing:
            found.append(f"{steps - len(missing)} of {steps} steps have a row (first missing: {missing[0]})")
    elif not rows:
        found.append("no step has a row")
    if record.unread_rows:
        found.append(f"{_count(record.unread_rows, 'row')} could not be read")
    bad = [step for step, row in sorted(rows.items()) if not math.isfinite(row.loss)]
    if bad:
        found.append(f"the loss is not finite at step {bad[0]}")
    if rows and max(rows) <= warmup:
        found.append(f"no step is left after a warm-up of {_count(warmup, 'step')}")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The ``share`` quantile (0 to 1) by linear interpolation. ``values`` is not empty."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def point(record: RunRecord, warmup: int = DEFAULT_WARMUP_STEPS) -> SweepPoint:
    """One run as a point, without efficiency. A refused point keeps what it measured, for the eye alone."""
    why = reasons(record, warmup)
    rows = measured_rows(record, warmup)
    seconds = [row.step_seconds for row in rows]
    losses: list[float] = []
    for expected, (step, row) in enumerate(sorted(last_rows(record).items()), start=1):
        if step != expected or not math.isfinite(row.loss):
            break
        losses.append(row.loss)
    return SweepPoint(
        nodes=record.nodes_asked,
        gpus=record.nodes_asked * record.gpus_per_node,
        processes=record.nodes_asked * record.processes_per_node,
        accepted=not why,
        reasons=why,
        tokens_per_second=statistics.median(row.tokens_per_second for row in rows) if rows else None,
        step_seconds_median=statistics.median(seconds) if rows else None,
        step_seconds_p95=percentile(seconds, 0.95) if rows else None,
        peak_memory_bytes=max((row.peak_memory_bytes for row in record.steps), default=None),
        measured_steps=len(rows),
        job=record.job,
        restarts=record.restarts,
        losses=losses,
    )


def baseline(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The accepted point with the fewest nodes: N0."""
    usable = [p for p in points if p.accepted and p.tokens_per_second]
    return min(usable, key=lambda p: p.nodes, default=None)


def with_efficiency(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points with `SweepPoint.efficiency` set where they are accepted, fewest nodes first."""
    base = baseline(points)
    found = []
    for p in sorted(points, key=lambda p: p.nodes):
        value = None
        if base and base.tokens_per_second and p.accepted and p.tokens_per_second:
            value = p.tokens_per_second / (p.nodes / base.nodes * base.tokens_per_second)
        found.append(p.model_copy(update={"efficiency": value}))
    return found


def max_loss_difference(points: Sequence[SweepPoint], mode: Mode) -> float | None:
    """Largest difference of any step's loss between accepted points.

    None where fewer than two points can be compared, or their global batches differ (weak scaling).
    """
    curves = [p.losses for p in points if p.accepted and p.losses]
    if mode == "weak" or len(curves) < 2:
        return None
    differences: list[float] = [max(step) - min(step) for step in zip(*curves, strict=False)]
    return max(differences)


def report(name: str, mode: Mode, records: Sequence[RunRecord], warmup: int = DEFAULT_WARMUP_STEPS) -> SweepReport:
    """All that a sweep says. ``records`` is not empty."""
    points = with_efficiency([point(record, warmup) for record in records])
    base = baseline(points)
    first = min(records, key=lambda record: record.nodes_asked)
    trainer = first.settings.trainer if first.settings else None
    started = next((r.starts[-1] for r in records if r.starts), None)
    types = sorted({t for r in records for t in r.instance_types})
    return SweepReport(
        name=name,
        mode=mode,
        baseline_nodes=base.nodes if base else min(p.nodes for p in points),
        simulated=any(r.simulated for r in records),
        instance_type=", ".join(types) or "unknown",
        model=trainer.model if trainer else (started.model if started else "unknown"),
        strategy=trainer.strategy if trainer else (started.strategy if started else "unknown"),
        global_batch_size=trainer.global_batch_size if trainer else 0,
        sequence_length=trainer.data.sequence_length if trainer else 0,
        max_loss_difference=max_loss_difference(points, mode),
        points=points,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
