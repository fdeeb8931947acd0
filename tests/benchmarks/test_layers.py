"""Layers and shapes: each row can be measured, and what was found is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import layer_goals, layers
from benchmarks.goals import Figure, Findings, Outcome, Unit, load_outcomes, measure_goals, save_outcome
from benchmarks.problems import OURS, problem_named
from tests.machine import needs_compiler
from tpgen.base.errors import PlanError
from tpgen.tools.bench.records import read_environment

GOALS = layer_goals.layer_goals(Path("nowhere"))


def unit(goal: str, subject: str) -> Unit:
    return replace(Unit(GOALS[goal], subject, 0.0, inductor=False))


def test_problems_are_ours_or_the_named_ones() -> None:
    assert problem_named("narrow-48-20-6") is OURS["narrow-48-20-6"]
    assert str(OURS["narrow-48-20-6"].plan.irreps_in1) == "48x0e+20x1o+6x2e"
    assert problem_named("article").name == "article"
    with pytest.raises(PlanError, match="unknown problem 'degrees'"):
        problem_named("degrees")
    assert all(subject in OURS for name in ("narrow", "degrees", "degrees-build") for subject in GOALS[name].subjects)


@needs_compiler
def test_a_linear_layer_beside_e3nn_and_bare_products() -> None:
    before = torch.get_num_threads()
    figures = layer_goals.linear_layer(unit("linear", "mace element skip, 4")).figures
    assert [figure.part for figure in figures] == list(GOALS["linear"].targets)
    assert all(figure.value and "bare products" in figure.note for figure in figures)
    assert torch.get_num_threads() == before


def test_contractions_need_an_environment_and_read_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_goals([GOALS["contraction"]], tmp_path, 0.0)
    assert "make clients" in load_outcomes(tmp_path)[0].findings.figures[0].note

    def run(command: list[str], **_options: object) -> object:
        seconds = {"tpgen": 0.001, "mace-torch": 0.05}
        found = [
            {"elements": 2, "rows": 64, "task": task, "seconds": seconds} for task in ("forward", "force training")
        ]
        Path(command[command.index("--json") + 1]).write_text(json.dumps(found))
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(layer_goals.subprocess, "run", run)
    python = tmp_path / "mace" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    found = layer_goals.contraction(unit("contraction", "2 elements, 64 nodes"), tmp_path).figures
    assert [(f.part, round(f.value or 0), f.note) for f in found] == [
        ("forward", 50, "1.00 ms, mace-torch 50.0 ms"),
        ("force", 50, "1.00 ms, mace-torch 50.0 ms"),
    ]


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    subject = GOALS["linear"].subjects[0]
    figures = Findings((Figure("forward", subject, 1.7, "fine"), Figure("forward / mm", subject, 1.3, "not so fine")))
    save_outcome(Outcome("linear", subject, read_environment(), 1.0, figures), tmp_path)
    arguments = ["--folder", str(tmp_path), "--page", str(tmp_path / "page.md"), "--write-only"]
    assert CliRunner().invoke(layers.main, arguments, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "page.md").read_text()
    rows = [row for table in json.loads((tmp_path / "records" / "page.json").read_text()) for row in table["rows"]]
    assert [subject, "forward", "≥ 1.5×", "1.70×", "yes", "fine"] in [[*row.values()] for row in rows]
    assert "| ≤ 1.2× | 1.30× |" in page
    assert "not measured" in page
    empty = CliRunner().invoke(layers.main, ["--folder", str(tmp_path / "none"), "--write-only"])
    assert (empty.exit_code, "nothing was measured" in empty.output) == (1, True)
