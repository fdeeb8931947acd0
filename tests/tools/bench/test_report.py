"""Reports: ratios and means, the way to JSON and back, tables, Markdown and plots."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.page import merge_reports, method_notes
from tpgen.base.errors import TpgenError
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.records import Record, Report, Settings, load_report, read_environment
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.bench.tables import ReportTables, markdown_report, plot_report


def record(problem: str, contender: str, median: float | None, **others) -> Record:
    base = Record(problem, "forward", contender, "ok", 32, "mul_ir", median=median)
    return replace(base, **{"min": median, "spread": 0.1, "error": 1e-7, "peak_bytes": 1 << 20, **others})


@pytest.fixture
def report() -> Report:
    """Two problems: ratios are 4 and 1 to e3nn's best, 8 and 1 to e3nn in eager mode."""
    records = (
        record("a", "e3nn/script", 4e-3),
        record("a", "e3nn/eager", 8e-3),
        record("a", "tpgen-auto/eager", 1e-3),
        record("a", "broken/eager", None, status="wrong", reason="out is off by 1e-01", min=None, error=0.1),
        record("b", "e3nn/script", 2e-3),
        record("b", "e3nn/eager", 2e-3),
        record("b", "tpgen-auto/eager", 2e-3),
        record("b", "peer/eager", None, status="unavailable", reason="not installed", min=None, error=None),
    )
    return Report(read_environment(), Settings("float32", "cpu", 2.0), records)


def test_ratios_and_geometric_means(report: Report):
    fast = report.find("a", "forward", "tpgen-auto/eager")
    assert fast is not None
    assert report.speedup(fast) == pytest.approx(4)
    assert report.speedup(fast, same_backend=True) == pytest.approx(8)
    mean = report.geometric_mean_speedup("tpgen-auto/eager", "forward")
    assert mean is not None
    assert (mean.mean, mean.problems, mean.least, mean.least_problem) == (pytest.approx(2), 2, pytest.approx(1), "b")
    assert report.geometric_mean_speedup("peer/eager", "forward") is None


def test_no_ratio_is_made_of_times_in_doubt(report: Report):
    assert "no ratios" not in markdown_report(report)
    doubted = replace(
        report,
        records=tuple(
            replace(r, doubt="its times lie 40 % apart") if r.contender == "e3nn/script" else r for r in report.records
        ),
    )
    fast, best = (doubted.find("a", "forward", name) for name in ("tpgen-auto/eager", "e3nn/script"))
    assert fast is not None
    assert best is not None
    assert (doubted.speedup(fast), doubted.speedup(best)) == (None, None)
    assert doubted.speedup(fast, same_backend=True) == pytest.approx(8)
    assert doubted.geometric_mean_speedup("tpgen-auto/eager", "forward") is None
    said = "no ratios are made of e3nn/script at a (its times lie 40 % apart), and 1 more"
    assert said in markdown_report(doubted)
    console = Console(file=io.StringIO(), width=200)
    console.print(ReportTables(doubted))
    assert console.file.getvalue().startswith(said), "before the tables"


def test_json_round_trip(report: Report, tmp_path: Path):
    report.save_json(tmp_path / "new" / "r.json")
    assert load_report(tmp_path / "new" / "r.json") == report


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: data.update(schema=99), "schema 99, this version reads 1"),
        (lambda data: data.pop("records"), "is not a benchmark report .*records"),
        (lambda data: data["settings"].update(colour="red"), "unknown entries colour"),
        (lambda data: data["records"][0].pop("problem"), "is not a benchmark report"),
    ],
)
def test_other_files_are_refused(report: Report, tmp_path: Path, change, message: str):
    path = tmp_path / "r.json"
    report.save_json(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(TpgenError, match=message):
        load_report(path)
    path.write_text("[")
    with pytest.raises(TpgenError, match="is not a benchmark report"):
        load_report(path)


def test_merge_puts_equal_settings_together(report: Report):
    halves = [replace(report, records=tuple(r for r in report.records if r.problem == p)) for p in "ab"]
    other = replace(report, settings=Settings("float64", "cpu", 2.0))
    newer = replace(halves[0], records=(record("a", "e3nn/script", 3e-3),))
    merged = merge_reports([*halves, other, newer])
    assert [m.settings.dtype for m in merged] == ["float32", "float64"]
    assert len(merged[0].records) == len(report.records)
    found = merged[0].find("a", "forward", "e3nn/script")
    assert found is not None
    assert found.median == 3e-3


def test_table_shows_ratios_wrong_and_absent(report: Report):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(ReportTables(report))
    text = console.export_text()
    for piece in ("4.00×", "8.00×", "WRONG", "geometric means", "not installed", "out is off by 1e-01"):
        assert piece in text
    assert "torch " + torch.__version__ in text


def test_markdown_has_all_figures(report: Report):
    text = markdown_report(report, "images/x.png")
    assert "![times faster than e3nn, by problem and task](images/x.png)" in text
    assert "| **tpgen-auto/eager** | **1.00 ms** |" in text
    assert "| broken/eager | WRONG |" in text
    assert "| peer/eager | unavailable | b | not installed |" in text
    assert "2e-05 in float32" in method_notes(report)


def test_plot_writes_a_picture(report: Report, tmp_path: Path):
    plot_report(report, tmp_path / "sub" / "plot.png")
    assert (tmp_path / "sub" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_report_is_shown(tmp_path: Path):
    empty = run_benchmarks([], [])
    Console(quiet=True).print(ReportTables(empty))
    plot_report(empty, tmp_path / "plot.png")
    assert empty.records == ()


def test_progress_is_drawn_on_stderr(capfd):
    run_benchmarks(
        select_problems(["article"]), select_contenders(["loop/eager"]), ["forward"], seconds=0, progress=True
    )
    captured = capfd.readouterr()
    assert "article, forward" in captured.err
    assert captured.out == ""
