"""The report as one HTML page that needs no network (plotly's script is in it)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from eks_fsdp.spec.records import SweepPoint, SweepReport

from . import report as words
from .charts import AMBER, BLUE, CURVES, GREY, INK, SKY
from .verdict import baseline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

STYLE = """
:root { --ink: #1d2433; --soft: #5b6472; --line: #e3e7ef; --blue: #2456c7; --amber: #a86200; --green: #17803d; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fb; color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 36px 24px 56px; }
h1 { font-size: 27px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 10px; }
p { margin: 0; } .soft { color: var(--soft); }
.notice { margin: 18px 0 0; padding: 12px 16px; border-left: 4px solid #e2a04a; background: #fff5e5; color: #6d4200; border-radius: 6px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 14px; margin: 22px 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px; min-width: 0; }
.fact b { display: block; font-size: 25px; letter-spacing: -0.01em; } .fact span { color: var(--soft); font-size: 13px; }
.grid { display: grid; grid-template-columns: 3fr 2fr; gap: 14px; margin-bottom: 14px; }
@media (max-width: 880px) { .grid { grid-template-columns: 1fr; } }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 9px 12px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-size: 12.5px; color: var(--soft); font-weight: 600; } tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { text-align: left; white-space: normal; }
tr.refused td { color: #7b8393; }
.yes, .no { display: inline-block; font-size: 12.5px; font-weight: 600; padding: 1px 9px; border-radius: 99px; }
.yes { color: var(--green); background: #e5f5ea; } .no { color: var(--amber); background: #fdf0dc; margin-right: 6px; }
td ul { margin: 4px 0 0; padding-left: 18px; color: var(--ink); }
code { background: #eef1f7; padding: 2px 6px; border-radius: 5px; font-size: 13.5px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 18px; margin: 0; } dt { color: var(--soft); } dd { margin: 0; }
"""
CONFIG = {"displaylogo": False, "responsive": True, "displayModeBar": False}


def html(report: SweepReport) -> str:
    """The whole page."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    title = f"Scaling of {words.title_of(report)}"
    work = words.work_of(report)
    notice = f'<p class="notice"><b>Simulated.</b> {escape(words.SIMULATED_NOTICE)}</p>' if report.simulated else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head>
<body><main>
<h1>{escape(title)}</h1>
<p class="soft">{escape(work[:1].upper() + work[1:])}.</p>
{notice}
<section class="facts">{_facts(report)}</section>
<section class="grid">
<div class="card"><h2>Throughput</h2>{_div(_throughput(report))}</div>
<div class="card"><h2>Scaling efficiency against N0 = {report.baseline_nodes}</h2>{_div(_efficiency(report))}</div>
<div class="card"><h2>Training loss</h2>{_div(_loss(report))}</div>
<div class="card"><h2>Step time</h2>{_div(_step_time(report))}</div>
</section>
<section class="card" style="margin-bottom: 14px"><h2>Points</h2><div class="scroll">{_table(report)}</div></section>
<section class="card"><h2>How to read this</h2><dl>
<dt>Efficiency</dt><dd><code>{escape(words.formula_of(report))}</code></dd>
<dt>Ideal line</dt><dd>N / N0 × T(N0): what the smallest accepted point would make with N nodes and no loss.</dd>
<dt>Accepted</dt><dd>Nodes seen are the nodes asked, of one instance type; nothing restarted (rendezvous rounds, containers,
pods); every step has a row and a finite loss; the declared transport was used; the warm-up is left out. A point that lacks any of
these is shown with its reason and counts for nothing.</dd>
<dt>Loss</dt><dd>{escape(words.loss_line(report))}</dd>
</dl></section>
</main></body></html>
"""


def _facts(report: SweepReport) -> str:
    accepted = [p for p in report.points if p.accepted]
    best = max(accepted, key=lambda p: p.tokens_per_second or 0, default=None)
    largest = max((p for p in accepted if p.efficiency is not None), key=lambda p: p.nodes, default=None)
    told = report.max_loss_difference
    facts = [
        (f"{len(accepted)} of {len(report.points)}", "points accepted"),
        (words.number(best.tokens_per_second) if best else "–", f"tokens/s at best ({_nodes(best)})"),
        (words.number(largest.efficiency, ".0%") if largest else "–", f"efficiency at {_nodes(largest)}"),
        ("–" if told is None else f"{told:.1e}", "largest difference of any step's loss"),
    ]
    return "".join(f'<div class="card fact"><b>{escape(v)}</b><span>{escape(t)}</span></div>' for v, t in facts)


def _nodes(point: SweepPoint | None) -> str:
    return "no point" if point is None else f"{point.nodes} node{'s' if point.nodes > 1 else ''}"


def _table(report: SweepReport) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in (*words.HEADINGS, "Verdict"))
    rows = []
    for point in report.points:
        values = "".join(f"<td>{escape(cell)}</td>" for cell in words.cells(point))
        if point.accepted:
            said = '<span class="yes">accepted</span>'
        else:
            said = (
                '<span class="no">refused</span><ul>'
                + "".join(f"<li>{escape(r)}</li>" for r in point.reasons)
                + "</ul>"
            )
        rows.append(f'<tr class="{"" if point.accepted else "refused"}">{values}<td>{said}</td></tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _div(figure: Figure) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG, default_height="340px"))


def _figure(**layout: Any) -> Figure:
    from plotly.graph_objects import Figure

    axis = {
        "gridcolor": "#e7eaf1",
        "linecolor": "#c8cedb",
        "zeroline": False,
        "rangemode": "tozero",
        "automargin": True,
        "title": {"font": {"size": 13, "color": "#5b6472"}, "standoff": 10},
    }
    figure = Figure()
    figure.update_layout(
        template="none",
        font={"family": "system-ui, Segoe UI, DejaVu Sans, sans-serif", "size": 13, "color": INK},
        margin={"l": 64, "r": 16, "t": 8, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
        xaxis=axis | {"showgrid": False},
        yaxis=axis,
        xaxis_title_text="Nodes",
    )
    figure.update_layout(**layout)
    return figure


def _throughput(report: SweepReport) -> Figure:
    nodes = [p.nodes for p in report.points]
    figure = _figure(
        xaxis_tickvals=nodes, yaxis_title_text="Tokens/s", xaxis_rangemode="normal", yaxis_tickformat=",.0f"
    )
    base = baseline(report.points)
    if base and base.tokens_per_second:
        ideal = [n / base.nodes * base.tokens_per_second for n in nodes]
        figure.add_scatter(
            x=nodes,
            y=ideal,
            mode="lines",
            name=f"ideal: N / {base.nodes} × T({base.nodes})",
            line={"color": GREY, "dash": "dash", "width": 2},
        )
    good = [p for p in report.points if p.accepted]
    figure.add_scatter(
        x=[p.nodes for p in good],
        y=[p.tokens_per_second for p in good],
        mode="lines+markers+text",
        text=[words.number(p.tokens_per_second) for p in good],
        textposition="bottom center",
        cliponaxis=False,
        name="measured",
        line={"color": BLUE, "width": 3},
        marker={"size": 10},
    )
    refused = [p for p in report.points if not p.accepted and p.tokens_per_second is not None]
    if refused:
        figure.add_scatter(
            x=[p.nodes for p in refused],
            y=[p.tokens_per_second for p in refused],
            mode="markers",
            name="refused, not counted",
            marker={"color": AMBER, "size": 12, "symbol": "x"},
            hovertext=["<br>".join(map(escape, p.reasons)) for p in refused],
        )
    return figure


def _efficiency(report: SweepReport) -> Figure:
    top = max([p.efficiency or 0 for p in report.points] + [1]) * 1.14
    figure = _figure(xaxis_type="category", yaxis_tickformat=".0%", yaxis_range=[0, top], showlegend=False)
    figure.add_bar(
        x=[str(p.nodes) for p in report.points],
        y=[p.efficiency for p in report.points],
        text=[words.number(p.efficiency, ".0%") if p.efficiency is not None else "" for p in report.points],
        textposition="outside",
        cliponaxis=False,
        marker_color=[SKY if p.nodes == report.baseline_nodes else BLUE for p in report.points],
        width=0.5,
        name="efficiency",
    )
    for at, p in enumerate(report.points):
        if p.efficiency is None:
            figure.add_annotation(x=at, y=0, text="refused", showarrow=False, yshift=12, font={"color": AMBER})
    figure.add_hline(y=1, line={"color": GREY, "dash": "dash", "width": 2})
    return figure


def _loss(report: SweepReport) -> Figure:
    figure = _figure(
        xaxis_title_text="Optimizer step", yaxis_title_text="Loss", yaxis_rangemode="normal", xaxis_rangemode="normal"
    )
    drawn = [p for p in report.points if p.losses]
    for order, p in enumerate(drawn):
        # Curves that agree lie on each other: wide below, narrow and dashed above.
        figure.add_scatter(
            x=list(range(1, len(p.losses) + 1)),
            y=p.losses,
            mode="lines",
            name=_nodes(p) + ("" if p.accepted else " (refused)"),
            opacity=0.5 if order == 0 and len(drawn) > 1 else 1,
            line={
                "color": CURVES[order % len(CURVES)],
                "width": 7 - 5 * order / max(len(drawn) - 1, 1),
                "dash": ("solid", "dash", "dot", "dashdot")[order % 4],
            },
        )
    return figure


def _step_time(report: SweepReport) -> Figure:
    figure = _figure(xaxis_type="category", yaxis_title_text="Seconds", barmode="group")
    names = [str(p.nodes) for p in report.points]
    for name, colour, faded, values in (
        ("median", BLUE, AMBER, [p.step_seconds_median for p in report.points]),
        ("95th percentile", SKY, "#f0d2a4", [p.step_seconds_p95 for p in report.points]),
    ):
        figure.add_bar(
            x=names,
            y=values,
            name=name,
            marker_color=[colour if p.accepted else faded for p in report.points],
            text=[words.duration(v) if v is not None else "" for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    return figure
