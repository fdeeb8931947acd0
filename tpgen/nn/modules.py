"""The module of any plan."""

from __future__ import annotations

from typing import Any

from tpgen.nn.conv import TensorProductConv
from tpgen.nn.linear import Linear
from tpgen.nn.planned import PlannedModule
from tpgen.nn.polynomial import Polynomial
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.linear import LINEAR
from tpgen.planner.plan import Maker, Plan
from tpgen.planner.polynomial_plan import POLYNOMIAL
from tpgen.planner.product import PRODUCT

MODULES: dict[Maker, Any] = {PRODUCT: TensorProduct, LINEAR: Linear, POLYNOMIAL: Polynomial}


def build_module(plan: Plan, *, edges: bool = False, **options: Any) -> PlannedModule:
    """Build the module of a plan, without internal weights; with ``edges``, a convolution.

    ``options``: the class's, with `list_size_keywords`.

    >>> from tpgen.planner.harmonics import make_harmonics_plan
    >>> plan = make_harmonics_plan("1o", [1], "norm")
    >>> build_module(plan, strategy="einsum", **list_size_keywords(plan, channels=1)).irreps_out
    1x1o
    """
    cls = TensorProductConv if edges else MODULES[plan.maker]
    return cls.from_plan(plan, internal_weights=False, **options)


def list_size_keywords(plan: Plan, channels: int = 3, elements: int = 1) -> dict[str, Any]:
    """Module keywords for sizes that a plan leaves open (channels, elements)."""
    keywords = {"channels": ("channels", channels), "elements": ("num_elements", elements if elements > 1 else None)}
    return dict(keywords[size] for size in plan.maker.sizes)
