"""Every stage of a polynomial has text, and what is none is named."""

from __future__ import annotations

import pytest

import tpgen
from tests.polynomials import mixed, symmetric
from tpgen.base.errors import PlanError
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS
from tpgen.planner.problems import POLYNOMIALS
from tpgen.planner.read import read_plan
from tpgen.tools.inspection.stages.dump import STAGES, dump_files, dump_stage
from tpgen.tools.inspection.stages.request import KERNEL

EVERYWHERE = [name for name in STAGES if name not in ("inductor", "ptx", "sass")]  # those need tools


def test_every_stage_of_every_call_has_text() -> None:
    files = dump_files(mixed(), EVERYWHERE, ["all"], strategy="einsum")
    by_call = [name for name in EVERYWHERE if STAGES[name].shows == KERNEL]
    assert len(files) == len(EVERYWHERE) - len(by_call) + len(by_call) * len(POLYNOMIAL_CALLS)
    assert all(text.strip() for text in files.values())
    assert len(set(files.values())) == len(files)
    assert files == dump_files(mixed(), EVERYWHERE, ["all"], strategy="einsum")


def test_a_call_in_full() -> None:
    files = dump_files(symmetric(degree=1), ["sweep"], ["x out.1 -> w0_1"])
    assert files["sweep.x_out.1_to_w0_1.txt"].startswith("x out.1 -> w0_1: ")


def test_elements_are_an_input_of_the_program() -> None:
    codes = [dump_stage(symmetric(degree=1), "code", elements=n, strategy="einsum") for n in (1, 2)]
    assert ["index : torch.Tensor" in code for code in codes] == [False, True]


def test_a_call_that_names_no_operand_is_refused() -> None:
    made = tpgen.SymmetricContraction("4x0e", "4x0e", 2)
    with pytest.raises(PlanError, match=r"'x out.1 -> y':.*w0_2"):
        made.sweep("x out.1 -> y")


@pytest.mark.parametrize("stage", ["graph", "code"])
def test_a_graph_that_is_one_kernel_leaves_the_polynomials_json_out(stage: str) -> None:
    (text,) = dump_files(mixed(), [stage], strategy="kernel").values()
    assert text.startswith("# this strategy is one kernel: see the stage cpp")
    assert f"<{mixed().digest}>" in text
    assert "tpgen.polynomial/1" not in text


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_named_polynomials_are_plans(name: str) -> None:
    plan = POLYNOMIALS[name].plan
    assert read_plan(plan.to_json()) == plan


def test_a_module_shows_its_stages() -> None:
    made = tpgen.SymmetricContraction("4x0e+4x1o", "4x0e", 2, num_elements=2, strategy="einsum")
    assert made.plan == read_plan(made.plan.to_json())
    assert "w0_2" in str(made.form)
    assert made.sweep("backward").call == made.placement("backward").sweep.call
    assert "x: read row by row, components 0:4 transposed" in str(made.placement())
    assert "SymmetricContraction(" in repr(made)
    assert "4x0e+4x1o -> 4x0e, degrees 2, 2 elements, einsum (asked for)" in repr(made)
    report = tpgen.verify(made, only=["definition"])
    assert report.passed
