"""A small potential with a convolution, a linear layer, a contraction and a product, and forces taken inside."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from tpgen.nn.conv import TensorProductConv
from tpgen.nn.linear import Linear
from tpgen.nn.products import FullyConnectedTensorProduct
from tpgen.nn.symmetric_contraction import SymmetricContraction
from tpgen.planner.presets import channelwise

HIDDEN = "4x0e+4x1o"
_OF_POLYNOMIALS = {"kernel": "kernel", "grouped": "einsum"}


class Energy(nn.Module):
    def __init__(self, strategy: str = "kernel") -> None:
        super().__init__()
        plan = channelwise("4x0e", "0e+1o", HIDDEN)
        self.embedding = nn.Linear(3, 4)
        self.conv = TensorProductConv.from_plan(plan, strategy=strategy)
        self.radial = nn.Sequential(nn.Linear(2, 6), nn.SiLU(), nn.Linear(6, plan.weight_numel, bias=False))
        self.linear = Linear(plan.irreps_out, HIDDEN, strategy=strategy)
        self.contraction = SymmetricContraction(HIDDEN, HIDDEN, 2, num_elements=3, strategy=_OF_POLYNOMIALS[strategy])
        self.readout = FullyConnectedTensorProduct(HIDDEN, HIDDEN, "1x0e", strategy=strategy)

    def forward(self, positions: Tensor, elements: Tensor, edges: Tensor) -> Tensor:
        vectors = positions[edges[1]] - positions[edges[0]]
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        harmonics = torch.cat([torch.ones_like(lengths), vectors / lengths], 1)
        weights = self.radial(torch.cat([lengths.cos(), lengths.sin()], 1))
        h = self.linear(self.conv(self.embedding(elements), harmonics, weights, edges[0], edges[1]))
        channels = torch.cat([h[:, :4].unflatten(1, (4, 1)), h[:, 4:].unflatten(1, (4, 3))], 2)
        return self.readout(h, self.contraction(channels, elements.argmax(1))).sum()


class Potential(nn.Module):
    def __init__(self, strategy: str = "kernel") -> None:
        super().__init__()
        self.energy = Energy(strategy)

    def forward(self, positions: Tensor, elements: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            energy = self.energy(positions, elements, edges)
            (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope


def inputs(atoms: int = 5) -> list[Tensor]:
    """Positions, elements and all pairs both ways, from one seed."""
    generator = torch.Generator().manual_seed(atoms)
    positions, elements = torch.randn(2, atoms, 3, generator=generator, dtype=torch.float64)
    pairs = torch.combinations(torch.arange(atoms)).T
    return [positions, elements, torch.cat([pairs, pairs.flip(0)], 1)]


def few(atoms: int, edges: int) -> list[Tensor]:
    """The first of these atoms and pairs."""
    positions, elements, pairs = inputs(max(atoms, 3))
    return [positions[:atoms], elements[:atoms], pairs[:, :edges]]


# an atom alone, none, atoms without neighbours, and an edge or two
FEW = [few(1, 0), few(0, 0), few(2, 0), few(5, 0), few(2, 1), few(5, 1), few(5, 2)]


def make() -> tuple[nn.Module, list[Tensor]]:
    """For ``tpgen deploy tests.networks.deployment.network:make``."""
    torch.manual_seed(0)
    return Potential().double(), inputs()


def products_of_rows(graph: fx.Graph) -> tuple[list[tuple], int]:
    """Sizes of torch's products of open rows with matrices that kernels take, and how many products kernels compute."""
    left = []
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        sizes = [n for x in node.args for n in x.meta["val"].shape]
        known = [n for n in sizes if type(n) is int]
        left += [tuple(sizes)] * (type(sizes[0]) is not int and min(known) >= 4)
    calls = graph.find_nodes(op="call_function", target=torch.ops.tpgen.form.default)
    return left, sum(node.args[3].startswith("x1 x2 w") for node in calls)
