"""Tasks of a polynomial's kernels: as many as fill whole waves of blocks."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import tpgen
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.launch import PolynomialLaunches, plan_launches
from tpgen.kernels.cuda.placement import place_polynomial
from tpgen.kernels.cuda.prelude import ENTRY
from tpgen.kernels.rows import ELEMENTS, RowIndex
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS, describe_polynomial, parse_polynomial_call
from tpgen.planner.problems import POLYNOMIALS

MACE = POLYNOMIALS["mace-contraction"]


def sizes_of(rows: int, elements: int, channels: int) -> CallSizes:
    return CallSizes(torch.device("cuda"), rows, channels, (RowIndex(ELEMENTS, None, elements),))


def launches(call: str, rows: int, elements: int = MACE.elements) -> PolynomialLaunches:
    sweep = describe_polynomial(MACE.plan).sweep(parse_polynomial_call(MACE.plan, call))
    placement = place_polynomial(MACE.plan, sweep, "float32", chip_of(90))
    return plan_launches(placement, sizes_of(rows, elements, MACE.channels))


@pytest.mark.parametrize("call, rows", [*product(POLYNOMIAL_CALLS, (2_000, 10_000, 20_000, 40_000))])
def test_the_last_wave_is_full(call: str, rows: int) -> None:
    found = launches(call, rows)
    waves = found.blocks_by_kernel[ENTRY] / found.concurrent_blocks
    assert 0.93 * -(-found.blocks_by_kernel[ENTRY] // found.concurrent_blocks) < waves


@pytest.mark.parametrize("rows, elements", [(0, 10), (1, 10), (512, 10), (512, 200), (7, 1), (10**6, 89)])
def test_tasks_hold_all_rows_whatever_their_elements(rows: int, elements: int) -> None:
    """Each element may leave one that is not full."""
    found = launches("backward", rows, elements)
    assert found.rows_per_task % (found.placement.warps * 32 // found.width) == 0 < found.rows_per_task
    assert found.tasks >= (rows + elements * (found.rows_per_task - 1)) // found.rows_per_task


def test_a_tensor_may_have_the_name_of_a_room() -> None:
    """Each operand that is summed over channels has a room beside that of the tasks, whatever it is called."""
    square = tpgen.Polynomial({"v": "4x1o", "sums": "1o"}, "4x0e+4x2e", [("v", "sums")])
    sweep = describe_polynomial(square.plan).sweep(parse_polynomial_call(square.plan, "backward"))
    placement = place_polynomial(square.plan, sweep, "float32", chip_of(90))
    assert list(placement.channel_sums) == ["sums"]
    assert len(plan_launches(placement, sizes_of(50, 1, 4)).scratch_shapes()) == 2
