"""Report a sweep: a table in the terminal, ``scaling.json``, ``.csv``, ``.html`` and ``.png`` beside the records."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from eks_fsdp.spec.records import SweepPoint, SweepReport

from . import runfolder, verdict
from .live import console, live_line

FORMULA = "Efficiency(N) = T(N) / (N / N0 × T(N0))"
SIMULATED_TITLE = "simulated on shared cores"
SIMULATED_NOTICE = (
    "Simulated on shared cores: every node is a set of processes on one machine, which share its cores. "
    "Tokens/s and efficiency say nothing about AWS; the chain that produced them is the real one."
)
CSV_COLUMNS = (
    "nodes",
    "gpus",
    "processes",
    "tokens_per_second",
    "step_seconds_median",
    "step_seconds_p95",
    "peak_memory_bytes",
    "efficiency",
    "measured_steps",
    "accepted",
    "reasons",
    "rendezvous_rounds",
    "container_restarts",
    "pod_recreations",
    "job",
)


def title_of(report: SweepReport) -> str:
    """The report's headline."""
    title = f"{report.model} with FSDP {report.strategy} on {report.instance_type}"
    return f"{title}, {SIMULATED_TITLE}" if report.simulated else title


def work_of(report: SweepReport) -> str:
    """What is held equal over the points."""
    if report.mode == "strong":
        return (
            f"strong scaling: a global batch of {report.global_batch_size} sequences of "
            f"{report.sequence_length} tokens at every point"
        )
    return (
        f"weak scaling: equal work per process, a global batch of {report.global_batch_size} sequences of "
        f"{report.sequence_length} tokens at {report.baseline_nodes} and more in proportion"
    )


def formula_of(report: SweepReport) -> str:
    """The formula with its N0."""
    return f"{FORMULA};  T = median tokens/s after warm-up,  N0 = {report.baseline_nodes} node" + (
        "" if report.baseline_nodes == 1 else "s"
    )


def number(value: float | None, form: str = ",.0f", unit: str = "") -> str:
    """A value for people; a dash where there is none."""
    return "–" if value is None else f"{value:{form}}{unit}"


def memory(value: int | None) -> str:
    """Bytes as MiB or GiB."""
    if value is None:
        return "–"
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def duration(seconds: float | None) -> str:
    """Seconds as ms or s."""
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def cells(point: SweepPoint) -> list[str]:
    """A point as a row for people, without its verdict."""
    return [
        str(point.nodes),
        str(point.gpus),
        str(point.processes),
        number(point.tokens_per_second),
        duration(point.step_seconds_median),
        duration(point.step_seconds_p95),
        memory(point.peak_memory_bytes),
        number(point.efficiency, ".0%"),
    ]


HEADINGS = ("Nodes", "GPUs asked", "Processes", "Tokens/s", "Step median", "Step p95", "Peak memory", "Efficiency")


def table(report: SweepReport) -> Table:
    """The report as a terminal's table."""
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for heading in HEADINGS:
        short = {"Processes": "Procs", "Efficiency": "Effic."}.get(heading, heading)
        shown.add_column(short.replace(" ", "\n", 1), justify="right", vertical="bottom", no_wrap=True)
    shown.add_column("Verdict", no_wrap=True)
    for point in report.points:
        said = Text("accepted", "green") if point.accepted else Text("refused", "yellow")
        shown.add_row(*cells(point), said, style="" if point.accepted else "dim")
    return shown


def loss_line(report: SweepReport) -> str:
    """What the loss curves say together."""
    if report.max_loss_difference is None:
        return "Loss curves: fewer than two points to compare."
    steps = min((len(p.losses) for p in report.points if p.accepted), default=0)
    return (
        f"Loss curves: the accepted points differ by at most {report.max_loss_difference:.1e} at any of {steps} steps."
    )


def csv_text(report: SweepReport) -> str:
    """The report as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for point in report.points:
        values = point.model_dump() | point.restarts.model_dump() | {"reasons": "; ".join(point.reasons)}
        writer.writerow(["" if values[column] is None else values[column] for column in CSV_COLUMNS])
    return text.getvalue()


def write(report: SweepReport, folder: Path) -> list[Path]:
    """Write all the files; returns their paths. Raises `UserError`."""
    from . import charts, page

    paths = [folder / f"scaling.{kind}" for kind in ("json", "csv", "html", "png")]
    runfolder.write_text(paths[0], report.model_dump_json(indent=2) + "\n")
    runfolder.write_text(paths[1], csv_text(report))
    runfolder.write_text(paths[2], page.html(report))
    charts.write_png(report, paths[3])
    return paths


def make(folder: Path) -> SweepReport:
    """Report the sweep in ``folder``: files, and the table in the terminal. Raises `UserError`."""
    plan, records = runfolder.read_sweep(folder)
    report = verdict.report(plan.name, plan.mode, records, plan.warmup)
    with live_line("Drawing"):
        paths = write(report, folder)
    show(report)
    console.print("Wrote " + ", ".join(str(path) for path in paths), soft_wrap=True)
    return report


def show(report: SweepReport) -> None:
    """The table in the terminal, with why points were refused and what to bear in mind."""
    console.print()
    console.print(Text(title_of(report), "bold"))
    console.print(Text(work_of(report), "dim"))
    console.print(table(report))
    for point in report.points:
        for why in point.reasons:
            console.print(Text(f"refused at {point.nodes} node{'s' if point.nodes > 1 else ''}: {why}", "yellow"))
    console.print(formula_of(report))
    console.print(loss_line(report))
    if report.simulated:
        console.print(Text(SIMULATED_NOTICE, "italic"))
    console.print()
