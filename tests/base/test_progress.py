"""Bars: in a notebook one cell is drawn again and again, in a terminal a line on stderr; both end full."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import tpgen
from tpgen.base.progress import announce, progress_bar, step_reporter
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.run import run_benchmarks, select_problems

PRODUCT = ("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)])


class Notebook:
    """What IPython has in a notebook: a shell with a kernel, and cells that can be drawn anew."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []

    def display(self, shown: Any, display_id: bool) -> Notebook:
        assert display_id, "a bar is drawn in the same place again"
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.drawn.append(shown)

    @property
    def texts(self) -> list[str]:
        return [repr(shown) for shown in self.drawn]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook()
    ipython, of_display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    of_display.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    return found


def test_a_cell_is_drawn_at_every_step(notebook: Notebook, capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2) as shown:
        shown.begin_activity("<first>")
        shown.report_share_of_step(0.05)  # too little to be drawn
        shown.report_share_of_step(0.5)
        shown.finish_step()
        shown.begin_activity("second")
        shown.finish_step()
    assert notebook.texts == [" 0/2", "<first> 0/2", "<first> 0/2", "<first> 1/2", "second 1/2", "second 2/2"]
    assert 'max="2" value="0.5"' in notebook.drawn[2]._repr_html_()
    assert "&lt;first&gt;" in notebook.drawn[2]._repr_html_()
    assert capfd.readouterr() == ("", "")


def test_verify_and_reports_and_benchmarks_draw_in_the_cell(notebook: Notebook) -> None:
    product = tpgen.TensorProduct(*PRODUCT, strategy="einsum")
    tpgen.verify(product, only=["definition", "linear"], progress=True)
    assert notebook.texts[1:] == ["definition 0/2", "definition 1/2", "linear 1/2", "linear 2/2"]
    tpgen.compile_report(torch.nn.ReLU(), [torch.randn(2, 3)], sections=["graphs"], progress=True)
    assert notebook.texts[-1] == "graphs 1/1"
    chosen = select_problems(["article"]), select_contenders(["loop/eager"]), ["forward"]
    run_benchmarks(*chosen, seconds=0, progress=True)
    assert notebook.texts[-1].endswith("1/1")


def test_what_takes_long_is_said_where_somebody_looks(notebook: Notebook, capfd: pytest.CaptureFixture[str]) -> None:
    announce("compiles kernels")
    assert capfd.readouterr() == ("", "tpgen compiles kernels\n")


def test_nothing_is_said_to_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    announce("compiles kernels")
    assert capfd.readouterr() == ("", "")


def test_ipython_in_a_terminal_gets_a_line_on_stderr(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    with step_reporter(True, 1) as begin:
        begin("only")
    assert "only" in capfd.readouterr().err
    assert notebook.drawn == []


@pytest.mark.parametrize("nobody", [False, None])
def test_nobody_is_told_where_nobody_asked(nobody: bool | None, capfd: pytest.CaptureFixture[str]) -> None:
    with step_reporter(nobody, 1) as begin:
        begin("only")
    assert capfd.readouterr() == ("", "")
