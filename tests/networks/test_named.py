"""Calls of kernels by names: what they are given."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from tpgen.networks.named import _as_memory


def test_rows_in_another_order_are_never_read_as_memory() -> None:
    graph, x = fx.Graph(), torch.arange(12.0).reshape(3, 4)
    rows = graph.call_function(torch.ops.aten.mul.Tensor, (graph.placeholder("x"), 2))
    seen = graph.call_function(torch.ops.aten.view.default, (rows, [1, -1]))
    seen.meta["val"] = torch.empty(1, 12)
    made = _as_memory(graph, seen)
    assert made is not seen
    graph.output(made)
    computed = fx.GraphModule({}, graph)
    assert torch.equal(computed(x), 2 * x.reshape(1, 12))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        computed(x.t().contiguous().t())
