"""What torch does around polynomials: devices without data, tracing, batched derivatives, other dtypes of a state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import KERNEL, needs_compiler
from tests.nn.test_surroundings import TOOLS, Network
from tpgen.base.errors import InputError
from tpgen.kernels.runtime.ops import kernel_polynomial
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.nn.polynomial import Polynomial
from tpgen.nn.symmetric_contraction import SymmetricContraction

ALL = pytest.mark.parametrize("strategy", [KERNEL, "einsum", "unrolled"])
INDEX = torch.tensor([1, 0, 1])


def contraction(strategy: str) -> SymmetricContraction:
    return SymmetricContraction("2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, strategy=strategy).double()


def features(*batch: int) -> Tensor:
    return torch.randn(*batch, 3, 2, 4, dtype=torch.float64)


@ALL
def test_a_network_around_a_polynomial_is_traced_symbolically(strategy: str) -> None:
    network, x = Network(contraction(strategy)), features()
    traced = torch.fx.symbolic_trace(network)
    torch.testing.assert_close(traced(x, INDEX), network(x, INDEX))
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["inner.0"]


@pytest.mark.parametrize("tool", TOOLS)
@ALL
def test_batched_derivatives(strategy: str, tool: str) -> None:
    reference = contraction("einsum")
    made = contraction(strategy)
    made.load_state_dict(reference.state_dict())
    x = features()
    found, wanted = (
        TOOLS[tool](lambda x, m=m: m(x, INDEX).sin(), x.clone().requires_grad_()) for m in (made, reference)
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("elements", [1, 2, 3])
@needs_compiler
def test_batched_gradients_in_gradcheck(elements: int) -> None:
    """Of weights that rows share, by element, and of each row."""
    made = Polynomial({"x": "2x0e+2x1o", "y": "1o"}, "2x0e+2x1o", [("x", "y"), ("x", "x")], weights="given").double()
    shapes = [(3, 8), (3, 3), *((elements, *shape) for shape in made.weight_shapes)]
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    index = INDEX if elements == 2 else None

    def call(*tensors: Tensor) -> Tensor:
        if index is None:
            return made(*tensors[:2], weights=tensors[2:])
        return kernel_polynomial(tensors, index, made.plan.to_json(), str(forward_call(made.plan)))

    assert torch.autograd.gradcheck(call, given, check_batched_grad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, check_batched_grad=True, fast_mode=True)


@ALL
def test_vmap_over_the_elements(strategy: str) -> None:
    made, x = contraction(strategy), features()
    index = torch.randint(2, (4, 3))
    mapped = torch.vmap(lambda i: made(x, i))(index)
    torch.testing.assert_close(mapped, torch.stack([made(x, i) for i in index]))
    gradient = torch.func.grad(lambda x, i: made(x, i).pow(2).sum())
    wanted = torch.stack([gradient(x, i) for i in index])
    torch.testing.assert_close(torch.vmap(gradient, in_dims=(None, 0))(x, index), wanted)


@ALL
def test_autocast_rounds_nothing_inside(strategy: str) -> None:
    made = contraction(strategy).float()
    given = Polynomial({"x": "2x1o"}, "2x0e", [("x", "x")], weights="given", strategy=strategy)
    x, v, w = features().bfloat16(), torch.randn(3, 6).bfloat16(), torch.randn(1, 1, 2)
    wanted = made(x.float(), INDEX), given(v.float(), weights=[w])
    with torch.autocast("cpu", torch.bfloat16):
        found = made(x, INDEX), given(v, weights=[w])
        with pytest.raises(InputError, match=r"x:.*torch\.float32.*torch\.float64"):
            made(x.double(), INDEX)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.0)
