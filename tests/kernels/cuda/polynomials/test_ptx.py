"""The PTX that NVRTC writes for polynomials, run by the emulator, against the sweep in float64."""

from __future__ import annotations

from itertools import cycle, product

import pytest

from tests.kernels.cuda.emulator.kernels import Emulated
from tests.kernels.cuda.polynomials.test_calls import CALLS, TOLERANCES, Case
from tests.machine import needs_nvrtc
from tests.polynomials import PLANS
from tpgen.planner.problems import POLYNOMIALS

pytestmark = needs_nvrtc
QUICK = [
    Case("mixed", PLANS["mixed"](), "backward", "float32", 33, "elements"),
    Case("mixed", PLANS["mixed"](), "second", "bfloat16", 5, "rows", 80),
    Case("turned", POLYNOMIALS["turned"].plan, "forward", "float64", 3, "one"),
    Case("small-contraction", POLYNOMIALS["small-contraction"].plan, "backward", "float32", 33, "elements"),
]
NAMED = [
    Case(name, POLYNOMIALS[name].plan, call, dtype, channels, "elements", arch)
    for (name, call), arch, (dtype, channels) in zip(
        product(POLYNOMIALS, CALLS), cycle((80, 90)), cycle(product(TOLERANCES, (33, 5))), strict=False
    )
]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.name}-{case.call}-{case.dtype}")
def test_ptx_agrees_with_the_sweep(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", NAMED, ids=lambda case: f"{case.name}-{case.call}-{case.dtype}-{case.arch}")
def test_so_does_that_of_every_named_polynomial(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    given = case.given
    found = Emulated(case.source).run_polynomial(given, case.index, case.sizes)
    for slot, one, want in zip(case.sweep.call.opened, found, case.wanted(given), strict=True):
        error = (one - want).abs().max() / want.abs().max().clamp(min=1e-3)
        assert error < TOLERANCES[case.dtype], f"{slot}: {error}"
