"""Polynomials on a GPU: the kernels' own text, run in random orders, twice, against the sweep in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, product

import pytest
import torch
from torch import Tensor

from tests.interpreter import interpreted_polynomial
from tests.kernels.cuda.standin import StandIn
from tests.machine import needs_compiler
from tests.polynomials import PLANS, operands_of
from tpgen.kernels.arguments import CallSizes, KernelCall, KernelSpec
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_polynomial
from tpgen.kernels.rows import ELEMENTS as OF_ELEMENTS
from tpgen.kernels.rows import RowIndex
from tpgen.kernels.runtime.polynomials import describe_polynomial, parse_polynomial_call
from tpgen.kernels.sweep.monomials import PolynomialSweep
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.problems import POLYNOMIALS

pytestmark = needs_compiler
ROWS, ELEMENTS = 11, 3
TOLERANCES = {"float64": 1e-12, "float32": 3e-5, "bfloat16": 1.2e-2}
ROW_INDEX = torch.tensor([2, 0, 2, 2, 0, 2, 2, 2, 2, 2, 0])  # no row of element 1, several tasks of element 2
CALLS = ("forward", "backward", "second")


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    call: str
    dtype: str
    channels: int  # fewer than a warp's lanes: several rows a warp
    weights: str  # one for all rows, of elements, or of each row
    arch: int = 90

    @cached_property
    def sweep(self) -> PolynomialSweep:
        return describe_polynomial(self.plan).sweep(parse_polynomial_call(self.plan, self.call))

    @property
    def source(self) -> CudaSource:
        return generate_cuda(place_polynomial(self.plan, self.sweep, self.dtype, chip_of(self.arch)))

    @property
    def index(self) -> Tensor | None:
        return ROW_INDEX if self.weights == "elements" and self.plan.weights else None

    @property
    def sizes(self) -> CallSizes:
        elements = {"one": 1, "elements": ELEMENTS, "rows": ROWS}[self.weights] if self.plan.weights else 1
        index = RowIndex(OF_ELEMENTS, self.index, elements)
        return CallSizes(torch.device("cpu"), ROWS, self.channels, (index,))

    @property
    def given(self) -> list[Tensor]:
        """Random numbers that the dtype holds exactly."""
        kind = getattr(torch, self.dtype)
        made = [self._random(self.plan.operand(slot.operand)) for slot in self.sweep.call.given]
        return [x.to(kind).double() for x in made]

    def _random(self, o: Operand) -> Tensor:
        rows, elements, channels = ROWS, self.sizes.elements, self.channels
        if o.name == OUT:
            return torch.randn(rows, o.dim * channels, dtype=torch.float64)
        made = operands_of(self.plan, rows, elements, channels, grad=False)
        return made[[other.name for other in self.plan.operands].index(o.name)]

    def wanted(self, given: list[Tensor]) -> list[Tensor]:
        """By the interpreter."""
        rows, elements, channels = ROWS, self.sizes.elements, self.channels
        slots = [self.plan.operand(slot.operand) for slot in self.sweep.call.opened]
        shapes = [(elements if o.weights else rows, o.dim * (channels if o.channels else 1)) for o in slots]
        found = [torch.empty(shape, dtype=torch.float64) for shape in shapes]
        spec = KernelSpec(describe_polynomial(self.plan), self.sweep.call, torch.float64)
        assert not interpreted_polynomial(spec)(KernelCall(given, found, *self.sizes[1:]))
        return found


def cases() -> list[Case]:
    """All plans and calls; dtypes, channels and kinds of weights take turns with them."""
    turns = cycle(
        product(("elements", "one", "rows"), (("float32", 33), ("float64", 5), ("bfloat16", 64), ("float32", 1)))
    )
    made = []
    for name, plan in PLANS.items():
        for call in CALLS:
            weights, (dtype, channels) = next(turns)
            made.append(Case(name, plan(), call, dtype, channels, weights))
    for problem, call in product(("small-contraction", "turned", "harmonics"), CALLS):
        for dtype, channels in (("float32", POLYNOMIALS[problem].channels), ("float64", 3), ("bfloat16", 40)):
            weights = next(turns)[0]
            made.append(Case(problem, POLYNOMIALS[problem].plan, call, dtype, channels, weights))
    contraction = POLYNOMIALS["mace-contraction"].plan
    made += [
        Case("mace-contraction", contraction, "forward", "float64", 40, "elements", 80),
        Case("mace-contraction", contraction, "second", "float32", 33, "elements", 75),
    ]
    partial = PLANS["mixed"]()
    return [*made, Case("some gradients", partial, "a y u v b out.1 -> y v", "float64", 40, "elements")]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], StandIn]:
    made = cases()
    return made, StandIn([case.source for case in made], [0] * len(made), tmp_path_factory.mktemp("polynomials"))


@pytest.mark.parametrize("at_once", [1, 100], ids=["few blocks", "many blocks"])
def test_kernels_agree_with_the_sweep(at_once: int, every: tuple[list[Case], StandIn]) -> None:
    check(*every, at_once)


def check(cases: list[Case], stand_in: StandIn, at_once: int) -> None:
    for n, case in enumerate(cases):
        given = case.given
        found = stand_in.run_polynomial(n, given, case.index, case.sizes, at_once, seed=0)
        again = stand_in.run_polynomial(n, given, case.index, case.sizes, at_once, seed=2)
        for slot, one, other, want in zip(case.sweep.call.opened, found, again, case.wanted(given), strict=True):
            error = (one - want).abs().max() / want.abs().max().clamp(min=1e-3)
            assert error < TOLERANCES[case.dtype], f"{slot} of {case.name} {case.call} {case.dtype}: {error}"
            assert torch.equal(one, other), f"{slot} of {case.name} depends on the order of threads"
