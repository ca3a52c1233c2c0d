"""`make demo`'s program, as its user runs it: from nothing to a scaling chart, and nothing left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import CLI, ROOT, processes_naming

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_the_demo_ends_in_a_scaling_chart_and_leaves_nothing(tmp_path: Path) -> None:
    folder, out = tmp_path / "sandbox", tmp_path / "out"
    before = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    done = subprocess.run(
        [*CLI, "demo", "--dir", str(folder), "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    report = json.loads((out / "scaling.json").read_text())
    points = report["points"]
    assert [point["nodes"] for point in points] == [1, 2, 4]
    assert all(point["accepted"] for point in points), [point["reasons"] for point in points]
    assert [point["gpus"] for point in points] == [8, 16, 32]
    assert [point["processes"] for point in points] == [1, 2, 4]
    assert report["simulated"] is True
    assert points[0]["efficiency"] == pytest.approx(1.0)
    for point in points:
        assert point["tokens_per_second"] > 0
        assert point["step_seconds_p95"] >= point["step_seconds_median"] > 0
        assert point["peak_memory_bytes"] > 50_000_000
        assert point["efficiency"] == pytest.approx(
            point["tokens_per_second"] / (point["nodes"] * points[0]["tokens_per_second"])
        )
        # The model learns: the last losses are well below the first.
        assert point["losses"][-1] < point["losses"][0] - 0.5
        # The global batch is the same at every point, so the curves are one curve.
        for loss, reference in zip(point["losses"], points[0]["losses"], strict=True):
            assert loss == pytest.approx(reference, abs=1e-3)
    assert report["max_loss_difference"] <= 1e-3

    with (out / "scaling.csv").open() as file:
        assert [row["nodes"] for row in csv.DictReader(file)] == ["1", "2", "4"]
    assert (out / "scaling.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "scaling.html").read_text()
    assert "imulated" in page
    assert 'src="http' not in page, "the page must work offline"

    assert not folder.exists()
    assert processes_naming(folder) == []
    after = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert after == before


@pytest.mark.parametrize("seconds", [2, 12, 35])
def test_ctrl_c_at_any_moment_leaves_nothing(tmp_path: Path, seconds: int) -> None:
    folder, out = tmp_path / "sandbox", tmp_path / "out"
    with subprocess.Popen(
        [*CLI, "demo", "--dir", str(folder), "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            time.sleep(seconds)
            # The terminal sends it to the whole foreground group.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=15) == 130
        finally:
            process.terminate()
    assert processes_naming(folder) == []
    assert not folder.exists()
