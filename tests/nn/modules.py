"""The modules that the tests of products build, and operands for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.cases import MIXED

IN1, IN2, OUT = "3x0e + 2x1o + 1x2e", "2x1o + 1x0e + 1x2e", "2x0e + 3x1o + 1x1e + 2x2e + 1x0o"


# the five classes: how to construct them, for e3nn's module and for tpgen's alike
FIVE: dict[str, Callable[[Any], Any]] = {
    "product": lambda o: o.TensorProduct(*MIXED),
    "product-rows": lambda o: o.TensorProduct(*MIXED, shared_weights=False),
    "product-norm": lambda o: o.TensorProduct(*MIXED, irrep_normalization="norm", path_normalization="path"),
    "product-external": lambda o: o.TensorProduct(*MIXED, internal_weights=False),
    "connected": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT),
    "connected-rows": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT, shared_weights=False),
    "connected-norm": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT, "norm", "path"),
    "elementwise": lambda o: o.ElementwiseTensorProduct("3x0e + 2x1o", "2x1o + 3x0e", ["0e", "1o"]),
    "full": lambda o: o.FullTensorProduct(IN1, IN2, irrep_normalization="norm"),
    "square": lambda o: o.TensorSquare("3x0e + 2x1o"),
    "square-filter": lambda o: o.TensorSquare("3x0e + 2x1o", filter_ir_out=["0e", "2e"]),
    "square-connected": lambda o: o.TensorSquare("3x0e + 2x1o", "2x0e + 1x1o + 2x2e"),
    "empty": lambda o: o.FullyConnectedTensorProduct("0x0e", "1o", "2x1o"),
}


def inputs(product: Any, batch: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Operands of a call: one tensor for a square, two otherwise, and weights where the product has none of its own."""
    given = [torch.randn(*batch, product.irreps_in1.dim, dtype=dtype)]
    if not hasattr(product, "irreps_in"):
        given.append(torch.randn(*batch, product.irreps_in2.dim, dtype=dtype))
    if product.weight_numel > 0 and not product.internal_weights:
        rows = () if product.shared_weights else batch
        given.append(torch.randn(*rows, product.weight_numel, dtype=dtype))
    return given
