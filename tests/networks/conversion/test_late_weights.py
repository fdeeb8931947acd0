"""Sums before the last layer are sums of products: paths, species of rows, parts of columns, derivatives."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import needs_compiler
from tests.networks.conversion.networks import derivatives
from tpgen.base._e3nn import default_dtype
from tpgen.kernels.placement.nodes import FEWEST_SCALARS
from tpgen.networks.conversion.late_weights import (
    can_sum_before_last_layer,
    is_uvw_with_row_weights,
    plan_sum_before_last_layer,
)
from tpgen.nn.from_e3nn import plan_e3nn_product

pytestmark = needs_compiler
EDGES, NODES, HIDDEN = 70, 9, 13


@pytest.fixture
def product() -> o3.TensorProduct:
    with default_dtype(torch.float64):  # of constants
        return o3.FullyConnectedTensorProduct("8x0e+4x1o+2x1e", "2x0e+1o+2e", "6x0e+3x1o+5x1e", shared_weights=False)


def operands(product: o3.TensorProduct, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = [(EDGES, product.irreps_in1.dim), (EDGES, product.irreps_in2.dim), (EDGES, HIDDEN)]
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in (*made, (HIDDEN, product.weight_numel))]


def test_sums_and_their_derivatives(product: o3.TensorProduct) -> None:
    given, nodes = operands(product), torch.randint(1, NODES, (EDGES,))  # node 0 has no edge
    late = plan_sum_before_last_layer(plan_e3nn_product(product), HIDDEN)
    assert late is not None
    x, y, h, matrix = given
    stock = torch.zeros(NODES, product.irreps_out.dim, dtype=x.dtype).index_add(0, nodes, product(x, y, h @ matrix))
    found = late.sum_by_node(*given, nodes, NODES)
    torch.testing.assert_close(derivatives(found, given), derivatives(stock, given), rtol=1e-9, atol=1e-9)


def test_no_edges(product: o3.TensorProduct) -> None:
    late = plan_sum_before_last_layer(plan_e3nn_product(product), HIDDEN)
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
        assert plan_sum_before_last_layer(plan_e3nn_product(other), HIDDEN) is None


def test_what_is_worth_it() -> None:
    wide = o3.FullyConnectedTensorProduct("16x0e+16x1o", "0e+1o", "16x0e+16x1o", shared_weights=False)
    late = plan_sum_before_last_layer(plan_e3nn_product(wide), 64)
    for is_differentiated, most in ((False, 1560), (True, 1080)):
        for nodes in (100, most):
            assert late.is_sum_first_faster(4000, nodes, 64, is_differentiated)
        for nodes in (most + 100, 4000):
            assert not late.is_sum_first_faster(4000, nodes, 64, is_differentiated)
        assert not late.is_sum_first_faster(100, 5, 64, is_differentiated), "few numbers"
        assert late.is_sum_first_faster(None, 100, 64, is_differentiated), "of edges that a program finds itself"


def test_few_scalars_and_tensors_elsewhere_wait_for_their_weights(product: o3.TensorProduct) -> None:
    for hidden in (FEWEST_SCALARS - 1, FEWEST_SCALARS):
        assert (plan_sum_before_last_layer(plan_e3nn_product(product), hidden) is None) == (hidden < FEWEST_SCALARS)
    rows = torch.zeros(2, 13)
    assert [can_sum_before_last_layer(rows.to(dtype)) for dtype in (torch.float32, torch.float64)] == [True, True]
    assert not can_sum_before_last_layer(rows.bfloat16())
    assert not can_sum_before_last_layer(rows.to("meta"))
