"""A potential leaves Python: a folder with its package and kernels, and a program in C++ that calls it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tpgen.deployment.deploy import deploy
from tpgen.deployment.example import build_example, run_example
from tpgen.nn.products import FullyConnectedTensorProduct


class PairEnergy(nn.Module):
    """Energy of points, each pair a product of vectors, and forces: ``forward(positions, edges)``."""

    def __init__(self) -> None:
        super().__init__()
        self.product = FullyConnectedTensorProduct("1x0e+1x1o", "1x0e+1x1o", "4x0e", strategy="kernel")

    def forward(self, positions: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            vectors = positions[edges[1]] - positions[edges[0]]
            lengths = vectors.norm(dim=1, keepdim=True)
            features = torch.cat([torch.exp(-lengths), vectors], 1)
            energy = self.product(features, features).tanh().sum()
            (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope


def example(points: int = 8) -> tuple[PairEnergy, list[Tensor]]:
    """The network in float64, with points and all their pairs, from one seed."""
    torch.manual_seed(0)
    pairs = torch.combinations(torch.arange(points)).T
    return PairEnergy().double(), [torch.randn(points, 3, dtype=torch.float64), torch.cat([pairs, pairs.flip(0)], 1)]


@dataclass(frozen=True)
class Called:
    """Results of a program in C++, how it was built, and how far they are from Python's, relative to the largest."""

    energy: float
    forces: Tensor
    apart: float
    command: tuple[str, ...]


def called_from_cpp(folder: Path) -> Called:
    """Deploy the example into a folder, in the place of an earlier one, build the C++ program there, and run it."""
    if (folder / "manifest.json").exists():
        shutil.rmtree(folder)
    network, given = example()
    deploy(network, given, folder)
    command = build_example(folder / "example.cpp", folder / "example")
    energy, forces = run_example(folder / "example", folder)
    wanted = [x.flatten() for x in network(*given)]
    apart = max(
        float((got - want).abs().max() / want.abs().max()) for got, want in zip((energy, forces), wanted, strict=True)
    )
    return Called(float(energy), forces.reshape(-1, 3), apart, tuple(command))
