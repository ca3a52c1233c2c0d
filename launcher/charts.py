"""The scaling chart as a PNG (matplotlib): throughput with the ideal line, efficiency, step time, loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eks_fsdp.spec.records import SweepPoint, SweepReport

from . import report as words
from .errors import UserError
from .verdict import baseline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, SKY, GREY, INK, AMBER, GREEN = "#2456c7", "#8fb4f5", "#9aa3b2", "#1d2433", "#c9770a", "#17803d"
CURVES = ("#2456c7", "#e2801b", "#17803d", "#b3267e", "#6a4fc2", "#5b6472")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 3)), "-")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": "#c8cedb",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11.5,
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7eaf1",
    "xtick.color": "#4a5264",
    "ytick.color": "#4a5264",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def write_png(report: SweepReport, path: Path) -> None:
    """Draw the report. Raises `UserError` where the file cannot be written."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 9), dpi=140, facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            2, 2, left=0.065, right=0.975, top=0.83, bottom=0.125, hspace=0.38, wspace=0.17, width_ratios=(1.35, 1)
        )
        _throughput(figure.add_subplot(grid[0, 0]), report)
        _efficiency(figure.add_subplot(grid[0, 1]), report)
        _loss(figure.add_subplot(grid[1, 0]), report)
        _step_time(figure.add_subplot(grid[1, 1]), report)
        headline = _headline(report)
        # Bold 16 points hold about 82 letters in this width.
        figure.text(
            0.065, 0.962, headline, size=min(16, 16 * 82 / len(headline)), weight="bold", color=INK, va="center"
        )
        figure.text(0.065, 0.924, _sentence(words.work_of(report)), size=10.5, color="#4a5264", va="center")
        if report.simulated:
            figure.text(
                0.065,
                0.894,
                "SIMULATED: all nodes share one machine's cores; tokens/s and efficiency say nothing about AWS.",
                size=10.5,
                weight="bold",
                color=AMBER,
                va="center",
            )
        figure.text(0.065, 0.052, words.formula_of(report), size=9.5, color="#4a5264", va="center")
        figure.text(
            0.065, 0.026, _refusals(report), size=9.5, color=AMBER if _refused(report) else "#4a5264", va="center"
        )
        try:
            figure.savefig(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None


def _headline(report: SweepReport) -> str:
    return f"Scaling of {words.title_of(report)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _refused(report: SweepReport) -> list[SweepPoint]:
    return [p for p in report.points if not p.accepted]


def _refusals(report: SweepReport) -> str:
    refused = _refused(report)
    if not refused:
        return "All points accepted: nodes seen = nodes asked, one instance type, no restart of any kind, declared transport used."
    text = "Refused: " + "  |  ".join(
        f"{p.nodes} node{'s' if p.nodes > 1 else ''}: {'; '.join(p.reasons)}" for p in refused
    )
    return text if len(text) <= 165 else text[:162] + "…"


def _node_ticks(axes: Axes, report: SweepReport) -> None:
    nodes = [p.nodes for p in report.points]
    axes.set_xticks(nodes, [str(n) for n in nodes])
    axes.set_xlabel("Nodes")


def _throughput(axes: Axes, report: SweepReport) -> None:
    axes.set_title("Throughput")
    good = [p for p in report.points if p.accepted and p.tokens_per_second is not None]
    base = baseline(report.points)
    nodes = [p.nodes for p in report.points]
    if base and base.tokens_per_second:
        ends = (min(nodes), max(nodes))
        ideal = [n / base.nodes * base.tokens_per_second for n in ends]
        axes.plot(ends, ideal, color=GREY, ls=(0, (5, 3)), lw=1.6, label=f"ideal: N / {base.nodes} × T({base.nodes})")
    axes.plot([p.nodes for p in good], [_t(p) for p in good], color=BLUE, lw=2.2, marker="o", ms=7, label="measured")
    for p in good:
        text = f"{_t(p):,.0f}"
        axes.annotate(
            text, (p.nodes, _t(p)), (0, -15), textcoords="offset points", ha="center", color=BLUE, weight="bold"
        )
    shown = [p for p in _refused(report) if p.tokens_per_second is not None]
    if shown:
        xs, ys = [p.nodes for p in shown], [_t(p) for p in shown]
        axes.plot(xs, ys, ls="none", marker="X", ms=9, color=AMBER, label="refused, not counted")
    highest = max([_t(p) for p in report.points], default=0) or 1
    if base and base.tokens_per_second:
        highest = max(highest, max(nodes) / base.nodes * base.tokens_per_second)
    axes.set_ylim(0, highest * 1.1)
    span = max(nodes) - min(nodes) or 1
    axes.set_xlim(min(nodes) - span * 0.07, max(nodes) + span * 0.07)
    axes.set_ylabel("Tokens/s")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _node_ticks(axes, report)
    axes.legend(loc="upper left")


def _t(point: SweepPoint) -> float:
    return point.tokens_per_second or 0.0


def _bars(axes: Axes, report: SweepReport) -> range:
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(report.points)), [str(p.nodes) for p in report.points])
    axes.set_xlabel("Nodes")
    axes.set_xlim(-0.6, len(report.points) - 0.4)
    return range(len(report.points))


