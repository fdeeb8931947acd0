"""NequIP (package ``nequip``): products and scatters of blocks."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import torch
from nequip.nn._tp_scatter_base import TensorProductScatter
from torch import Tensor, nn

from tpgen.networks.conversion.obstacles import why_not_fused
from tpgen.networks.conversion.operations.pairs import convolve_edges_or_pairs
from tpgen.networks.conversion.products import make_convolution_swap
from tpgen.networks.conversion.swap import KeptModule, SwapOrKept, get_swap_mark


class TpgenTensorProductScatter(TensorProductScatter):
    """NequIP's product, gather and sum as one convolution; ``tp`` stays for the state_dict."""

    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("tpgen",)
    takes_pairs = True
    program_arguments = ("x", "y", "weight", "edge_dst", "edge_src")

    def forward(self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_dst: Tensor, edge_src: Tensor) -> Tensor:
        """Products of edges, summed by ``edge_dst``, in the model's dtype even under autocast."""
        dtype = self.tp.output_mask.dtype
        if not torch.jit.is_scripting():
            return convolve_edges_or_pairs(
                self._tpgen, x.to(dtype), edge_attr.to(dtype), edge_weight.to(dtype), edge_src, edge_dst
            )
        given = (x.to(dtype), edge_attr.to(dtype), edge_weight.to(dtype))
        return self._tpgen.forward(given[0], given[1], given[2], edge_src, edge_dst, x.size(0))


def find_nequip_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield a `ClassSwap` or `KeptModule` per convertible module of NequIP."""
    for module in network.modules():
        if type(module) is TensorProductScatter:
            why = why_not_fused(network, module, "tp")
            yield (
                KeptModule(module, why)
                if why
                else make_convolution_swap(module, TpgenTensorProductScatter, options, held="tp")
            )
    yield from _find_modules_compiled_by_nequip(network)
    for where, find in _FURTHER.items():
        try:
            found = getattr(import_module(where), find)
        except ImportError as error:  # the modules of a version stand elsewhere: they stay or are as any of e3nn's
            version = getattr(import_module("nequip"), "__version__", "of no known version")
            why = f"of nequip {version}, where tpgen does not find all it swaps: {error}"
            first = next((m for m in network.modules() if type(m).__module__.startswith("nequip.")), network)
            yield KeptModule(first, why, general=True)
        else:
            yield from found(network, options)


def _find_modules_compiled_by_nequip(network: nn.Module) -> Iterator[KeptModule]:
    # a stock model that NequIP has compiled for training would run its program
    if not any(map(get_swap_mark, network.modules())):
        for module in network.modules():
            if getattr(module, "_compiled_cache", ({},))[0]:
                why = "a model that NequIP compiled at its first call, and goes on so: convert it before that call"
                yield KeptModule(module, why, general=True)


# What asks for modules that not all versions of NequIP have where these look for them.
_FURTHER = {
    "tpgen.networks.conversion.projects.nequip_types": "find_self_connection_swaps",
    "tpgen.networks.conversion.projects.nequip_scalars": "find_scalar_layer_swaps",
    "tpgen.networks.conversion.projects.nequip_edges": "find_nequip_edge_swaps",
}
