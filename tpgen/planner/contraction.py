"""Plan MACE's symmetric contraction."""

from __future__ import annotations

from collections.abc import Sequence

from e3nn.o3 import Irrep, Irreps

from tpgen.base.errors import PlanError
from tpgen.planner.generalized import MAX_DEGREE, Entries
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, generated_couplings, make_polynomial_plan


def make_contraction_plan(irreps_in: Irreps, irreps_out: Irreps, degrees: Sequence[int]) -> Plan:
    """Plan weighted products of 1 to ``degrees[n]`` features ``x`` into output irrep n.

    Raises `PlanError` if none exists.

    >>> print(make_contraction_plan(Irreps("4x0e+4x1o"), Irreps("4x0e"), [2]))
    polynomial 4010b0c450f7ebc5: 2 terms, 3 weights of a channel
    x: 1x0e+1x1o (row, channel)
    w0_2: 2x0e (weights, ir_mul)
    w0_1: 1x0e (weights, ir_mul)
    out: 1x0e (row, mul_ir)
    <BLANKLINE>
    term  in1  in2  out   constant           paths   weights  coupling  flops  bytes
       0  x    x    1x0e  chained couplings      2  w0_2 0:2      4/32     12     20
       1  x         1x0e  chained couplings      1  w0_1 0:1       1/4      4     20
    <BLANKLINE>
    3 paths, coupling 5/36 non-zero, per row and channel 16 flops, 20 bytes (each operand once)
    """
    terms = [
        PolynomialTerm(("x",) * nu, n, f"w{n}_{nu}", _basis_name_for_degree(nu))
        for n, ((_, ir), degree) in enumerate(zip(irreps_out, degrees, strict=True))
        for nu in range(degree, 0, -1)
        if any(_list_couplings_of_degree(irreps_in, ir, nu))
    ]
    if not terms:
        raise PlanError(f"no product of {irreps_in} reaches {irreps_out}: check the parities, or raise the correlation")
    operands = [Operand("x", drop_multiplicities(irreps_in), "channel"), Operand(OUT, drop_multiplicities(irreps_out))]
    return make_polynomial_plan(operands, terms)


def list_contraction_paths(irreps_in: Irreps, output: Irrep, degree: int) -> list[list[Entries]]:
    """Paths of each degree from 1; a path that symmetry makes zero is empty."""
    return [_list_couplings_of_degree(irreps_in, output, nu) for nu in range(1, degree + 1)]


def drop_multiplicities(irreps: Irreps) -> Irreps:
    """Set every multiplicity to 1.

    >>> drop_multiplicities(Irreps("8x0e+8x1o"))
    1x0e+1x1o
    """
    return Irreps([(1, ir) for _, ir in irreps])


def _list_couplings_of_degree(irreps_in: Irreps, output: Irrep, degree: int) -> list[Entries]:
    return generated_couplings(
        (str(drop_multiplicities(irreps_in)),) * degree, str(output), ("x",) * degree, _basis_name_for_degree(degree)
    )


def _basis_name_for_degree(degree: int) -> str:
    return "natural" if degree == MAX_DEGREE else "chained"
