"""A potential of e3nn's modules."""

# E = Σ_i e(h_i), with layers h'_i = S_{z_i} h_i + 1/n Σ_{j in N(i)} (L h_j) ⊗_{w(|r_ij|)} Y(r_ij)

from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tpgen.base.clock import TimedCall, Timing, time_in_turns
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.report import Conversion
from tpgen.networks.deployment.deploy import deploy
from tpgen.networks.deployment.example import build_example, run_example
from tpgen.networks.served import ready
from tpgen.nn.products import FullyConnectedTensorProduct
from tpgen.tools.verification.verify import Verification, verify

ELEMENTS, BASIS, CUTOFF, NEIGHBOURS = 4, 8, 2.0, 12.0


class Layer(nn.Module):
    """Message layer: sum over neighbours, and self-connection by element."""

    def __init__(self, irreps_in: o3.Irreps, harmonics: o3.Irreps, irreps_out: o3.Irreps) -> None:
        """Message layer from ``irreps_in`` to ``irreps_out``; ``harmonics`` are irreps of edges."""
        super().__init__()
        pairs = [(i, j, ir) for i, a in enumerate(irreps_in) for j, b in enumerate(harmonics) for ir in a.ir * b.ir]
        paths = [(i, j, ir) for i, j, ir in pairs if ir in {out.ir for out in irreps_out}]
        middle = o3.Irreps([(irreps_in[i].mul, ir) for i, _, ir in paths])
        uvu = [(i, j, k, "uvu", True) for k, (i, j, _) in enumerate(paths)]
        self.up = o3.Linear(irreps_in, irreps_in)
        self.message = o3.TensorProduct(irreps_in, harmonics, middle, uvu, shared_weights=False, internal_weights=False)
        self.radial = FullyConnectedNet([BASIS, 32, self.message.weight_numel], nn.functional.silu)
        self.down = o3.Linear(middle, irreps_out)
        self.self_connection = o3.FullyConnectedTensorProduct(irreps_in, f"{ELEMENTS}x0e", irreps_out)

    def forward(self, h: Tensor, elements: Tensor, harmonics: Tensor, basis: Tensor, edges: Tensor) -> Tensor:
        """New features of atoms, from features ``h``, elements, and harmonics and radial basis of edges."""
        messages = self.message(self.up(h)[edges[0]], harmonics, self.radial(basis))
        summed = messages.new_zeros(h.shape[0], messages.shape[1]).index_add(0, edges[1], messages) / NEIGHBOURS
        return self.down(summed) + self.self_connection(h, elements)


