"""NequIP's radial nets."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from nequip.nn.mlp import ScalarLinearLayer, ScalarMLPFunction
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tpgen.functions.silu import silu
from tpgen.networks.conversion.obstacles import allows_kernels, why_patched
from tpgen.networks.conversion.operations.matmul import matmul, why_no_matmul_kernel
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept


class TpgenScalarLinearLayer(ScalarLinearLayer):
    """NequIP's scalar layer without biases, by a kernel if large."""

    def forward(self, input: Tensor) -> Tensor:
        """``input @ (alpha * weight)`` as NequIP's layer."""
        if not torch.jit.is_scripting():
            return matmul(input, self.weight, self.alpha)
        return torch.mm(input, self.weight * self.alpha)


class TpgenSiLU(nn.SiLU):
    """SiLU in fewer passes than torch's."""

    def forward(self, input: Tensor) -> Tensor:
        """SiLU of ``input``, by `silu` unless scripted."""
        if not torch.jit.is_scripting():
            return silu(input)
        return nn.functional.silu(input)


def find_scalar_layer_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield a `ClassSwap` or `KeptModule` per widening last layer of a net, and per SiLU."""
    nets: list[Any] = [
        m for m in network.modules() if type(m) is ScalarMLPFunction and isinstance(m.mlp, nn.Sequential)
    ]
    for net in nets:
        layer, found = net.mlp[-1], [m for m in net.mlp if type(m) is nn.SiLU and not (m.inplace or why_patched(m))]
        if type(layer) is not ScalarLinearLayer or layer.out_features <= layer.in_features:
            continue
        if layer.bias is not None:
            yield KeptModule(layer, "of a radial layer with biases, which tpgen does not compute")
            continue
        if parametrize.is_parametrized(layer) or (why := why_patched(layer)):
            yield KeptModule(layer, why or "of a layer that is parametrised: convert first, then parametrise")
            continue
        if allows_kernels(options):
            yield ClassSwap(layer, TpgenScalarLinearLayer, _describe_scalar_layer_backend)
        yield from (
            ClassSwap(m, TpgenSiLU, _describe_silu_backend, {"_tpgen_like": (layer,)}) for m in found
        )  # no child: it has a place


def _describe_scalar_layer_backend(layer: nn.Module, _extra: Mapping[str, Any]) -> str:
    why = why_no_matmul_kernel(*layer.parameters())
    return f"torch product ({why})" if why else "tpgen product"


def _describe_silu_backend(_act: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    why = why_no_matmul_kernel(*swap_attributes["_tpgen_like"][0].parameters())
    return f"torch SiLU ({why})" if why else "tpgen SiLU (memory used again)"
