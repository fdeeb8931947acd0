"""Polynomials of one channel, whose rows stand where channels would, against their forms."""

from __future__ import annotations

import pytest
import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.form.polynomial import make_scalar_form
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.networks.conversion.harmonics import run_harmonics
from tpgen.planner.plan import OUT, Operand
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan

pytestmark = needs_compiler

PLAN = make_polynomial_plan(
    [
        Operand("a", Irreps("1o"), "channel"),
        Operand("b", Irreps("0e+1o"), "channel"),
        Operand("y", Irreps("0e"), "channel", channels=False),
        Operand(OUT, Irreps("0e+1o+2e"), "channel"),
    ],
    [
        PolynomialTerm(("a", "a"), 2),
        PolynomialTerm(("a", "b", "y"), 1),
        PolynomialTerm(("b", "b"), 0),
        PolynomialTerm(("y", "y"), 0),
    ],
)


def by_kernel(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return run_harmonics([a, b], [y], PLAN.out.dim, PLAN.to_json(), str(forward_call(PLAN)))


def dispatch_by_form(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    gradient = make_scalar_form(PLAN).gradient(OUT)
    values = {"a": a.unbind(-1), "b": b.unbind(-1), "y": y.expand(*a.shape[:-1], 1).unbind(-1)}
    return torch.stack([gradient[k].at(values) for k in range(PLAN.out.dim)], -1)


def operands(*rows: int) -> list[Tensor]:
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((*rows, 3), (*rows, 4), (1,))]


@pytest.mark.parametrize("rows", [(0,), (1,), (63,), (64,), (65,), (1000,), (), (3, 5), (2, 0, 3)])
def test_values_and_two_orders_of_derivatives(rows: tuple[int, ...]) -> None:
    given = operands(*rows)
    found, wanted = by_kernel(*given), dispatch_by_form(*given)
    assert found.shape == (*rows, 9)
    weights, again = torch.randn_like(wanted), [torch.randn_like(x) for x in given]
    for _ in range(2):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        found, wanted = (_slope(x, given, weights, again) for x in (found, wanted))
        weights = torch.ones(())
    gradients = (torch.autograd.grad(x, given) for x in (found, wanted))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def _slope(x: Tensor, given: list[Tensor], weights: Tensor, again: list[Tensor]) -> Tensor:
    """A number made of the gradients, which has gradients."""
    slopes = torch.autograd.grad(x, given, weights, create_graph=True)
    return sum(((s * v).sum() for s, v in zip(slopes, again, strict=True)), torch.zeros((), dtype=torch.float64))


def test_rows_may_lie_apart_in_memory() -> None:
    a, b, y = (x.detach() for x in operands(6, 2))
    torch.testing.assert_close(
        by_kernel(a.mT.contiguous().mT, b.transpose(0, 1).contiguous().transpose(0, 1), y), dispatch_by_form(a, b, y)
    )


def test_functional_transforms() -> None:
    a, b, y = (x.detach() for x in operands(4, 5))
    torch.testing.assert_close(torch.func.vmap(by_kernel, (0, 0, None))(a, b, y), dispatch_by_form(a, b, y))
    tangents = [torch.randn_like(x) for x in (a, b, y)]
    found, wanted = (torch.func.jvp(f, (a, b, y), tuple(tangents))[1] for f in (by_kernel, dispatch_by_form))
    torch.testing.assert_close(found, wanted)
