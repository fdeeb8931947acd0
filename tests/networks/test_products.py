"""Products of matrices in programs, by kernels: torch's numbers, to second derivatives, and what stays with torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tpgen.base._torch import FakeTensorMode
from tpgen.networks import products
from tpgen.networks.products import replace_matrix_products_by_kernels

aten = torch.ops.aten


def net(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(x @ (0.5 * w)) @ v


def first(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(net(x, w, v).sin().sum(), (x, w, v))


def second(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    (slope,) = torch.autograd.grad(net(x, w, v).sin().sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), (x, w, v))


def turned(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Transposes of transposes, of a computed matrix, and of rows that are no memory as they stand."""
    return (x * 2).t().contiguous().t() @ (0.5 * w.t()).t() @ v.t().t()


def unturned(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Permutations that leave matrices as they are, and some that do not."""
    whole = aten.permute(aten.permute(v, [-1, 0]), [1, -2])
    return x @ aten.permute(w, [0, -1]) @ whole @ aten.transpose(aten.transpose(v, 1, 0), 1, -1)


def traced(
    function: Callable, rows: int, inner: tuple[int, int, int], dtype: torch.dtype
) -> tuple[fx.GraphModule, list]:
    torch.manual_seed(0)
    a, b, c = inner
    given = [torch.randn(*shape, dtype=dtype) for shape in ((rows, a), (a, b), (b, c))]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    opened = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(given[0], symbolic_context=opened)
    known = [mode.from_tensor(w, static_shapes=True) for w in given[1:]]

    def call(*tensors: Tensor):
        return function(*(t.detach().requires_grad_() for t in tensors))

    return make_fx(call, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x, *known), given


def left(graph: fx.Graph) -> int:
    return len(graph.find_nodes(op="call_function", target=aten.mm.default))


@pytest.mark.parametrize("inner", [(16, 16, 32), (8, 24, 7), (5, 64, 4)], ids=str)
@pytest.mark.parametrize("function", [net, first, second, turned, unturned], ids=lambda f: f.__name__)
def test_products_are_those_of_torch_for_any_number_of_rows(function: Callable, inner: tuple[int, int, int]) -> None:
    graph, given = traced(function, 10, inner, torch.float64)
    replace_matrix_products_by_kernels(graph.graph)
    graph.recompile()
    assert left(graph.graph) == 0
    for rows in (10, 2, 131):
        x = torch.randn(rows, inner[0], dtype=torch.float64)
        wanted = function(*(t.detach().requires_grad_() for t in (x, *given[1:])))
        found = graph(x, *given[1:])
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12, check_stride=False)


@pytest.mark.parametrize(
    ("inner", "dtype", "stay"),
    [
        ((3, 16, 16), torch.float32, 1),
        ((16, 16, 2), torch.float32, 1),
        ((16, 16, 16), torch.bfloat16, 2),
        ((16, 16, 16), torch.float32, 0),
    ],
    ids=str,
)
def test_small_matrices_and_other_numbers_stay_with_torch(
    inner: tuple[int, int, int], dtype: torch.dtype, stay: int
) -> None:
    graph, _ = traced(net, 10, inner, dtype)
    replace_matrix_products_by_kernels(graph.graph)
    assert left(graph.graph) == stay


def test_products_of_known_sizes_stay_with_torch() -> None:
    graph = make_fx(torch.mm, tracing_mode="fake")(torch.randn(10, 16), torch.randn(16, 16))
    replace_matrix_products_by_kernels(graph.graph)
    assert left(graph.graph) == 1


def test_without_a_compiler_products_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "why_kernel_unsupported", lambda plan, **_: "there is no compiler")
    graph, _ = traced(net, 10, (16, 20, 12), torch.float32)
    replace_matrix_products_by_kernels(graph.graph)
    assert left(graph.graph) == 2