def _efficiency(axes: Axes, report: SweepReport) -> None:
    axes.set_title(f"Scaling efficiency against N0 = {report.baseline_nodes}")
    for x, p in zip(_bars(axes, report), report.points, strict=True):
        if p.efficiency is None:
            axes.annotate(
                "refused", (x, 0), (0, 6), textcoords="offset points", ha="center", color=AMBER, weight="bold"
            )
            continue
        axes.bar(x, p.efficiency, width=0.52, color=BLUE if p.nodes != report.baseline_nodes else SKY)
        axes.annotate(
            f"{p.efficiency:.0%}",
            (x, p.efficiency),
            (0, 4),
            textcoords="offset points",
            ha="center",
            weight="bold",
            color=INK,
        )
    axes.axhline(1, color=GREY, ls=(0, (5, 3)), lw=1.4)
    axes.set_ylim(0, max([p.efficiency or 0 for p in report.points] + [1]) * 1.16)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _loss(axes: Axes, report: SweepReport) -> None:
    told = report.max_loss_difference
    title = "Training loss" if told is None else f"Training loss: accepted points differ by at most {told:.1e}"
    axes.set_title(title)
    drawn = [p for p in report.points if p.losses]
    for order, p in enumerate(drawn):
        # Curves that agree lie on each other: wide and solid below, narrow and dashed above, shows them all.
        width = 5.0 - 3.2 * order / max(len(drawn) - 1, 1)
        label = f"{p.nodes} node{'s' if p.nodes > 1 else ''}" + ("" if p.accepted else " (refused)")
        colour = CURVES[order % len(CURVES)]
        axes.plot(
            range(1, len(p.losses) + 1),
            p.losses,
            color=colour,
            lw=width,
            ls=DASHES[order % len(DASHES)],
            alpha=0.45 if order == 0 and len(drawn) > 1 else 1,
            label=label,
        )
    axes.set_xlabel("Optimizer step")
    axes.set_ylabel("Loss (mean over the global batch's tokens)")
    if drawn:
        axes.legend(loc="upper right")


def _step_time(axes: Axes, report: SweepReport) -> None:
    axes.set_title("Step time")
    measured = [p for p in report.points if p.step_seconds_median is not None]
    for x, p in zip(_bars(axes, report), report.points, strict=True):
        if p.step_seconds_median is None or p.step_seconds_p95 is None:
            continue
        colour = (BLUE, SKY) if p.accepted else (AMBER, "#f0d2a4")
        axes.bar(x - 0.19, p.step_seconds_median, width=0.34, color=colour[0])
        axes.bar(x + 0.19, p.step_seconds_p95, width=0.34, color=colour[1])
        for at, value in ((x - 0.19, p.step_seconds_median), (x + 0.19, p.step_seconds_p95)):
            text = words.duration(value)
            axes.annotate(text, (at, value), (0, 4), textcoords="offset points", ha="center", size=8.5, color=INK)
    axes.bar(0, 0, color=BLUE, label="median")
    axes.bar(0, 0, color=SKY, label="95th percentile")
    axes.set_ylim(0, max([p.step_seconds_p95 or 0 for p in measured] + [1e-3]) * 1.3)
    axes.set_ylabel("Seconds")
    axes.legend(loc="upper left", ncols=2)
