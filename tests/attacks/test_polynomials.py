"""Random polynomials against the slow definition, to third order, by element and with weights of each row."""

from __future__ import annotations

import pytest
import torch
from e3nn.o3 import Irreps
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.attacks.counts import ATTACKS, CALLS, count
from tests.attacks.products import laid_out
from tests.attacks.test_products import TOLERANCE, assert_alike, derivatives
from tests.machine import KERNEL
from tests.polynomials import operands_of, slow
from tpgen.base.errors import PlanError
from tpgen.nn.polynomial import Polynomial
from tpgen.planner.contraction import make_contraction_plan
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan

IRREPS = st.sampled_from(["0e", "1o", "0e+1o", "0o+1e", "2e", "0e+1o+2e"]).map(Irreps)
ENDS = st.sampled_from(["0e", "1o", "0e+1o", "0o+1e", "1o+2e"]).map(Irreps)
OWN = st.sampled_from(["channel", "mul_ir", "ir_mul"])


@st.composite
def polynomials(draw: st.DrawFn) -> Plan:
    """One to three terms of up to three factors, of tensors of channels and of one copy; or MACE's contraction."""
    out = draw(ENDS)
    if draw(st.integers(0, 3)) == 0:
        return _made(make_contraction_plan, draw(IRREPS), out, [draw(st.integers(1, 3)) for _ in out])
    operands = [Operand("a", draw(IRREPS), draw(OWN)), Operand("b", draw(IRREPS), draw(OWN))]
    operands.append(Operand("y", draw(IRREPS), channels=False))
    terms = []
    for n in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from("aby"), min_size=1, max_size=3))
        weight = draw(st.sampled_from([None, f"w{n}"]))
        basis = draw(st.sampled_from(["chained", "independent"]))
        terms.append(PolynomialTerm(tuple(names), draw(st.integers(0, len(out) - 1)), weight, basis))
    used = [o for o in operands if any(o.name in term.inputs for term in terms)]
    return _made(make_polynomial_plan, [*used, Operand(OUT, out, draw(OWN))], terms)


def _made(make, *arguments) -> Plan:
    try:
        plan = make(*arguments)
    except PlanError:  # such as factors that do not couple to the output
        reject()
    return plan if any(o.channels for o in plan.inputs) else reject()


@pytest.mark.parametrize("strategy", ["einsum", "unrolled", KERNEL])
@settings(max_examples=ATTACKS // CALLS)
@given(plan=polynomials(), dtype=st.sampled_from(list(TOLERANCE)), by_element=st.booleans(), data=st.data())
def test_polynomials(strategy: str, plan: Plan, dtype: torch.dtype, by_element: bool, data: st.DataObject) -> None:
    elements = 3 if by_element and plan.weights else None
    number = len(plan.inputs)
    for channels in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)):
        made = Polynomial.from_plan(
            plan, channels, num_elements=elements, internal_weights=not plan.weights, strategy=strategy
        ).to(dtype)
        for _ in range(CALLS):
            order, rows = (data.draw(st.integers(*ends)) for ends in ((0, 3), (1, 7)))
            index = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), dtype=torch.long)
            copies = elements or data.draw(st.sampled_from([1, rows]))
            exact = operands_of(plan, rows, copies, channels, dtype, grad=False)
            taken = index if elements else None

            def found(*x: Tensor, made=made, taken=taken) -> Tensor:
                return made(*x[:number], index=taken, weights=x[number:] or None).flatten(1)

            def wanted(*x: Tensor, taken=taken) -> Tensor:
                return slow(plan, x, taken)

            given_ = [data.draw(laid_out(x)) for x in exact]
            assert_alike(
                derivatives(found, given_, order), derivatives(wanted, [x.double() for x in exact], order), dtype
            )
        count(f"polynomials, {strategy}", CALLS)
