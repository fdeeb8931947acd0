"""Golden files of generated C++ of polynomials, for a machine that is fixed here; accepted with ``--accept-golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.polynomials import mixed, symmetric
from tpgen.kernels.cpp.polynomial import generate_polynomial
from tpgen.kernels.placement.polynomial import PolynomialPlacement
from tpgen.kernels.placement.values import Target
from tpgen.kernels.runtime.polynomials import describe_polynomial, forward_call
from tpgen.planner.plan import Plan

FOLDER = Path(__file__).parent / "golden"
SINGLE, HALF = Target("float32", 16, 32), Target("bfloat16", 8, 16)
GOLDEN = {
    "symmetric-forward": (symmetric(degree=2), 0, SINGLE),
    "symmetric-backward": (symmetric(degree=2), 1, SINGLE),
    "symmetric-second": (symmetric(degree=2), 2, SINGLE),
    "mixed-forward": (mixed(), 0, HALF),
    "mixed-backward": (mixed(), 1, HALF),
}


def text_of(plan: Plan, order: int, target: Target) -> str:
    call = forward_call(plan)
    for _ in range(order):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    lines = generate_polynomial(
        PolynomialPlacement(plan, describe_polynomial(plan).sweep(call), target)
    ).text.splitlines(keepends=True)
    # without the constant text of all kernels, which golden files of products hold
    head = next(n for n, line in enumerate(lines) if not line.startswith("//"))
    body = next(n for n, line in enumerate(lines) if line.startswith(("static void prologue(", "static void row(")))
    return "".join(lines[:head] + lines[body:])


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    text, file = text_of(*GOLDEN[name]), FOLDER / f"{name}.cpp"
    if request.config.getoption("--accept-golden"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, f"{file.name} differs; the head of this file says how to accept"


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*.cpp")} == set(GOLDEN)
