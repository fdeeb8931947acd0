"""MACE (package ``mace-torch``): convolutions and symmetric contractions."""

# Annotations are objects here, not strings: TorchScript reads them.

import inspect
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
from tpgen.networks.conversion.projects.mace_contraction import (
    find_contraction_swap,
    find_reshape_swap,
    is_mace_contraction,
    is_mace_reshape,
)
from tpgen.networks.conversion.radial import find_weight_net_swap
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, get_swap_mark

# a block with this attribute gives nodes and ``edge_index`` to its product, and neither gathers nor sums
_FUSION = "conv_fusion"
_MODELS, _BLOCKS = "mace.modules.models", "mace.modules.blocks"
_DIVIDE = ("RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock")
_TOO_OLD = (
    f"a block without {_FUSION}, which gathers and sums itself: its product alone is converted; "
    "newer versions of mace-torch have it"
)


@compile_mode("script")
class MaceConvolution(o3.TensorProduct):
    """MACE's product on edges with gather and sum."""

    takes_pairs = True
    program_arguments = ("x", "y", "weight", "edge_index")

    def forward(self, node_feats: Tensor, edge_attrs: Tensor, tp_weights: Tensor, edge_index: Tensor) -> Tensor:
        """Products of edges, summed by receiver; ``edge_index``: senders, receivers."""
        if not torch.jit.is_scripting():
            return convolve_edges_or_pairs(
                self._tpgen, node_feats, edge_attrs, tp_weights, edge_index[0], edge_index[1]
            )
        return self._tpgen.forward(node_feats, edge_attrs, tp_weights, edge_index[0], edge_index[1], node_feats.size(0))


def find_mace_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield a `ClassSwap` or `KeptModule` per convertible module of MACE."""
    for module in network.modules():
        product = getattr(module, "conv_tp", None)
        if isinstance(product, o3.TensorProduct) and not hasattr(module, _FUSION):  # it gathers itself
            yield from _find_interaction_swaps(network, module, options)
        elif is_mace_contraction(module):
            yield find_contraction_swap(module, options)
        elif is_mace_reshape(module):
            found = find_reshape_swap(module, options)
            if found is not None:
                yield found
    if any(type(module).__module__ == _MODELS for module in network.modules()):
        yield from import_module("tpgen.networks.conversion.projects.mace_models").find_mace_model_swaps(
            network, options
        )


def _find_interaction_swaps(network: nn.Module, block: Any, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    code = getattr(inspect.unwrap(type(block).forward), "__code__", None)
    asks_for_fusion = code is not None and _FUSION in code.co_consts
    why = why_not_fused(network, block, "conv_tp") if asks_for_fusion else _TOO_OLD
    if why:
        yield KeptModule(block, why)
    elif get_swap_mark(block.conv_tp) is None:
        found = make_convolution_swap(block.conv_tp, MaceConvolution, options, paired=True)
        yield found
        if isinstance(found, ClassSwap):
            cls, extra, ours = type(block), {}, type(block).__module__ == _BLOCKS
            if ours and cls.__name__ in _DIVIDE:
                cls, extra = import_module("tpgen.networks.conversion.projects.mace_models").choose_interaction_class(
                    block, options
                )
            yield ClassSwap(block, cls, "", {_FUSION: True, **extra})
            if ours:  # these hand weights to the product as they are
                yield from find_weight_net_swap(network, block, ("conv_tp_weights", "conv_tp"), options)
