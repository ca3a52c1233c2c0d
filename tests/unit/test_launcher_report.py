"""The files that people look at."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path

import pytest
from rich.console import Console

from eks_fsdp.launcher import charts, page, report, runfolder, verdict
from eks_fsdp.launcher.errors import UserError
from eks_fsdp.launcher.runfolder import SweepPlan
from eks_fsdp.spec.records import Restarts, SweepReport

from .launcher_samples import record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of three points, the second refused."""
    out = tmp_path / "sweep"
    runfolder.open_folder(out, overwrite=False)
    plan = SweepPlan(
        name="sweep", id="s1", stack="sandbox", job="llama", mode="strong", nodes=[1, 2, 4], warmup=5, created=0.0
    )
    runfolder.write_plan(out, plan)
    runs = [
        record(1),
        record(2, 1500.0, restarts=Restarts(rendezvous_rounds=1, container_restarts=1)),
        record(4, 2000.0),
    ]
    for number, run in enumerate(runs, start=1):
        runfolder.write_record(out, number, run)
    return out


def test_all_files_are_written(folder: Path) -> None:
    made = report.make(folder)

    points = json.loads((folder / "scaling.json").read_text())["points"]
    assert [(p["nodes"], p["accepted"]) for p in points] == [(1, True), (2, False), (4, True)]
    assert points[1]["reasons"] == ["1 rendezvous round beyond the first", "1 container restart"]
    assert SweepReport.model_validate_json((folder / "scaling.json").read_text()) == made

    rows = list(csv.DictReader(io.StringIO((folder / "scaling.csv").read_text())))
    assert [row["nodes"] for row in rows] == ["1", "2", "4"]
    assert rows[1]["efficiency"] == ""
    assert rows[1]["container_restarts"] == "1"
    assert float(rows[2]["efficiency"]) == pytest.approx(0.5)

    png = (folder / "scaling.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 1500
    assert height >= 1000


def test_the_page_needs_no_network_and_says_what_must_be_said(folder: Path) -> None:
    report.make(folder)
    text = (folder / "scaling.html").read_text()
    head, body = text.split("<body>")
    assert "<script src=" not in text
    assert "<link" not in text
    assert "Plotly" in head
    assert "simulated on shared cores" in body
    assert "Efficiency(N) = T(N) / (N / N0 × T(N0))" in body
    assert "N0 = 1 node" in body
    assert "1 container restart" in body
    assert "ideal: N / 1" in body.encode().decode("unicode_escape", errors="ignore")


def test_the_chart_of_real_nodes_is_not_called_simulated() -> None:
    real = verdict.report("s", "strong", [record(1, simulated=False), record(2, simulated=False)])
    assert "simulated" not in page.html(real).split("<body>")[1].lower()
    assert "simulated" not in report.title_of(real)


def test_text_from_outside_is_escaped() -> None:
    evil = record(1, condition="Failed", message="<script>alert(1)</script>")
    assert "<script>alert(1)" not in page.html(verdict.report("s", "strong", [evil, record(2)]))


def test_a_sweep_without_any_accepted_point_is_still_drawn(tmp_path: Path) -> None:
    bad = [record(n, condition="Failed", starts=[], steps=[], nodes_seen=[], instance_types=[]) for n in (1, 2)]
    made = verdict.report("s", "strong", bad)
    paths = report.write(made, tmp_path)
    assert all(path.stat().st_size > 100 for path in paths)


def test_one_point_and_many_points_are_drawn(tmp_path: Path) -> None:
    for counts in ([4], [1, 2, 3, 4, 5, 6, 7, 8]):
        made = verdict.report("s", "weak", [record(n, 900.0 * n) for n in counts])
        charts.write_png(made, tmp_path / "chart.png")


def test_the_table_fits_an_ordinary_terminal() -> None:
    made = verdict.report("s", "strong", [record(1), record(4, 123_456.0, condition="Failed", message="no")])
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(report.table(made))
    text = console.export_text()
    assert "…" not in text
    assert "accepted" in text
    assert "refused" in text
    assert "123,456" in text


def test_a_loss_that_is_no_number_survives_the_disk(tmp_path: Path) -> None:
    runfolder.open_folder(tmp_path, overwrite=False)
    steps = [row.model_copy(update={"loss": float("nan")}) for row in record().steps]
    path = runfolder.write_record(tmp_path, 1, record(steps=steps))
    assert "NaN" in path.read_text()


def test_a_folder_with_a_sweep_is_not_overwritten_unless_told(folder: Path) -> None:
    with pytest.raises(UserError, match="holds a sweep already"):
        runfolder.open_folder(folder, overwrite=False)
    (folder / "mine.txt").write_text("the user's own")
    runfolder.open_folder(folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "records"]


def test_a_folder_without_a_sweep_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no sweep\.json here"):
        report.make(tmp_path)
