"""Swap of e3nn's linear layers."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Mapping
from typing import Any, Optional

import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.base.errors import TpgenError
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.networks.conversion.gathers import Gatherable
from tpgen.networks.conversion.obstacles import copy_method_under_name, why_module_unconvertible
from tpgen.networks.conversion.products import PROGRAM, describe_product
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept
from tpgen.nn.linear import Linear
from tpgen.planner.linear import LINEAR_NORMALIZATIONS, make_linear_plan
from tpgen.planner.plan import Plan

_STOCK_PROGRAM = "_compiled_main"
_CHANNELS = "of channels (f_in, f_out), which e3nn knows by its weights alone, and it has none: build a tpgen.Linear"


_stock = copy_method_under_name(o3.Linear.forward, "stock")
_stock.__annotations__ = {"features": Tensor, "weight": Optional[Tensor], "bias": Optional[Tensor]}  # noqa: UP045


@compile_mode("script")
class ConvertedLinear(o3.Linear):
    """An `e3nn.o3.Linear`, computed by tpgen; e3nn's code runs for features of width 0."""

    stock = _stock

    def forward(self, features: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Linear layer as e3nn's; integers are cast; an unscripted result is `Gatherable`."""
        if not torch.jit.is_scripting():
            features = as_floating_tensor("features", features, self.output_mask.dtype)
        alone = features.dim() == 1 and not self.shared_weights  # a row without a batch, and weights of it
        if alone or (features.dim() > 0 and features.size(-1) == 0):
            return self.stock(features, weight, bias)
        weight = self.weight if weight is None else weight
        found = self._tpgen.forward(features, weight, self.bias if bias is None else bias)
        if not torch.jit.is_scripting():
            found = Gatherable.make_gatherable_if_possible(self._tpgen, found)
        return found


def find_linear_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts e3nn's `Linear`, or `KeptModule`; None for other modules."""
    if isinstance(module, torch.jit.ScriptModule):
        scripted = getattr(module, "original_name", "") == "Linear" and hasattr(module, _STOCK_PROGRAM)
        return KeptModule(module, "a scripted Linear: convert the network before it is scripted") if scripted else None
    if not isinstance(module, o3.Linear) or (type(module) is o3.Linear and module.weight_numel == 0):
        return None
    why = why_module_unconvertible(module, {o3.Linear: ConvertedLinear}, _STOCK_PROGRAM)
    if why is None and not module.internal_weights and _uses_f_in_f_out_channels(module):
        why = _CHANNELS
    plan = None if why else read_linear_plan(module)
    if plan is None:
        return KeptModule(
            module, why or "its coefficients are none that tpgen plans for such a layer: build a tpgen.Linear"
        )
    try:
        program = Linear.from_plan(plan, False, **{name: o for name, o in options.items() if name != "streams"})
    except TpgenError as error:
        return KeptModule(module, f"tpgen cannot write it: {error}")
    return ClassSwap(module, ConvertedLinear, describe_product, {PROGRAM: program.follow_owner_of_parameters(module)})


def _uses_f_in_f_out_channels(linear: Any) -> bool:
    # then two rows of e3nn's give no two rows
    like, rows = linear.output_mask, 2
    each = () if linear.shared_weights else (rows,)
    given = [(rows, linear.irreps_in.dim), (*each, linear.weight_numel), (*each, linear.bias_numel)]
    try:
        with torch.no_grad():
            found = getattr(linear, _STOCK_PROGRAM).forward(*(like.new_zeros(shape) for shape in given))
    except RuntimeError:
        return True
    return found.shape != (rows, linear.irreps_out.dim)


def read_linear_plan(linear: Any) -> Plan | None:
    """Plan of an e3nn `Linear`; None if no plan has the layer's coefficients."""
    paths = [i for i in linear.instructions if i.i_in != -1]
    biased = {i.i_out for i in linear.instructions if i.i_in == -1}
    f_in, f_out = linear.weight.shape[:2] if linear.weight.dim() == 3 else (None, None)
    for normalization in LINEAR_NORMALIZATIONS:
        plan = make_linear_plan(
            linear.irreps_in,
            linear.irreps_out,
            [(i.i_in, i.i_out) for i in paths],
            [n in biased for n in range(len(linear.irreps_out))],
            f_in,
            f_out,
            normalization,
            linear.shared_weights,
        )
        theirs = [i.path_weight for i in paths]
        ours = [i.path_weight for i in plan.instructions if i.i_in != -1]
        if all(abs(a - b) <= 1e-12 * abs(a) for a, b in zip(theirs, ours, strict=True)):
            return plan
    return None
