"""Small networks of e3nn's modules, to be attacked beside their converted copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

from tests.attacks.calls import Arguments, Subject
from tests.networks.conversion.networks import Mixed, mixed_inputs
from tests.networks.conversion.projects.mace_stand_in import Potential as StandIn
from tests.networks.conversion.projects.mace_stand_in import arguments
from tests.tools.verification.messages import Messages, skewed
from tpgen.tools.demo.potential import Potential, atoms


class Gated(nn.Module):
    """Harmonics of vectors, a net of their lengths, a product, a gate, and a linear layer with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = e3nn_nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        self.harmonics = o3.SphericalHarmonics([0, 1], True)
        self.product = o3.FullyConnectedTensorProduct("3x0e", "0e+1o", self.gate.irreps_in, shared_weights=False)
        self.radial = e3nn_nn.FullyConnectedNet([1, 8, self.product.weight_numel], nn.functional.silu)
        self.readout = o3.Linear(self.gate.irreps_out, "2x0e+1o", biases=True)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        weights = self.radial(vectors.square().sum(-1, keepdim=True))
        return self.readout(self.gate(self.product(x, self.harmonics(vectors), weights)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mixed": Mixed,
    "gated": Gated,
    "potential": lambda: Potential(channels=4),
    "messages": Messages,
    "stand-in of MACE": StandIn,
}
GIVEN: dict[str, Callable[[int], tuple[Any, ...]]] = {  # the arguments of a call of some size: no edge, one, several
    "mixed": lambda size: mixed_inputs(size),
    "gated": lambda size: (torch.randn(size, 3), torch.randn(size, 3)),
    "potential": lambda size: _first(size + 1),
    "messages": lambda size: _fewer(skewed(), size),
    "stand-in of MACE": lambda size: arguments(size + 1, 3 * size),
}


def _first(count: int) -> tuple[Tensor, ...]:
    """The first atoms of eight, with the edges between these."""
    positions, elements, edges = atoms(2)
    return positions[:count], elements[:count], edges[:, (edges < count).all(0)]


def _fewer(found: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    """A part of the edges."""
    positions, cell, units, ends, species = found
    return positions, cell, units[: size**2], ends[:, : size**2], species


@cache
def _made(name: str) -> nn.Module:
    """Made in double precision, so that stock's couplings are exact."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return NETWORKS[name]()
    finally:
        torch.set_default_dtype(before)


def _given(name: str, random: Random) -> Arguments:
    size = random.randrange(6)
    torch.manual_seed(random.randrange(2**31))
    return Arguments(GIVEN[name](size), size=size)


def subject(name: str) -> Subject:
    return Subject(name, lambda random: copy.deepcopy(_made(name)), lambda random: _given(name, random))
