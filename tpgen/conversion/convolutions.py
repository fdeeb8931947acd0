"""Products on edges that a network gathers for and sums up itself: one convolution takes the place of all three."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from tpgen.conversion.obstacles import why_not_swapped
from tpgen.conversion.products import CONVERTED, PROGRAM, STOCK_PROGRAM, exact_couplings, idle_kernel
from tpgen.conversion.swap import Kept, Swap
from tpgen.errors import TpgenError
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.from_e3nn import plan_of


def convolution_of(product: nn.Module, options: Mapping[str, Any]) -> TensorProductConv | Kept:
    """The convolution that multiplies as one of e3nn's products does, or why that product must stay."""
    why = why_not_swapped(product, CONVERTED, STOCK_PROGRAM)
    if why:
        return Kept(product, why)
    try:
        plan = plan_of(product)
    except TpgenError as error:
        return Kept(product, f"tpgen cannot plan it: {error}")
    conv = TensorProductConv.from_plan(plan, False, **options)
    return conv.compute_for(product)


def convolving(
    module: nn.Module, cls: type[nn.Module], options: Mapping[str, Any], held: str | None = None, paired: bool = False
) -> Swap | Kept:
    """Swap a module so that it computes with the convolution of a product: of itself, or of one it holds by a name.

    ``paired`` says that what holds the module no longer gathers and sums, so that both are restored together.
    """
    product = module if held is None else module.get_submodule(held)
    conv = convolution_of(product, options)
    if isinstance(conv, Kept):
        return conv
    covers = () if held is None else (held,)
    return Swap(module, cls, _chosen, {PROGRAM: conv}, partial(exact_couplings, product), covers, paired)


def _chosen(_module: nn.Module, extra: Mapping[str, Any]) -> str:
    """Text of the report: what the convolution computes with."""
    choice = extra[PROGRAM].choice
    how = "gather, product and sum in one" if choice.strategy == "kernel" else choice.reason
    return f"tpgen convolution, {choice.strategy} ({how}){idle_kernel(extra[PROGRAM])}"
