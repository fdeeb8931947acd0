"""Nets of weights, whose last layer may wait."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tpgen.networks.conversion.late_weights import is_uvw_with_row_weights
from tpgen.networks.conversion.obstacles import is_hooked_or_patched
from tpgen.networks.conversion.products import describe_product
from tpgen.networks.conversion.radial import FOR_WEIGHTS
from tpgen.networks.conversion.swap import ClassSwap, SwapOrKept
from tpgen.networks.conversion.weights import LastLayer, compute_or_postpone_weights
from tpgen.networks.served import HOOKS_OF_ALL
from tpgen.nn.planned import PROGRAM
from tpgen.planner.plan import Plan


class SequentialForWeights(nn.Sequential):
    """An `nn.Sequential` whose results, weights of a product, may be postponed."""

    def forward(self, input: Tensor) -> Tensor:
        """Call the modules in sequence; the last layer may be postponed."""
        if not torch.jit.is_scripting():
            return _run_net_and_postpone_last_layer(self, input)
        for module in self:
            input = module(input)
        return input


def _run_net_and_postpone_last_layer(net: nn.Sequential, x: Any) -> Any:
    *before, last = net._modules.values() or [nn.Identity()]
    for module in before:
        x = module(x)
    if type(last) is not nn.Linear or is_hooked_or_patched(last) or any(HOOKS_OF_ALL) or not isinstance(x, Tensor):
        return last(x)
    return (
        compute_or_postpone_weights(_LINEAR, x, last.weight)
        if last.bias is None
        else compute_or_postpone_weights(_AFFINE, x, last.weight, last.bias)
    )


def _append_bias_row_to_matrix(weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    return weight.t() if bias is None else torch.cat([weight.t(), bias[None]])


_LINEAR, _AFFINE = (LastLayer(nn.functional.linear, _append_bias_row_to_matrix, adds) for adds in (False, True))


def add_weight_net_swaps(network: nn.Module, findings: Sequence[SwapOrKept]) -> list[SwapOrKept]:
    """Add swaps that let nets postpone the weights of `uvw` products by kernels."""
    swaps = [f for f in findings if isinstance(f, ClassSwap)]
    products = {plan.weight_numel for f in swaps if (plan := _get_plan_if_uvw_kernel_product(f)) is not None}
    seen = {f.module for f in findings}
    nets = [
        ClassSwap(module, SequentialForWeights, "")
        for module in network.modules()
        if type(module) is nn.Sequential
        and len(module) > 1
        and module not in seen
        and _get_output_width(module) in products
    ]
    own = [f.module for f in (*swaps, *nets) if _get_output_width(f.module) in products]
    widths = {_get_output_width(module) for module in own}
    return [*(_mark_swap_to_postpone_weights(f, widths) if isinstance(f, ClassSwap) else f for f in findings), *nets]


def _get_plan_if_uvw_kernel_product(swap: ClassSwap) -> Plan | None:
    # the plan of a product that mixes all copies by a kernel
    program = swap.extra.get(PROGRAM)
    if not isinstance(swap.module, o3.TensorProduct) or program is None or program.choice.strategy != "kernel":
        return None
    return program.plan if is_uvw_with_row_weights(program.plan) else None


def _mark_swap_to_postpone_weights(swap: ClassSwap, weight_widths: set[int | None]) -> ClassSwap:
    if isinstance(swap.module, FullyConnectedNet):
        return (
            replace(swap, extra={**swap.extra, FOR_WEIGHTS: True})
            if _get_output_width(swap.module) in weight_widths
            else swap
        )
    plan = _get_plan_if_uvw_kernel_product(swap)
    return (
        swap
        if plan is None or plan.weight_numel not in weight_widths
        else replace(swap, now=_describe_late_product_backend)
    )


def _get_output_width(net: nn.Module) -> int | None:
    # of the results of a net; None for other modules
    last: Any = net[-1] if isinstance(net, nn.Sequential) and len(net) else None
    return getattr(last, "h_out" if isinstance(net, FullyConnectedNet) else "out_features", None)


def _describe_late_product_backend(module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    return (
        describe_product(module, swap_attributes)
        + "; summed by node before the last layer of its net, where that is less"
    )
