"""Golden files of generated C++ of polynomials, for a machine that is fixed here; accepted with ``--accept-golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import check_golden, without_headers, without_prelude
from tests.polynomials import small_mixed, small_symmetric
from tpgen.kernels.cpp.polynomial import generate_polynomial
from tpgen.kernels.cpp.prelude import prelude_text
from tpgen.kernels.placement.polynomial import PolynomialPlacement
from tpgen.kernels.placement.values import Target
from tpgen.kernels.runtime.polynomials import describe_polynomial, forward_call
from tpgen.planner.plan import Plan

FOLDER = Path(__file__).parent / "golden"
SINGLE, HALF = Target("float32", 16, 32), Target("bfloat16", 8, 16)
GOLDEN = {
    "symmetric-forward": (small_symmetric(), 0, SINGLE),
    "symmetric-second": (small_symmetric(), 2, SINGLE),
    "mixed-forward": (small_mixed(), 0, HALF),
    "mixed-backward": (small_mixed(), 1, HALF),
}


def text_of(plan: Plan, order: int, target: Target) -> str:
    call = forward_call(plan)
    for _ in range(order):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    placed = PolynomialPlacement(plan, describe_polynomial(plan).sweep(call), target)
    before = prelude_text(target, placed.transposed_segments, target.lanes)
    return without_headers(without_prelude(generate_polynomial(placed).text, before), "cpp")


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(FOLDER / f"{name}.cpp", text_of(*GOLDEN[name]), request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*.cpp")} == set(GOLDEN)
