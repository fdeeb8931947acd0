"""Matrix products read no subnormal exponentials; whoever else reads these reads them as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tpgen.networks.exponentials import multiply_no_subnormal_exponentials

aten = torch.ops.aten


def joined(x: Tensor, w: Tensor) -> Tensor:
    """As sinusoids and Gaussians of lengths are."""
    rows = torch.cat([x.exp(), x], 1)
    return torch.addmm(w[0], rows, torch.cat([w, w]))


def logarithm(x: Tensor, w: Tensor) -> Tensor:
    """Of the exponential itself."""
    return x.exp() @ w + x.exp().log()


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return x.exp().unsqueeze(1).squeeze(1)[:, :4].t() @ (x @ w)


@pytest.mark.parametrize("dtype, small", [(torch.float32, -100.0), (torch.float64, -740.0)])
@pytest.mark.parametrize("function", [joined, logarithm, transposed], ids=lambda function: function.__name__)
def test_products_read_no_subnormal_numbers(function: Callable, dtype: torch.dtype, small: float) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(7, 4, dtype=dtype), torch.randn(4, 4, dtype=dtype)
    x[0, 1], x[2, 2], x[3, 0] = small, float("-inf"), 5.0
    assert 0 < x[0, 1].exp() < torch.finfo(dtype).tiny
    made = make_fx(function, tracing_mode="symbolic")(x, w)
    multiply_no_subnormal_exponentials(made.graph)
    made.recompile()
    assert len(made.graph.find_nodes(op="call_function", target=aten.masked_fill.Scalar)) == 1
    torch.testing.assert_close(made(x, w), function(x, w), equal_nan=True)
    x[1, 1] = float("nan")
    assert torch.equal(made(x, w).isnan(), function(x, w).isnan())


def test_other_products_stay() -> None:
    made = make_fx(lambda x, w: x.exp().bfloat16() @ w.bfloat16() + (x.exp() * 2).sin() @ w)(*torch.randn(2, 3, 3))
    before = str(made.graph)
    multiply_no_subnormal_exponentials(made.graph)
    assert str(made.graph) == before
