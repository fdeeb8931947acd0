"""Every kind of module that a network is made of, with the tensors of a call of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tpgen.planner.presets import channelwise, fully_connected

LAYER, HARMONICS = "2x0e+2x1o", "0e+1o"


@dataclass(frozen=True)
class Kind:
    """Makes a module of a strategy; ``given`` draws the tensors of a call with so many rows, features first."""

    make: Callable[[str], nn.Module]
    given: Callable[[int], tuple[Tensor, ...]]
    strategies: tuple[str, ...] = ("kernel", "einsum", "grouped", "unrolled")


def _graph(nodes: int) -> tuple[Tensor, ...]:
    src, dst = torch.randint(nodes, (2, 2 * nodes))
    weights = channelwise(LAYER, HARMONICS, HARMONICS).weight_numel
    return torch.randn(nodes, 8), torch.randn(2 * nodes, 4), torch.randn(2 * nodes, weights), src, dst


class Stock(nn.Module):
    """e3nn's modules alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = o3.Linear(LAYER, LAYER)
        self.product = o3.FullyConnectedTensorProduct(LAYER, HARMONICS, LAYER)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.product(self.up(x), y)


def _converted(strategy: str) -> nn.Module:
    return tpgen.convert(Stock(), strategy=strategy)


KINDS: dict[str, Kind] = {
    "product": Kind(
        lambda s: tpgen.TensorProduct.from_plan(fully_connected(LAYER, HARMONICS, LAYER), strategy=s),
        lambda rows: (torch.randn(rows, 8), torch.randn(rows, 4)),
    ),
    "convolution": Kind(
        lambda s: tpgen.TensorProductConv.from_plan(channelwise(LAYER, HARMONICS, HARMONICS), strategy=s), _graph
    ),
    "linear layer": Kind(
        lambda s: tpgen.Linear(LAYER, LAYER, biases=True, strategy=s), lambda rows: (torch.randn(rows, 8),)
    ),
    "polynomial": Kind(
        lambda s: tpgen.Polynomial({"x": LAYER, "y": HARMONICS}, LAYER, [("x", "x", "y"), ("x",)], strategy=s),
        lambda rows: (torch.randn(rows, 8), torch.randn(rows, 4)),
        ("kernel", "einsum", "unrolled"),
    ),
    "contraction": Kind(
        lambda s: tpgen.SymmetricContraction(LAYER, LAYER, 2, num_elements=2, strategy=s),
        lambda rows: (torch.randn(rows, 2, 4), torch.randint(2, (rows,))),
        ("kernel", "einsum", "unrolled"),
    ),
    "converted network": Kind(_converted, lambda rows: (torch.randn(rows, 8), torch.randn(rows, 4))),
}
