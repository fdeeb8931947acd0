"""Calls of kernels by names: what they are given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from tests.machine import needs_compiler
from tpgen.kernels.runtime.call import product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.networks.named import _replace_row_view_by_strides, call_kernels_by_number
from tpgen.planner.presets import channelwise


@needs_compiler
@pytest.mark.parametrize("opened", ["w", "x1 x2", "x1 out", "x1 w out"])
@pytest.mark.parametrize("on_edges", [False, True])
def test_gradients_by_name_are_those_of_the_operator(opened: str, on_edges: bool) -> None:
    """On edges x1 and out are results of two kernels, of which one is given no cotangent that says how many rows."""
    plan = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
    text, rows, nodes = describe(plan), 7, 3 if on_edges else 7
    dims = ((nodes, plan.irreps_in1.dim), (rows, plan.irreps_in2.dim), (rows, plan.weight_numel), (nodes, plan.out.dim))
    given = [torch.randn(size, dtype=torch.float64) for size in dims]
    edges = [torch.randint(nodes, (rows,)) for _ in range(2)] if on_edges else []

    def call(*tensors: Tensor) -> list[Tensor]:
        names = "src dst" if on_edges else ""
        return torch.ops.tpgen.form([*tensors[:4]], [*tensors[4:]], text, product_call_text(*opened.split()), names)

    traced = make_fx(call, tracing_mode="symbolic")(*given, *edges)
    call_kernels_by_number(traced.graph)
    traced.recompile()
    assert "tpgen." not in traced.code, "all by name"
    for found, wanted in zip(traced(*given, *edges), call(*given, *edges), strict=True):
        assert torch.equal(found, wanted)


def test_rows_in_another_order_are_never_read_as_memory() -> None:
    graph, x = fx.Graph(), torch.arange(12.0).reshape(3, 4)
    rows = graph.call_function(torch.ops.aten.mul.Tensor, (graph.placeholder("x"), 2))
    seen = graph.call_function(torch.ops.aten.view.default, (rows, [1, -1]))
    seen.meta["val"] = torch.empty(1, 12)
    made = _replace_row_view_by_strides(graph, seen)
    assert made is not seen
    graph.output(made)
    computed = fx.GraphModule({}, graph)
    assert torch.equal(computed(x), 2 * x.reshape(1, 12))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        computed(x.t().contiguous().t())
