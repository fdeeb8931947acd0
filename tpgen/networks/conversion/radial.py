"""Swap of e3nn's `FullyConnectedNet`: products by kernels."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import sqrt
from operator import mul
from typing import Any

import torch
from e3nn.math import normalize2mom
from e3nn.nn import FullyConnectedNet
from e3nn.nn._fc import _Layer
from e3nn.util.jit import compile_mode
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tpgen.emitter.leaf import record_leaf_call
from tpgen.functions.silu import silu
from tpgen.networks.conversion.obstacles import (
    HOOKED,
    allows_kernels,
    count_places_in_network,
    has_hooks,
    is_hooked_or_patched,
    why_patched,
)
from tpgen.networks.conversion.operations.matmul import matmul, why_no_matmul_kernel
from tpgen.networks.conversion.operations.pairs import run_once_per_pair
from tpgen.networks.conversion.operations.splines import choose_net_or_spline
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, get_swap_mark, name_class_with_package
from tpgen.networks.conversion.weights import LastLayer, compute_or_postpone_weights

# who gets the results: a block, its names of the net and of the product; in a tuple, so that the block becomes no child
TAKER = "_tpgen_taker"
FOR_WEIGHTS = "_tpgen_for_weights"  # whether the results may be the weights of a product that mixes all copies


def _describe_net_backend(net: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    # name what computes a radial net, for the report: kernels where they are allowed and can run
    why = why_no_matmul_kernel(*net.parameters()) if swap_attributes["_tpgen_kernels"] else None
    by = "tpgen" if swap_attributes["_tpgen_kernels"] and not why else "torch"
    return f"{by} products (scales in the weights{f'; {why}' if why else ''})"


@compile_mode("script")
class ConvertedFullyConnectedNet(FullyConnectedNet):
    """An `e3nn.nn.FullyConnectedNet`, computed by tpgen.

    Scripted, or with hooked or replaced layers, e3nn's code runs.
    """

    _tpgen_splined = False

    def forward(self, input: Tensor) -> Tensor:
        """e3nn's net, or a spline; computed once per marked pair of edges."""
        if not torch.jit.is_scripting():
            node = None if isinstance(input, Tensor) else record_leaf_call(self, input)  # fx looks into a Sequential
            if node is not None:
                return node
            if not _have_layers_changed_since_conversion(self):
                compute, given = choose_net_or_spline(self, partial(_evaluate_net, self), input)
                return run_once_per_pair(compute, given, feeds_product_taking_pairs(self), marked=input)
        for layer in self:
            input = layer(input)
        return input


def _have_layers_changed_since_conversion(net: nn.Module) -> bool:
    # whether the layers must be called: something was added to one of them, or put in its place, after the swap
    return any(
        type(layer) is not _Layer
        or is_hooked_or_patched(layer)
        or (layer.act is not None and (type(layer.act) is not normalize2mom or is_hooked_or_patched(layer.act)))
        for layer in _list_layers_in_call_order(net)
    )


def _evaluate_net(net: Any, x: Tensor) -> Tensor:
    scale = 1.0  # that is left from the layer before
    for layer in _list_layers_in_call_order(net):
        variance = layer.h_in * layer.var_in / (1 if layer.act is not None else layer.var_out)
        factor = scale / sqrt(variance)
        linear = LastLayer(partial(_multiply_by_scaled_weight, net._tpgen_kernels, factor), partial(mul, factor))
        waits = layer.act is None and getattr(net, FOR_WEIGHTS, False)
        x = compute_or_postpone_weights(linear, x, layer.weight) if waits else linear(x, layer.weight)
        scale = 1.0
        if layer.act is not None:
            x = (silu if layer.act.f is nn.functional.silu else layer.act.f)(x)
            scale = (1.0 if layer.act._is_id else layer.act.cst) * sqrt(layer.var_out)
    return x if scale == 1.0 else x * scale


def _multiply_by_scaled_weight(by_kernels: bool, factor: float, x: Tensor, weight: Tensor) -> Tensor:
    return matmul(x, weight, factor) if by_kernels else x @ (weight * factor)


def _list_layers_in_call_order(net: nn.Module) -> Iterable[Any]:
    # the layers in the order of calls; one in two places, which share its weights, is called twice
    return net._modules.values()


def find_radial_net_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts e3nn's `FullyConnectedNet`, or `KeptModule`; None for other modules."""
    if type(module) is not FullyConnectedNet or get_swap_mark(module) is not None:
        return None
    why = why_patched(module) or next(
        filter(None, map(_why_layer_unconvertible, _list_layers_in_call_order(module))), None
    )
    if why:
        return KeptModule(module, why)
    covers = tuple(name for name, _ in module.named_children())
    extra = {"_tpgen_kernels": allows_kernels(options), TAKER: ()}
    return ClassSwap(module, ConvertedFullyConnectedNet, _describe_net_backend, extra, covers=covers)


def find_weight_net_swap(
    network: nn.Module, block: nn.Module, net_and_product_names: tuple[str, str], options: Mapping[str, Any]
) -> Iterator[SwapOrKept]:
    """Yield the swap of a net that feeds one product of ``block``."""
    net: Any = getattr(block, net_and_product_names[0], None)
    found = find_radial_net_swap(net, options) if isinstance(net, nn.Module) else None
    if isinstance(found, ClassSwap) and count_places_in_network(network, net) == 1:
        yield replace(found, extra={**found.extra, TAKER: (block, *net_and_product_names)})


def feeds_product_taking_pairs(net: nn.Module) -> bool:
    """Whether a net's results go straight to a product that takes weights per pair of edges."""
    if not (taker := getattr(net, TAKER)):
        return False
    block, name, gets = taker
    product = getattr(block, gets, None)
    takes = getattr(block, name, None) is net and getattr(product, "takes_pairs", False)
    return takes and not (is_hooked_or_patched(net) or is_hooked_or_patched(product) or "forward" in block.__dict__)


def _why_layer_unconvertible(layer: Any) -> str | None:
    if parametrize.is_parametrized(layer):
        return "of a layer that is parametrised: convert first, then parametrise"
    if type(layer) is not _Layer:
        return f"of a layer that is a {name_class_with_package(type(layer))}, whose own code a swap would skip"
    if layer.act is not None and type(layer.act) is not normalize2mom:
        return f"of an activation that is a {name_class_with_package(type(layer.act))}, not e3nn's normalize2mom"
    parts = [layer, *layer.children()]
    return next(filter(None, map(why_patched, parts)), None) or (HOOKED if any(map(has_hooks, parts)) else None)
