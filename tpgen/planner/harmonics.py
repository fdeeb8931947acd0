r"""Real spherical harmonics as polynomials, in e3nn's convention.

.. math:: Y_{l,m}(x) = c_l \sum U_{m, i \ldots j}\, x_i \cdots x_j

with U the symmetric coupling of l factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
from e3nn.o3 import Irrep, Irreps

from tpgen.base.errors import PlanError, unknown
from tpgen.planner.generalized import MAX_DEGREE, generalized_couplings
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan, sort_entries

# The squared norm of all components of degree l at a unit vector.
NORMALIZATIONS = {
    "integral": lambda degree: (2 * degree + 1) / (4 * pi),
    "component": lambda degree: 2 * degree + 1,
    "norm": lambda degree: 1,
}
_POLE = 1  # e3nn's components are x, y, z, and its pole is y


def make_harmonics_plan(vector: str, degrees: Sequence[int], normalization: str) -> Plan:
    """Plan harmonics of vectors ``x`` (``1o`` or ``1e``); degree 0 reads the operand ``one``.

    Raises `PlanError` for an unknown normalization, or unless the highest degree is 1 to 4.

    >>> print(make_harmonics_plan("1o", [0, 1, 2], "component"))
    polynomial 5f9db673148f7ef8: 3 terms
    x: 1x1o (row, channel)
    one: 1x0e (row, one copy for all channels, channel)
    out: 1x0e+1x1o+1x2e (row, channel)
    <BLANKLINE>
    term  in1  in2  out  constant  paths  weights  coupling  flops  bytes
       0  one       out  table         1        -       1/9      2     40
       1  x         out  table         1        -      3/27      6     48
       2  x    x    out  table         1        -     11/81     22     48
    <BLANKLINE>
    3 paths, coupling 15/117 non-zero, per row and channel 30 flops, 52 bytes (each operand once)
    """
    if normalization not in NORMALIZATIONS:
        raise PlanError(f"harmonics: {unknown('normalization', normalization, NORMALIZATIONS)}")
    if not 0 < max(degrees) <= MAX_DEGREE:
        raise PlanError(f"harmonics: the highest degree must be 1 to {MAX_DEGREE}, got {max(degrees)}")
    parity = Irrep(vector).p
    out = Operand(OUT, Irreps([(1, (degree, parity**degree)) for degree in degrees]), "channel")
    x, one = Operand("x", Irreps(vector), "channel"), Operand("one", Irreps("0e"), "channel", channels=False)
    terms = [
        _make_harmonics_term(mul_ir.ir, where.start, vector, NORMALIZATIONS[normalization](mul_ir.ir.l) ** 0.5)
        for mul_ir, where in zip(out.irreps, out.irreps.slices(), strict=True)
    ]
    return make_polynomial_plan([x, one, out], terms)


def _make_harmonics_term(ir: Irrep, output_start: int, vector: str, factor: float) -> PolynomialTerm:
    # at the pole only the middle component is not zero, and it is the norm
    if ir.l == 0:
        return PolynomialTerm(("one",), table=(sort_entries({(output_start, 0): factor}),))
    coupling = generalized_couplings([vector] * ir.l, ir)[..., 0]  # one path alone goes up with every factor
    pole = (ir.l, *[_POLE] * ir.l)
    scale = factor / coupling[pole]
    entries = {(n[0] + output_start, *n[1:]): scale * coupling[n] for n in map(tuple, np.argwhere(coupling))}
    return PolynomialTerm(("x",) * ir.l, table=(sort_entries(entries),))
