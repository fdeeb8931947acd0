"""Classifier of eight tetris shapes."""

# layers: f'_i = gate(S f_i / √2 + Σ_{j in N(i)} f_j ⊗_{w(|r_ij|)} Y(r_ij) / √(2 n))

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate
from torch import Tensor, nn

from tpgen.base.clock import choose_clock, now

ProductClass = Callable[..., nn.Module]
E3NN_PRODUCT: ProductClass = o3.FullyConnectedTensorProduct

# four points each, on a grid of spacing one
SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "chiral": ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)),
    "mirrored": ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, -1, 0)),
    "square": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
    "line": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)),
    "corner": ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)),
    "L": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)),
    "T": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1)),
    "zigzag": ((0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)),
}
POINTS = 4
CUTOFF = 1.5  # neighbours: points at distance 1 and √2
NEIGHBOURS = 2.0  # a typical number of them
BASIS = 8  # functions of the distance
OUTPUT = "1x0o+6x0e"


@dataclass(frozen=True)
class Neighbours:
    """Ordered pairs of neighbours: ``vector`` goes from ``source`` to ``target``."""

    source: Tensor
    target: Tensor
    vector: Tensor


def shapes(generator: torch.Generator) -> Tensor:
    """Points of all shapes, rotated at random: ``(8 * 4, 3)``."""
    points = torch.tensor(list(SHAPES.values()), dtype=torch.get_default_dtype())
    turns = [o3.quaternion_to_matrix(nn.functional.normalize(q, dim=0)) for q in torch.randn(8, 4, generator=generator)]
    return torch.einsum("sij,spj->spi", torch.stack(turns).to(points), points).reshape(-1, 3)


def make_labels() -> Tensor:
    """Target outputs: an odd scalar for chiral shapes, one of six even scalars for others."""
    rows = torch.zeros(len(SHAPES), 7)
    rows[0, 0], rows[1, 0] = 1.0, -1.0
    rows[2:, 1:] = torch.eye(6)
    return rows


def find_neighbours(points: Tensor) -> Neighbours:
    """Pairs of near points within each shape."""
    shape = torch.arange(len(points)) // POINTS
    near = (torch.cdist(points, points) < CUTOFF) & (shape[:, None] == shape[None, :])
    source, target = torch.nonzero(near & ~torch.eye(len(points), dtype=torch.bool), as_tuple=True)
    return Neighbours(source, target, points[target] - points[source])


class Convolution(nn.Module):
    """Convolution with spherical harmonics and learned radial weights, and a self-connection."""

    def __init__(
        self, product_class: ProductClass, irreps_in: o3.Irreps, irreps_sh: o3.Irreps, irreps_out: o3.Irreps
    ) -> None:
        """Convolution by tensor products of ``product_class``."""
        super().__init__()
        self.message = product_class(irreps_in, irreps_sh, irreps_out, shared_weights=False, internal_weights=False)
        self.radial = FullyConnectedNet([BASIS, 16, self.message.weight_numel], nn.functional.silu)
        self.self_connection = product_class(irreps_in, "0e", irreps_out)

    def forward(self, f: Tensor, edges: Neighbours, harmonics: Tensor, basis: Tensor) -> Tensor:
        """Convolve features ``f`` of points; harmonics and radial basis are of edges."""
        messages = self.message(f[edges.source], harmonics, self.radial(basis))
        out = self.self_connection(f, f.new_ones(len(f), 1))
        return out.index_add(0, edges.target, messages / NEIGHBOURS**0.5) / 2**0.5  # two terms of like size


class Tetris(nn.Module):
    """Classifier of shapes: gated convolutions, and the mean over a shape's points."""

    def __init__(self, product_class: ProductClass, layers: int = 2, mul: int = 8, lmax: int = 2) -> None:
        """Network of tensor products of ``product_class``."""
        super().__init__()
        self.irreps_sh = o3.Irreps.spherical_harmonics(lmax)
        self.convolutions, self.gates = nn.ModuleList(), nn.ModuleList()
        irreps = o3.Irreps("0e")
        for _ in range(layers):
            gate = _make_gate(irreps, self.irreps_sh, mul, lmax)
            self.convolutions.append(Convolution(product_class, irreps, self.irreps_sh, gate.irreps_in))
            self.gates.append(gate)
            irreps = gate.irreps_out
        self.last = Convolution(product_class, irreps, self.irreps_sh, o3.Irreps(OUTPUT))

    def forward(self, points: Tensor) -> Tensor:
        """Seven scalars for each shape of four points."""
        edges = find_neighbours(points)
        harmonics = o3.spherical_harmonics(self.irreps_sh, edges.vector, normalize=True, normalization="component")
        length = edges.vector.norm(dim=1)
        basis = soft_one_hot_linspace(length, 0.0, CUTOFF, BASIS, basis="smooth_finite", cutoff=True) * BASIS**0.5
        f = points.new_ones(len(points), 1)
        for convolution, gate in zip(self.convolutions, self.gates, strict=True):
            f = gate(convolution(f, edges, harmonics, basis))
        return self.last(f, edges, harmonics, basis).unflatten(0, (-1, POINTS)).mean(1)


def _make_gate(irreps_in: o3.Irreps, irreps_sh: o3.Irreps, mul: int, lmax: int) -> Gate:
    reachable = {ir for _, ir1 in irreps_in for _, ir2 in irreps_sh for ir in ir1 * ir2 if ir.l <= lmax}
    scalars = o3.Irreps([(mul, ir) for ir in sorted(reachable) if ir.l == 0])
    tensors = o3.Irreps([(mul, ir) for ir in sorted(reachable) if ir.l > 0])
    activations = [nn.functional.silu if ir.p == 1 else torch.tanh for _, ir in scalars]
    return Gate(scalars, activations, o3.Irreps(f"{tensors.num_irreps}x0e"), [torch.sigmoid], tensors)


@dataclass(frozen=True)
class TrainingRun:
    """Loss, accuracy and seconds of each training step."""

    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...] = field(compare=False)

    @property
    def step_seconds(self) -> float:
        """Median seconds."""
        return median(self.seconds)

    @property
    def solved_step(self) -> int | None:
        """Step from which every shape is recognised, or None."""
        for step in range(len(self.accuracies)):
            if min(self.accuracies[step:]) == 1.0:
                return step
        return None


def train(model: Tetris, steps: int, seed: int = 0, watch: Callable[[int], Any] = lambda step: None) -> TrainingRun:
    """Train on the shapes; after each step measure accuracy on fresh rotations and call ``watch``."""
    generator = torch.Generator().manual_seed(seed)
    target = make_labels()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses, accuracies, seconds = [], [], []
    for step in range(steps):
        points, turned = shapes(generator), shapes(generator)
        read = choose_clock("cpu") if step else now  # products are compiled in the first, by other processes
        start = read("cpu")
        loss = (model(points) - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(read("cpu") - start)
        losses.append(loss.item())
        with torch.no_grad():
            accuracies.append((model(turned).round() == target).all(1).double().mean().item())
        watch(step)
    return TrainingRun(tuple(losses), tuple(accuracies), tuple(seconds))
