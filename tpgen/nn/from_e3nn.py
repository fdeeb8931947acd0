"""Conversion of e3nn's products."""

from __future__ import annotations

from typing import Any

import e3nn.o3
from torch import nn
from typing_extensions import Unpack

from tpgen.base.errors import TpgenError
from tpgen.compiler.config import ProductOptions
from tpgen.nn.products import TensorSquare
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan


def from_e3nn(product: nn.Module, **options: Unpack[ProductOptions]) -> TensorProduct:
    """Convert an e3nn product into a tpgen product that shares the weight parameter.

    ``options``: those of `TensorProduct`.
    Raises `TpgenError` unless ``product`` is an e3nn product.

    >>> from e3nn import o3
    >>> theirs = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "1o")
    >>> from_e3nn(theirs).weight is theirs.weight
    True
    """
    if not isinstance(product, e3nn.o3.TensorProduct):
        raise TpgenError(
            f"from_e3nn takes an e3nn.o3.TensorProduct or one of its subclasses, got {type(product).__name__}"
        )
    cls = TensorSquare if isinstance(product, e3nn.o3.TensorSquare) else TensorProduct
    ours = cls.__new__(cls)
    ours._set_up_from_plan(plan_e3nn_product(product), product.internal_weights, **options)
    like = product.output_mask
    ours.to(device=like.device, dtype=like.dtype)
    if ours.internal_weights and ours.weight_numel:
        ours.weight = product.weight
    return ours.train(product.training)


def plan_e3nn_product(product: Any) -> Plan:
    """Plan of an e3nn product, with final path coefficients."""
    instructions = [(*instruction[:5], instruction[5] ** 2) for instruction in product.instructions]
    return make_plan(
        product.irreps_in1,
        product.irreps_in2,
        product.irreps_out,
        instructions,
        irrep_normalization="none",
        path_normalization="none",
        shared_weights=product.shared_weights,
    )
