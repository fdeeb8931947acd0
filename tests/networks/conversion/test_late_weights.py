"""Sums before the last layer are sums of products: paths, species of rows, parts of columns, derivatives."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import needs_compiler
from tests.networks.conversion.networks import derivatives
from tpgen.base._e3nn import default_dtype
from tpgen.networks.conversion import late_weights as module
from tpgen.networks.conversion.late_weights import is_uvw_with_row_weights, plan_sum_before_last_layer
from tpgen.nn.from_e3nn import plan_e3nn_product

pytestmark = needs_compiler
EDGES, NODES, HIDDEN = 70, 9, 5


@pytest.fixture
def product() -> o3.TensorProduct:
    with default_dtype(torch.float64):  # of constants
        return o3.FullyConnectedTensorProduct("8x0e+4x1o+2x1e", "2x0e+1o+2e", "6x0e+3x1o+5x1e", shared_weights=False)


def operands(product: o3.TensorProduct, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = [(EDGES, product.irreps_in1.dim), (EDGES, product.irreps_in2.dim), (EDGES, HIDDEN)]
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in (*made, (HIDDEN, product.weight_numel))]


@pytest.mark.parametrize("most", [1, 1000, 4000, 2**22])
def test_sums_and_their_derivatives(product: o3.TensorProduct, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SUMS", most)
    given, nodes = operands(product), torch.randint(1, NODES, (EDGES,))  # node 0 has no edge
    late = plan_sum_before_last_layer(plan_e3nn_product(product), HIDDEN, NODES)
    assert late is not None
    assert (late.outer.irreps_in.dim == HIDDEN) == (most > 10_000)
    x, y, h, matrix = given
    stock = torch.zeros(NODES, product.irreps_out.dim, dtype=x.dtype).index_add(0, nodes, product(x, y, h @ matrix))
    found = late.sum_by_node(*given, nodes, NODES)
    torch.testing.assert_close(derivatives(found, given), derivatives(stock, given), rtol=1e-9, atol=1e-9)


def test_no_edges(product: o3.TensorProduct) -> None:
    late = plan_sum_before_last_layer(plan_e3nn_product(product), HIDDEN, NODES)
    x, y, h, matrix = operands(product)
    found = late.sum_by_node(x[:0], y[:0], h[:0], matrix, torch.zeros(0, dtype=torch.int64), NODES)
    assert found.shape == (NODES, product.irreps_out.dim)
    assert not found.any()


def test_other_products_mix_no_copies() -> None:
    instructions = [(0, 0, 0, "uvu", True)]
    for shared, steps in ((False, instructions), (True, None), (False, [])):
        if steps is None:
            other = o3.FullyConnectedTensorProduct("4x0e", "0e", "4x0e")
        else:
            other = o3.TensorProduct("4x0e", "0e", "4x0e", steps, shared_weights=shared, internal_weights=False)
        assert not is_uvw_with_row_weights(plan_e3nn_product(other))
        assert plan_sum_before_last_layer(plan_e3nn_product(other), HIDDEN, NODES) is None


def test_what_is_worth_it() -> None:
    wide = o3.FullyConnectedTensorProduct("16x0e+16x1o", "0e+1o", "16x0e+16x1o", shared_weights=False)
    late = plan_sum_before_last_layer(plan_e3nn_product(wide), 64, 100)
    assert late.is_sum_first_faster(4000, 100, 64)
    assert not late.is_sum_first_faster(4000, 4000, 64), "an edge for each node"
    assert not late.is_sum_first_faster(100, 5, 64), "few numbers"
    assert late.is_sum_first_faster(None, 100, 64), "of edges that a program finds itself"