class Potential(nn.Module):
    """Interatomic potential of e3nn's modules, on one-hot elements."""

    def __init__(self, channels: int = 32, degree: int = 2) -> None:
        """Potential whose features are ``channels`` of each irrep up to l = ``degree``."""
        super().__init__()
        harmonics = o3.Irreps.spherical_harmonics(degree)
        hidden = o3.Irreps([(channels, ir) for _, ir in harmonics])
        self.harmonics = o3.SphericalHarmonics(harmonics, normalize=True, normalization="component")
        self.embedding = o3.Linear(f"{ELEMENTS}x0e", f"{channels}x0e")
        first, second = Layer(self.embedding.irreps_out, harmonics, hidden), Layer(hidden, harmonics, hidden)
        self.layers = nn.ModuleList([first, second])
        self.readout = o3.Linear(hidden, "0e")

    def forward(self, positions: Tensor, elements: Tensor, edges: Tensor) -> dict[str, Tensor]:
        """Total energy, and forces on atoms."""
        with torch.enable_grad():
            positions = positions if positions.requires_grad else positions.detach().requires_grad_()
            energy = self.energy(positions, elements, edges)
            (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return {"energy": energy, "forces": -slope}

    def energy(self, positions: Tensor, elements: Tensor, edges: Tensor) -> Tensor:
        """Total energy of atoms."""
        vectors = positions[edges[1]] - positions[edges[0]]
        harmonics, lengths = self.harmonics(vectors), vectors.norm(dim=1)
        basis = soft_one_hot_linspace(lengths, 0.0, CUTOFF, BASIS, basis="smooth_finite", cutoff=True) * BASIS**0.5
        h = self.embedding(elements)
        for layer in self.layers:
            h = layer(h, elements, harmonics, basis, edges)
        return self.readout(h).sum()


def atoms(side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of side³ atoms near a cubic lattice, one-hot elements, and edges."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*3 * [torch.arange(side)]).to(torch.get_default_dtype()).reshape(-1, 3)
    positions = grid + 0.1 * torch.randn(grid.shape, generator=generator)
    elements = torch.randint(ELEMENTS, (len(grid),), generator=generator)
    near = (torch.cdist(positions, positions) < CUTOFF).fill_diagonal_(False)
    return positions, nn.functional.one_hot(elements, ELEMENTS).to(positions), near.nonzero().T.contiguous()


def verify_potential(channels: int, laws: Sequence[str] | None) -> Verification:
    """Verify a converted potential: all laws, or those named."""
    torch.manual_seed(0)
    return verify(convert(Potential(channels)), atoms(2), only=laws)


def convert_potential(channels: int, degree: int) -> tuple[Potential, Potential, Conversion]:
    """An e3nn potential, its converted and checked copy, and the report."""
    torch.manual_seed(0)
    stock = Potential(channels, degree).eval()
    reports: list[Conversion] = []
    network = convert(deepcopy(stock), prove=atoms(2), report=reports.append)
    return stock, network, reports[0]


STOCK, KERNELS, PROGRAM = "e3nn", "tpgen.convert, first calls", "tpgen.convert, once its program is ready"


def time_potential(stock: Potential, network: Potential, side: int) -> dict[str, Timing]:
    """Time energies and forces of side³ atoms, stock and converted."""
    given = atoms(side)
    network(*given)
    ready(network)

    @bypassing_programs()
    def by_kernels() -> object:
        return network(*given)

    calls: dict[str, TimedCall] = {
        STOCK: partial(stock, *given),
        KERNELS: by_kernels,
        PROGRAM: partial(network, *given),
    }
    return time_in_turns(calls, "cpu", seconds=2.0, rounds=7)


class PairEnergy(nn.Module):
    """Small pair potential by one tensor product."""

    def __init__(self) -> None:
        super().__init__()
        self.product = FullyConnectedTensorProduct("1x0e+1x1o", "1x0e+1x1o", "4x0e", strategy="kernel")

    def forward(self, positions: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Total energy, and forces on points."""
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            vectors = positions[edges[1]] - positions[edges[0]]
            lengths = vectors.norm(dim=1, keepdim=True)
            features = torch.cat([torch.exp(-lengths), vectors], 1)
            energy = self.product(features, features).tanh().sum()
            (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope


def make_pair_energy_example(points: int = 8) -> tuple[PairEnergy, list[Tensor]]:
    """A float64 `PairEnergy`, with random points and all pairs."""
    torch.manual_seed(0)
    pairs = torch.combinations(torch.arange(points)).T
    return PairEnergy().double(), [torch.randn(points, 3, dtype=torch.float64), torch.cat([pairs, pairs.flip(0)], 1)]


def deploy_and_run_from_cpp(folder: Path) -> tuple[float, float, list[str]]:
    """Deploy `make_pair_energy_example`, then build and run the C++ program.

    Returns energy, largest relative difference from Python, and build command.
    """
    if (folder / "manifest.json").exists():
        shutil.rmtree(folder)
    network, given = make_pair_energy_example()
    deploy(network, given, folder)
    command = build_example(folder / "example.cpp", folder / "example")
    energy, forces = run_example(folder / "example", folder)
    wanted = [x.flatten() for x in network(*given)]
    apart = max(
        float((got - want).abs().max() / want.abs().max()) for got, want in zip((energy, forces), wanted, strict=True)
    )
    return float(energy), apart, command
