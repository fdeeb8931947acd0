"""NequIP's radial networks: their last layer makes the weights of edges, on memory that was used before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nequip.nn.mlp import ScalarLinearLayer, ScalarMLPFunction
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tpgen.conversion.obstacles import replaced
from tpgen.conversion.swap import Finding, Kept, Swap, mark_of
from tpgen.nn.matmul import matmul


class TpgenScalarLinearLayer(ScalarLinearLayer):
    """NequIP's layer without biases."""

    def forward(self, input: Tensor) -> Tensor:
        """As NequIP's."""
        return matmul(input, self.weight * self.alpha)


def scalar_layers(network: nn.Module, options: dict[str, Any]) -> Iterator[Finding]:
    """Swaps of the layers that have more outputs than inputs, at the end of a net."""
    nets: list[Any] = [
        m for m in network.modules() if type(m) is ScalarMLPFunction and isinstance(m.mlp, nn.Sequential)
    ]
    for layer in (net.mlp[-1] for net in nets):
        if type(layer) is not ScalarLinearLayer or layer.bias is not None or mark_of(layer) is not None:
            continue
        if layer.out_features > layer.in_features and not parametrize.is_parametrized(layer):
            why = replaced(layer)
            now = "tpgen product (memory used again)"
            yield Kept(layer, why) if why else Swap(layer, TpgenScalarLinearLayer, now)
