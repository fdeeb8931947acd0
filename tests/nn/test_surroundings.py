"""What torch does around modules: devices without data, tracing, batched derivatives, edges of other types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import tpgen
from tests.cases import MIXED, assert_close
from tests.machine import KERNEL, needs_compiler
from tpgen.base.errors import EmitError, InputError
from tpgen.form.reference import reference_product
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise

STRATEGIES = [KERNEL, "grouped", "einsum", "unrolled"]
ALL = pytest.mark.parametrize("strategy", STRATEGIES)
SOME = pytest.mark.parametrize("strategy", [KERNEL, "grouped"])
PLAN = channelwise("4x0e+3x1o", "0e+1o", "0e+1o")


def inputs(product: TensorProduct, rows: int = 3) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(rows, irreps.dim) for irreps in (product.irreps_in1, product.irreps_in2))  # type: ignore


def graph(nodes: int, edges: int) -> tuple[Tensor, ...]:
    operands = torch.randn(nodes, 13), torch.randn(edges, 4), torch.randn(edges, PLAN.weight_numel)
    return *operands, *torch.randint(nodes, (2, edges))


@ALL
def test_the_program_of_right_leaves_meta_with_a_state(strategy: str) -> None:
    product = TensorProduct(*MIXED, strategy=strategy, compile_right=True).double()
    _, y = (x.double() for x in inputs(product))
    other = TensorProduct(*MIXED, strategy=strategy, compile_right=True).to("meta")
    other.load_state_dict(product.state_dict(), assign=True)
    assert_close(other.right(y), product.right(y))


@ALL
def test_a_product_whose_coefficients_are_zero_has_gradients(strategy: str) -> None:
    product = TensorProduct("4x1o", "1o", "4x0e", [(0, 0, 0, "uvu", True, 0.0)], strategy=strategy)
    x, y = (x.requires_grad_() for x in inputs(product))
    with torch.no_grad():
        x[0], y[1] = float("nan"), float("inf")
    out = product(x, y)
    assert out.eq(0).all()
    for gradient in torch.autograd.grad(out.sum(), (x, y, product.weight)):
        assert gradient.eq(0).all()


def test_a_coefficient_that_float32_cannot_hold() -> None:
    arguments = ("8x1o", "1o", "8x0e", [(0, 0, 0, "uvu", False)])
    product = TensorProduct(*arguments, in1_var=[1e-80])
    assert product.choice.strategy != "kernel"
    named = TensorProduct(*arguments, in1_var=[1e-80], strategy="kernel")
    with pytest.raises(EmitError, match=r"instruction 0 has the coefficient 1e\+40, beyond float32: .*\.double\(\)"):
        named(*inputs(named))


@needs_compiler
def test_a_coefficient_that_float64_holds() -> None:
    arguments = ("8x1o", "1o", "8x0e", [(0, 0, 0, "uvu", False)])
    product = TensorProduct(*arguments, in1_var=[1e-80], strategy="kernel").double()
    x, y = (x.double() for x in inputs(product))
    wanted = reference_product(product.plan, x, y, None)
    assert_close(product(x, y) / wanted.abs().max(), wanted / wanted.abs().max())


# --- tracing ----------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList([product])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner[0](x.sin(), y).tanh()


@SOME
def test_a_network_around_a_product_is_traced_symbolically(strategy: str) -> None:
    network = Network(TensorProduct(*MIXED, strategy=strategy))
    traced = torch.fx.symbolic_trace(network)
    given = inputs(network.inner[0])  # type: ignore[arg-type]
    assert_close(traced(*given), network(*given))
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["inner.0"]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@SOME
def test_a_traced_convolution_takes_other_numbers_of_nodes(strategy: str) -> None:
    conv = TensorProductConv.from_plan(PLAN, strategy=strategy)
    traced = torch.jit.trace(conv, graph(9, 20), check_trace=False)
    for nodes in (9, 5, 12):
        given = graph(nodes, 30)
        torch.testing.assert_close(traced(*given), conv(*given))


# --- batched derivatives ----------------------------------------------------------------------------------------------


def rows_of(plan, strategy: str) -> Callable:
    return TensorProduct.from_plan(plan, strategy=strategy).double()


def edges_of(plan, strategy: str) -> Callable:
    conv, index = TensorProductConv.from_plan(plan, strategy=strategy).double(), torch.tensor([0, 1, 1])
    return lambda x, y, w: conv(x, y, w, index, index.flip(0))


def compiled_rows_of(plan, strategy: str) -> Callable:
    return TensorProduct.from_plan(plan, strategy=strategy, backend="aot_eager").double()


def batched_grad(f: Callable, y: Tensor) -> Tensor:
    out = f(y)
    cotangents = torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)
    return torch.autograd.grad(out, y, cotangents, is_grads_batched=True)[0]


def force_hessian(f: Callable, y: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(f(y).sum(), y, create_graph=True)
    flat = force.flatten()
    rows = torch.eye(flat.numel(), dtype=flat.dtype)
    return torch.vmap(lambda v: torch.autograd.grad(flat, y, v, retain_graph=True)[0])(rows)


TOOLS = {
    "is_grads_batched": batched_grad,
    "hessian": lambda f, y: torch.autograd.functional.hessian(lambda y: f(y).sum(), y, vectorize=True),
    "jacobian": lambda f, y: torch.autograd.functional.jacobian(f, y, vectorize=True),
    "vmap of grad": force_hessian,
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("make", [rows_of, edges_of, compiled_rows_of])
@SOME
def test_batched_derivatives(strategy: str, make: Callable, tool: str) -> None:
    x, y, w = (torch.randn(3, n, dtype=torch.float64) for n in (13, 4, PLAN.weight_numel))
    found, wanted = (
        TOOLS[tool](lambda y, p=product: p(x, y, w).sin(), y.clone().requires_grad_())
        for product in (make(PLAN, strategy), make(PLAN, "einsum"))
    )
    torch.testing.assert_close(found, wanted)


@needs_compiler
def test_batched_gradients_in_gradcheck() -> None:
    product = rows_of(PLAN, "kernel")
    given = tuple(torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (13, 4, PLAN.weight_numel))
    assert torch.autograd.gradcheck(product, given, check_batched_grad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(product, given, check_batched_grad=True, fast_mode=True)


@SOME
def test_batched_gradients_of_a_compiled_product_in_gradcheck(strategy: str) -> None:
    product = compiled_rows_of(PLAN, strategy)
    given = tuple(torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (13, 4, PLAN.weight_numel))
    assert torch.autograd.gradcheck(product, given, check_batched_grad=True, fast_mode=True)


@SOME
def test_functionalize(strategy: str) -> None:
    product = rows_of(PLAN, strategy)
    given = tuple(torch.randn(3, n, dtype=torch.float64) for n in (13, 4, PLAN.weight_numel))
    torch.testing.assert_close(torch.func.functionalize(product)(*given), product(*given))
    slopes = torch.func.grad(lambda *g: torch.func.functionalize(product)(*g).sin().sum())(*given)
    torch.testing.assert_close(slopes, torch.func.grad(lambda *g: product(*g).sin().sum())(*given))
    written = make_fx(torch.func.functionalize(product))(*given)
    torch.testing.assert_close(written(*given), product(*given))


@needs_compiler
def test_functionalize_around_gradients() -> None:
    """torch has no rule for functions of autograd there, and kernels are such: it says so, and graphs go through."""
    given = torch.randn(3, 13, dtype=torch.float64)
    x2, w = (torch.randn(3, n, dtype=torch.float64) for n in (4, PLAN.weight_numel))

    def slope(strategy: str) -> Callable[[Tensor], Tensor]:
        product = rows_of(PLAN, strategy)
        return torch.func.grad(lambda x: product(x, x2, w).sin().sum())

    found = torch.func.functionalize(slope("grouped"))(given)
    torch.testing.assert_close(found, slope("kernel")(given))
    with pytest.raises(RuntimeError, match="NYI: Functionalize rule"):
        torch.func.functionalize(slope("kernel"))(given)


@ALL
def test_vmap_over_the_edges_of_graphs(strategy: str) -> None:
    conv = TensorProductConv.from_plan(PLAN, strategy=strategy)
    x, y, w, *_ = graph(5, 9)
    src, dst = torch.randint(5, (2, 3, 9))
    wanted = torch.stack([conv(x, y, w, *ends) for ends in zip(src, dst, strict=True)])
    torch.testing.assert_close(torch.vmap(lambda a, b: conv(x, y, w, a, b))(src, dst), wanted)


# --- edges ------------------------------------------------------------------------------------------------------------


@SOME
@pytest.mark.parametrize(
    "index, message",
    [
        ([0, 1, 2], r"edge_src: must be a tensor of int64 or int32, got list; make one with torch.as_tensor\(edge_src"),
        (None, "edge_src: must be a tensor of int64 or int32, got NoneType"),
        (np.array([0, 1, 2]), "edge_src: must be a tensor of int64 or int32, got ndarray"),
        (torch.tensor([0.0, 1.0, 2.0]), r"edge_src: must be int64 or int32, got torch.float32; .*edge_src\.long\(\)"),
    ],
)
def test_edges_that_are_none(strategy: str, index: object, message: str) -> None:
    conv = TensorProductConv.from_plan(PLAN, strategy=strategy)
    x, y, w, _, dst = graph(4, 3)
    with pytest.raises(InputError, match=message):
        conv(x, y, w, index, dst)  # type: ignore[arg-type]


@needs_compiler
def test_edges_of_the_function() -> None:
    text = tpgen.kernels.runtime.ops.describe(PLAN)
    conv = tpgen.kernels.runtime.ops.kernel_conv
    x, y, w, src, dst = graph(4, 3)
    assert torch.equal(conv(x, y, w, src.int(), dst.int(), 4, text), conv(x, y, w, src, dst, 4, text))
    for index in (None, [0, 1, 2]):
        with pytest.raises(InputError, match=r"edge_dst.*int64 or int32, got .*torch\.as_tensor"):
            conv(x, y, w, src, index, 4, text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "grouped"}, {"strategy": "grouped", "max_bytes": 10_000}], ids=str
)
def test_checkpoints_unpack_saved_tensors_once(options: dict[str, Any]) -> None:
    """`torch.utils.checkpoint` computes again at the first look, and refuses a second."""
    product = TensorProduct.from_plan(PLAN, internal_weights=False, **options)
    operands = [x.requires_grad_() for x in (*inputs(product), torch.randn(3, PLAN.weight_numel))]
    wanted = torch.autograd.grad(product(*operands).sum(), operands)
    again = checkpoint(product, *operands, use_reentrant=False)
    for found, gradient in zip(torch.autograd.grad(again.sum(), operands), wanted, strict=True):
        assert_close(found, gradient)


@pytest.mark.parametrize(
    "options", [{"strategy": "grouped", "backend": "aot_eager"}, {"strategy": "grouped", "max_bytes": 10_000}], ids=str
)
def test_transforms_may_close_over_operands(options: dict[str, Any]) -> None:
    """Tensors from outside a function of torch.func look plain, and require gradients of their own."""
    product = TensorProduct.from_plan(PLAN, internal_weights=False, **options)
    operands = [x.requires_grad_() for x in (*inputs(product), torch.randn(3, PLAN.weight_numel))]
    slope = torch.func.grad(lambda scale: (product(*operands) * scale).sum())(torch.tensor(2.0))
    assert_close(slope, product(*operands).sum())
