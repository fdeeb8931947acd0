"""The commands in `benchmarks/`, at their smallest."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import torch
from click.testing import CliRunner
from rich.console import Console

from benchmarks import article
from benchmarks.report import main
from tpgen.tools.bench.records import Record, Report, Settings, read_environment


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
    assert cells.headings == ("product", "CPU")
    shown = dict(cells.rows)
    assert shown.pop("eager module, CUDA streams") == "needs a CUDA device"
    assert shown.pop("e3nn").endswith("s")
    assert all(re.fullmatch(r"\S+ .?s(, \S+×)?", cell) for cell in shown.values())
    article.plot(reports, "forward", tmp_path / "article.png")
    assert (tmp_path / "article.png").exists()


def test_article_table_fits_into_80_columns_and_has_ratios() -> None:
    names = [article.contender_name(row, column) for row in article.ROWS for column in article.COLUMNS[:2]]
    records = tuple(
        Record("article", "forward", name, "ok", 32, "mul_ir", median=4e-4 / (1 + n))
        for n, name in enumerate(dict.fromkeys(filter(None, names)))
    )
    cells = article.table(
        {"cpu": Report(read_environment(), Settings("float32", "cpu", 0.0), records)}, "forward", 1000
    )
    console = Console(file=io.StringIO(), width=80)
    console.print(cells.make_rich_table())
    shown = console.file.getvalue()
    assert "…" not in shown
    assert "200 µs, 2.00×" in shown
    assert "GPU" not in shown


def test_article_makes_no_ratio_of_a_time_in_doubt() -> None:
    records = [
        Record("article", "forward", name, "ok", 32, "mul_ir", median=1e-3) for name in ("e3nn/script", "loop/eager")
    ]
    doubted = replace(records[1], doubt="its times lie 90 % apart")
    report = Report(read_environment(), Settings("float32", "cpu", 0.0), (records[0], doubted))
    assert article.cell({"cpu": report}, "forward", "eager module, a loop", article.COLUMNS[0]) == "1.00 ms"
