"""The commands in `benchmarks/`, at their smallest."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from click.testing import CliRunner

from benchmarks import article
from benchmarks.report import main


def test_report_script_measures_goes_on_and_writes(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    arguments = ["--folder", str(tmp_path / "records"), "--page", str(tmp_path / "docs" / "b.md"), "--device", "cpu"]
    choice = ["--problem", "article", "--task", "forward", "--contender", "loop/eager", "--seconds", "0"]
    first = CliRunner().invoke(main, [*arguments, *choice], catch_exceptions=False)
    assert first.exit_code == 0
    page = (tmp_path / "docs" / "b.md").read_text()
    assert page.startswith("# Benchmarks")
    (figures,) = json.loads((tmp_path / "docs" / "records" / "b.json").read_text())
    assert "loop/eager" in json.dumps(figures)
    assert (tmp_path / "docs" / "images" / "benchmarks-cpu-float32.png").exists()
    again = CliRunner().invoke(main, [*arguments, *choice], catch_exceptions=False)
    assert "measured before" in again.output
    assert CliRunner().invoke(main, [*arguments, "--write-only", "--fresh"]).exit_code == 1


def test_article_script_fills_every_cell(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(article, "COLUMNS", (article.Column("CPU", "cpu"), article.Column("GPU", "cuda")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reports = article.measure("forward", 2, progress=False)
    cells = article.table(reports, "forward", 2)
    assert [row[0] for row in cells.rows] == list(article.ROWS)
    assert all(row[2] == "no GPU here" for row in cells.rows)
    assert {row[0]: row[1] for row in cells.rows}["eager module, CUDA streams"] == "needs a CUDA device"
    assert all(row[1].endswith("s") for row in cells.rows if "streams" not in row[0])
    article.plot(reports, "forward", tmp_path / "article.png")
    assert (tmp_path / "article.png").exists()
