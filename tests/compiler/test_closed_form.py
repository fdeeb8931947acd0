"""Derivatives as programs of their own: any order, under a compiling backend, with broadcasting and mixed paths."""

from __future__ import annotations

import pytest
import torch

from tests.machine import KERNEL
from tpgen.form.reference import reference_product
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import make_plan

INSTRUCTIONS = [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False), (1, 0, 2, "uvu", True), (1, 1, 2, "uvv", False)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("strategy", ["unrolled", KERNEL])
def test_derivatives_of_three_orders(shared: bool, strategy: str) -> None:
    torch._dynamo.reset()
    plan = make_plan("3x1o+3x0e", "3x1o+3x1o", "3x1e+3x0e+3x1o", INSTRUCTIONS, shared_weights=shared)
    product = TensorProduct.from_plan(plan, False, strategy=strategy, backend="aot_eager").double()
    weights = (plan.weight_numel,) if shared else (4, plan.weight_numel)
    shapes = ((4, plan.irreps_in1.dim), (4, plan.irreps_in2.dim), weights)
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    def definition(x1: torch.Tensor, x2: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return reference_product(plan, x1, x2, w)

    for got, wanted in zip(_derivatives(product, inputs), _derivatives(definition, inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


def _derivatives(function, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of order one, two and three of a scalar."""
    found, value = [], function(*inputs).sin().sum()
    for _ in range(3):
        gradients = torch.autograd.grad(value, inputs, create_graph=True)
        found += gradients
        value = sum(g.cos().sum() for g in gradients)
    return found


def test_gradients_of_broadcast_operands_have_their_shapes() -> None:
    torch._dynamo.reset()
    product = TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="unrolled", backend="aot_eager")
    x, y = torch.randn(5, 1, 6, requires_grad=True), torch.randn(3, requires_grad=True)
    eager = TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    eager.load_state_dict(product.state_dict())
    wanted = torch.autograd.grad(eager(x, y).square().sum(), (x, y, eager.weight))
    for got, expected in zip(
        torch.autograd.grad(product(x, y).square().sum(), (x, y, product.weight)), wanted, strict=True
    ):
        torch.testing.assert_close(got, expected)
