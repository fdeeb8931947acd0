"""Rows of the kernels' table: measured, kept, tried again, shown."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import kernels, measures
from benchmarks.goals import (
    Figure,
    Findings,
    Goal,
    Outcome,
    Point,
    Target,
    Unit,
    load_outcomes,
    measure_goals,
    save_outcome,
    select_goals,
)  # fmt: skip
from benchmarks.graphs import Graph, check_convolutions, conv_operands, conv_product, gathered
from benchmarks.kernel_goals import GOALS
from benchmarks.machine import copy_call, fma_rate
from benchmarks.page import Places, goal_cells, write_page
from benchmarks.startup import SHOW_MEMORY, in_fresh_process
from tests.machine import needs_compiler
from tpgen.base import clock
from tpgen.base.errors import BackendError, TpgenError
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS, Problem
from tpgen.planner.product import make_plan
from tpgen.tools.bench.contenders import build_instruction_loop
from tpgen.tools.bench.records import read_environment
from tpgen.tools.bench.run import run_benchmarks
from tpgen.tools.bench.tasks import TASKS

CPU = torch.device("cpu")
SMALL = Problem("small", "channelwise", 40, lambda: channelwise("8x0e+8x1o", "0e+1o", "0e+1o"), "test")
TIMES_FASTER = Goal("faster", "a test", {"forward": Target("≥", 0.0)}, ("small",), measures.speed)


@pytest.fixture
def small(monkeypatch) -> Problem:
    monkeypatch.setitem(PROBLEMS, "small", SMALL)
    return SMALL


def unit(goal: Goal, **others) -> Unit:
    return replace(Unit(goal, goal.subjects[0], 0.0, inductor=False), **others)


def outcome(goal: str, subject: str, *figures: Figure, points: tuple[Point, ...] = ()) -> Outcome:
    return Outcome(goal, subject, read_environment(), 1.0, Findings(figures, points, 1e11))


# --- goals and their files -------------------------------------------------------------------------------------------


def test_targets_lie_on_one_side():
    least, most = Target("≥", 10), Target("≤", 0.05, "s")
    assert (least.met(10), least.met(9.9), most.met(0.05), most.met(0.06)) == (True, False, True, False)
    assert (least.worst([3, 4]), most.worst([3, 4])) == (3, 4)
    assert (str(least), str(most)) == ("≥ 10×", "≤ 0.05 s")


def test_every_row_names_known_problems():
    assert all(subject in PROBLEMS for goal in GOALS.values() for subject in goal.subjects if goal.name != "warm")
    with pytest.raises(TpgenError, match=r"'forwards':.*'forward'"):
        select_goals(GOALS, ["forwards"])
    assert [goal.name for goal in select_goals(GOALS, ["cold", "force"])] == ["force", "cold"]


def test_rows_are_kept_and_failures_tried_again(tmp_path: Path):
    calls: list[str] = []

    def measure(unit: Unit) -> Findings:
        calls.append(unit.subject)
        if unit.subject == "b" and calls.count("b") == 1:
            raise RuntimeError("out of luck\nand more")
        return Findings((Figure("forward", unit.subject, 2.0, "fine"),), (Point("b", "forward", "x", 1, 1, 1, 1),), 3.0)

    goal = Goal("row", "a test", {"forward": Target("≥", 1)}, ("a", "b"), measure)
    measure_goals([goal], tmp_path, 0.0)
    first = {o.subject: o.findings.figures[0] for o in load_outcomes(tmp_path)}
    assert first["b"] == Figure("forward", "b", None, "RuntimeError: out of luck")
    measure_goals([goal], tmp_path, 0.0)
    measure_goals([goal], tmp_path, 0.0)
    assert calls == ["a", "b", "b"]
    kept = outcome("row", "c", points=(Point("b", "forward", "mul_ir", 1.0, 2.0, 3, 4),))
    save_outcome(kept, tmp_path)
    assert kept in load_outcomes(tmp_path)


@pytest.mark.parametrize("text", ["[", "{}", '{"schema": 99}'])
def test_other_files_are_refused(tmp_path: Path, text: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TpgenError, match=r"is no measured row|has schema 99"):
        load_outcomes(tmp_path)


# --- measuring -------------------------------------------------------------------------------------------------------


def test_speed_compares_both_layouts_with_e3nn(small: Problem, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clock, "ROUGH", math.inf)  # five short samples, on any machine, a busy one too
    monkeypatch.setattr(clock, "_MOST_PREEMPTIONS", math.inf)
    figures = measures.speed(unit(TIMES_FASTER)).figures
    assert [figure.what for figure in figures] == ["small, mul_ir", "small, ir_mul"]
    assert all(figure.value and "e3nn/" in figure.note for figure in figures)
    (alone,) = measures.speed(unit(TIMES_FASTER), against=("loop/eager",)).figures[:1]
    assert (alone.value, alone.note) == (None, "no e3nn to compare with")


def test_run_tells_a_given_progress(small: Problem):
    said: list[str] = []

    class Ear(type(unit(TIMES_FASTER).show)):  # type: ignore[misc]
        def begin_activity(self, what: str) -> None:
            said.append(what)

    run_benchmarks([small], [], ["forward"], seconds=0, progress=Ear())
    assert said[0] == "small, forward: compute the right results"


@needs_compiler
def test_kernels_alone_are_checked_and_placed(small: Problem, monkeypatch):
    monkeypatch.setattr(measures, "fma_rate", lambda: 1e11)
    goal = Goal("moves", "a test", {"forward": Target("≤", 1)}, ("small",), measures.moves)
    found = measures.moves(unit(goal))
    assert [figure.what for figure in found.figures] == ["small, mul_ir", "small, ir_mul"]
    assert [(p.direction, p.layout) for p in found.points] == [
        (direction, layout) for layout in measures.LAYOUTS for direction in ("forward", "backward")
    ]
    plan = small.plan
    dims = plan.irreps_in1.dim + plan.irreps_in2.dim + plan.weight_numel
    assert found.points[0].bytes == 4 * small.rows * (dims + plan.irreps_out.dim)
    assert found.points[1].bytes == 4 * small.rows * (2 * dims + plan.irreps_out.dim)


@needs_compiler
def test_a_wrong_kernel_is_not_timed(small: Problem):
    def wrong(plan, layout, operands):
        right = measures.kernel_calls(plan, layout, operands)
        return {"forward": right["forward"], "backward": lambda: [1.01 * x for x in right["backward"]()]}

    with pytest.raises(TpgenError, match="of small, mul_ir, backward is off by"):
        measures.checked_calls(small, "mul_ir", wrong)


@needs_compiler
def test_threads_are_put_back(small: Problem):
    before = torch.get_num_threads()
    goal = Goal("threads", "a test", {"forward": Target("≥", 1), "backward": Target("≥", 1)}, ("small",), print)  # type: ignore[arg-type]
    figures = measures.threads(unit(goal)).figures
    assert [figure.part for figure in figures] == ["forward", "backward"]
    assert torch.get_num_threads() == before


def test_convolutions_pass_the_gate_or_not():
    plan = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
    loop = build_instruction_loop(plan, torch.float32, CPU, "eager")
    right = {"tpgen": lambda graph: conv_product(plan, graph), "loop": lambda graph: gathered(loop, graph)}
    check_convolutions(plan, TASKS["backward"], right)
    wrong = {"loop": lambda graph: lambda x1, x2, w: 1.01 * gathered(loop, graph)(x1, x2, w)}
    with pytest.raises(TpgenError, match="out of loop is off by"):
        check_convolutions(plan, TASKS["forward"], wrong)
    operands = conv_operands(plan, Graph(5, 7), torch.float32)
    assert [len(x) for x in (operands.x1, operands.x2, operands.w, operands.out_cotangent)] == [5, 7, 7, 5]


@needs_compiler
def test_convolution_row(small: Problem, monkeypatch):
    monkeypatch.setattr(measures, "GRAPH", Graph(20, 60))
    found = {"forward": [1 << 20, 2 << 20], "backward": [1 << 20, 2 << 20]}
    monkeypatch.setattr(measures, "in_fresh_process", lambda *arguments, environment: found)
    figures = measures.convolution(unit(GOALS["conv"], subject="small")).figures
    figures += measures.convolution_memory(unit(GOALS["conv-memory"], subject="small")).figures
    assert [figure.part for figure in figures] == ["forward", "backward"] * 2
    assert all(figure.value for figure in figures)
    assert "1.05 MB, 2.1 MB with twice the edges; e3nn/eager" in figures[2].note


def test_matrix_product_has_the_same_operations(monkeypatch):
    plan = make_plan("8x0e+8x1o", "2x0e", "8x0e+8x1o", [(0, 0, 0, "uvw", True), (1, 0, 1, "uvw", True)])
    monkeypatch.setitem(PROBLEMS, "small", Problem("small", "connected", 10, lambda: plan, "test"))
    figures = measures.matrix_product(unit(GOALS["matrix"], subject="small")).figures
    assert all("40×16 by 16×8" in figure.note for figure in figures)


@needs_compiler
def test_ceilings():
    assert fma_rate(rounds=1000, repeats=1) > 0
    assert copy_call(80)().shape == (10,)  # type: ignore[attr-defined]


@needs_compiler
def test_fresh_processes(tmp_path: Path):
    here = {"TPGEN_CACHE_DIR": str(tmp_path)}
    found = in_fresh_process("memory", "nequip-aspirin", "100", environment={**SHOW_MEMORY, **here})
    assert {task: len(extra) for task, extra in found.items()} == {"forward": 1, "backward": 1}


def test_a_failing_process_is_quoted(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nPlanError: unknown problem 'nobody'\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(BackendError, match=r"PlanError:.*'nobody'"):
        in_fresh_process("start", "nobody", environment={})


def test_starts_are_told_apart(monkeypatch):
    answers = iter([{"article": 2.0, "tetris-1": 3.0}, {"article": 0.02, "tetris-1": 0.03}])
    monkeypatch.setattr(measures, "in_fresh_process", lambda *arguments, environment: next(answers))
    first, second = measures.warm_start(unit(GOALS["warm"]), ("article", "tetris-1")).figures
    assert (first.value, first.note) == (0.02, "2.00 s with an empty cache; the first of its process")
    assert (second.value, second.note) == (0.03, "3.00 s with an empty cache")


# --- the page --------------------------------------------------------------------------------------------------------


def test_page_says_what_is_met(tmp_path: Path):
    places = Places(tmp_path / "records", tmp_path / "docs" / "b.md")
    places.kernels.mkdir(parents=True)
    points = tuple(
        Point("mace-large", direction, layout, 1e-3, 9e-4, 10**7, 10**8)
        for direction in ("forward", "backward")
        for layout in ("mul_ir", "ir_mul")
    )
    good, bad = Figure("forward", "mace-large, mul_ir", 12.0, "fast"), Figure("forward", "mace-large, ir_mul", 8.0)
    save_outcome(outcome("forward", "mace-large", good, bad), places.kernels)
    save_outcome(outcome("cold", "mace-large", Figure("build", "mace-large", 2.0)), places.kernels)
    save_outcome(outcome("bandwidth", "mace-large", points=points), places.kernels)
    assert write_page(places) == 3
    page = places.page.read_text()
    row = "| forward | channelwise, forward, a fresh output each call | forward | ≥ 10× | 8.00× | mace-large, ir_mul |"
    assert f"{row} no (1 of 2), 1 of 5 measured |" in page
    assert "| build | ≤ 4 s | 2.00 s | mace-large | yes |" in page
    found = {table["title"]: table["rows"] for table in json.loads(places.details.read_text())}
    row = {"problem": "mace-large, mul_ir", "part": "forward", "target": "≥ 10×", "measured": "12.0×"}
    assert row | {"met": "yes", "how": "fast"} in found["forward: channelwise, forward, a fresh output each call"]
    assert "images/roofline.png" in page
    assert (tmp_path / "docs" / "images" / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_script_measures_and_writes(tmp_path: Path, small: Problem, monkeypatch):
    monkeypatch.setattr(kernels, "GOALS", {"faster": TIMES_FASTER})
    places = ["--folder", str(tmp_path / "records"), "--page", str(tmp_path / "docs" / "b.md")]
    arguments = [*places, "--no-inductor", "--seconds", "0", "--json", str(tmp_path / "rows.json")]
    done = CliRunner().invoke(kernels.main, [*arguments, "--only", "faster"], catch_exceptions=False)
    assert done.exit_code == 0
    assert [row["goal"] for row in json.loads((tmp_path / "rows.json").read_text())] == ["faster"]
    unknown = CliRunner().invoke(kernels.main, [*places, "--only", "slower"])
    assert "unknown row 'slower'; known rows: faster" in unknown.output
    empty = CliRunner().invoke(kernels.main, [*places, "--fresh", "--write-only"])
    assert empty.exit_code == 1
    assert "no records in" in empty.output


def test_unmeasured_rows_are_shown():
    cells = goal_cells(())
    assert {row[-1] for row in cells.rows} == {"not measured"}
    assert len(cells.rows) == sum(len(goal.targets) for goal in GOALS.values())
