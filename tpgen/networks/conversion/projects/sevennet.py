"""SevenNet (package ``sevenn``): convolutions become `IrrepsScatterGatterFusedConvolution`."""

# Annotations are objects here, not strings: TorchScript reads them.

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.networks.conversion.obstacles import why_not_fused
from tpgen.networks.conversion.operations.pairs import convolve_edges_or_pairs
from tpgen.networks.conversion.products import make_convolution_swap
from tpgen.networks.conversion.radial import find_weight_net_swap
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept

_STOCK, _FUSED = "IrrepsConvolution", "IrrepsScatterGatterFusedConvolution"
_ONE_HOT = "OnehotEmbedding"
_EDGES = "sevenn.nn.edge_embedding"


@compile_mode("script")
class SevenNetConvolution(o3.TensorProduct):
    """SevenNet's product on edges with gather and sum."""

    takes_pairs = True
    program_arguments = ("x", "y", "weight", "edge_src", "edge_dst")

    def forward(self, x: Tensor, edge_filter: Tensor, weight: Tensor, edge_src: Tensor, edge_dst: Tensor) -> Tensor:
        """Products of edges, summed by receiving node."""
        if not torch.jit.is_scripting():
            return convolve_edges_or_pairs(self._tpgen, x, edge_filter, weight, edge_src, edge_dst)
        return self._tpgen.forward(x, edge_filter, weight, edge_src, edge_dst, x.size(0))


def find_sevennet_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield a `ClassSwap` or `KeptModule` per convertible module of SevenNet."""
    for module in network.modules():
        if type(module).__module__.startswith("sevenn.") and type(module).__name__ == _STOCK:
            yield from _find_convolution_swaps(network, module, options)
    if any(type(module).__module__ == _EDGES for module in network.modules()):
        edges = import_module("tpgen.networks.conversion.projects.sevennet_edges")
        yield from (*edges.find_sevennet_edge_swaps(network, options), *edges.find_size_free_output_swaps(network))


def cast_elements_to_float64(network: nn.Module) -> None:
    """Cast SevenNet's one-hot elements to float64 by hooks."""
    for module in network.modules():
        if type(module).__module__.startswith("sevenn.") and type(module).__name__ == _ONE_HOT:
            module.register_forward_hook(_cast_floats_to_float64)


def _cast_floats_to_float64(_module: nn.Module, _given: Any, data: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in data.items()}


def _find_convolution_swaps(
    network: nn.Module, convolution_block: Any, options: dict[str, Any]
) -> Iterator[SwapOrKept]:
    fused = getattr(sys.modules[type(convolution_block).__module__], _FUSED, None)
    if fused is None:
        yield KeptModule(
            convolution_block, f"of a version of sevenn without {_FUSED}: its product alone is converted; update sevenn"
        )
    elif isinstance(convolution_block.convolution, o3.TensorProduct) and (
        why := why_not_fused(network, convolution_block, "convolution")
    ):
        yield KeptModule(convolution_block, why)
    elif isinstance(convolution_block.convolution, o3.TensorProduct):
        found = make_convolution_swap(convolution_block.convolution, SevenNetConvolution, options, paired=True)
        yield found
        if isinstance(found, ClassSwap):
            yield ClassSwap(convolution_block, fused, "", {"_out_dim": convolution_block.convolution.irreps_out.dim})
            yield from find_weight_net_swap(network, convolution_block, ("weight_nn", "convolution"), options)
