"""Named polynomials, for tests, examples and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from e3nn.o3 import Irreps

from tpgen.planner.contraction import make_contraction_plan
from tpgen.planner.harmonics import make_harmonics_plan
from tpgen.planner.polynomial_plan import OUT, Operand, PolynomialPlan, PolynomialTerm, make_polynomial_plan


@dataclass(frozen=True)
class PolynomialProblem:
    """A polynomial with the batch it is usually run on."""

    name: str
    about: str
    rows: int
    channels: int
    elements: int  # 1: all rows share their weights
    make: Callable[[], PolynomialPlan]

    @cached_property
    def plan(self) -> PolynomialPlan:
        return self.make()


def _contraction(irreps_in: str, irreps_out: str, correlation: int) -> Callable[[], PolynomialPlan]:
    out = Irreps(irreps_out)
    return lambda: make_contraction_plan(Irreps(irreps_in), out, [correlation] * len(out))


def _turned() -> PolynomialPlan:
    x, y = Irreps("0e+1o"), Irreps("0e+1o+2e")
    operands = [Operand("x", x), Operand("y", y, channels=False), Operand(OUT, x)]
    terms = [PolynomialTerm(names, k, f"w{len(names)}_{k}") for names in (("x", "x", "y"), ("x",)) for k in range(2)]
    return make_polynomial_plan(operands, terms)


_ALL = (
    PolynomialProblem(
        "mace-contraction", "MACE's symmetric contraction", 512, 128, 10, _contraction("0e+1o+2e+3o", "0e+1o", 3)
    ),
    PolynomialProblem("small-contraction", "the same, small", 512, 32, 2, _contraction("0e+1o", "0e+1o", 3)),
    PolynomialProblem("turned", "features squared and turned by the harmonics of a direction", 2000, 32, 1, _turned),
    PolynomialProblem(
        "harmonics",
        "spherical harmonics of degrees 0 to 3",
        2000,
        1,
        1,
        lambda: make_harmonics_plan("1o", [0, 1, 2, 3], "component"),
    ),
)

POLYNOMIALS: dict[str, PolynomialProblem] = {problem.name: problem for problem in _ALL}
