r"""A small potential of tpgen's products on e3nn's pieces, and alloys to train it on, made on the spot.

Messages are products of neighbours' features with spherical harmonics, weighted by the distance, as in NequIP:

.. math:: E = \sum_i e_{z_i} + \sigma \sum_i R(h_i), \qquad
    h'_i = \mathrm{gate}\Big( S_{z_i} h_i
    + \frac1{\sqrt n} \sum_{j \in N(i)} (L h_j) \otimes_{w(|r_{ij}|)} Y(r_{ij}) \Big)

Structures are cells of copper, palladium and gold, strained and shaken, whose energies and forces ASE's EMT gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.neighborlist import neighbor_list
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate
from torch import Tensor, nn

from tpgen import FullyConnectedTensorProduct, Linear, TensorProductConv, channelwise, convert

ELEMENTS = ("Cu", "Pd", "Au")
CUTOFF, BASIS, NEIGHBOURS = 5.0, 8, 42.0


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Structures side by side: an edge goes from an atom to a neighbour, which may stand in another cell."""

    positions: Tensor  # (atoms, 3)
    elements: Tensor  # (atoms, elements), one-hot
    edges: Tensor  # (2, edges)
    shifts: Tensor  # (edges, 3), to the cell of the neighbour
    structure: Tensor  # (atoms,), which structure an atom belongs to
    energy: Tensor  # (structures,)
    forces: Tensor  # (atoms, 3)

    def to(self, device: torch.device) -> Batch:
        return Batch(*(x.to(device) for x in vars(self).values()))


def structures(count: int, seed: int) -> list[Batch]:
    """Cells of eight atoms with their energies and forces; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [_structure(rng) for _ in range(count)]


def _structure(rng: np.random.Generator) -> Batch:
    atoms = bulk("Pd", cubic=True, a=3.95).repeat((2, 1, 1))
    atoms.symbols = [ELEMENTS[n] for n in rng.integers(len(ELEMENTS), size=len(atoms))]
    strain = np.eye(3) + 0.02 * rng.normal(size=(3, 3))
    atoms.set_cell(np.array(atoms.cell) @ strain, scale_atoms=True)
    atoms.positions += 0.08 * rng.normal(size=atoms.positions.shape)
    atoms.calc = EMT()
    source, target, cells = neighbor_list("ijS", atoms, CUTOFF)
    kinds = torch.tensor([ELEMENTS.index(symbol) for symbol in atoms.get_chemical_symbols()])
    return Batch(
        _float(atoms.positions),
        nn.functional.one_hot(kinds, len(ELEMENTS)).to(torch.get_default_dtype()),
        torch.from_numpy(np.stack([source, target])),
        _float(cells @ np.array(atoms.cell)),
        torch.zeros(len(atoms), dtype=torch.int64),
        _float(np.array([atoms.get_potential_energy()])),
        _float(atoms.get_forces()),
    )


def _float(x: np.ndarray) -> Tensor:
    return torch.tensor(x, dtype=torch.get_default_dtype())


def collated(parts: Sequence[Batch]) -> Batch:
    """Several structures as one batch."""
    starts = np.cumsum([0, *(len(part.positions) for part in parts)])
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("positions", "elements", "shifts")}
    return Batch(
        **joined,
        edges=torch.cat([part.edges + int(start) for part, start in zip(parts, starts, strict=False)], 1),
        structure=torch.cat([part.structure + n for n, part in enumerate(parts)]),
        energy=torch.cat([part.energy for part in parts]),
        forces=torch.cat([part.forces for part in parts]),
    )


# --- the network ------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Messages of neighbours, a self-connection that knows the element, a gate."""

    def __init__(self, irreps_in: o3.Irreps, irreps_sh: o3.Irreps, channels: int, strategy: str) -> None:
        super().__init__()
        reached = [ir for ir in irreps_sh if any(ir.ir in a.ir * b.ir for a in irreps_in for b in irreps_sh)]
        tensors = o3.Irreps([(channels, ir.ir) for ir in reached if ir.ir.l > 0])
        gates = o3.Irreps(f"{tensors.num_irreps}x0e")
        self.gate = Gate(f"{channels}x0e", [nn.functional.silu], gates, [torch.sigmoid], tensors)
        plan = channelwise(irreps_in, irreps_sh, self.gate.irreps_in)
        self.up = Linear(irreps_in, irreps_in, strategy=strategy)
        self.message = TensorProductConv.from_plan(plan, strategy=strategy)
        self.radial = FullyConnectedNet([BASIS, 32, self.message.weight_numel], nn.functional.silu)
        self.down = Linear(plan.irreps_out, self.gate.irreps_in, strategy=strategy)
        self.self_connection = FullyConnectedTensorProduct(
            irreps_in, f"{len(ELEMENTS)}x0e", self.gate.irreps_in, strategy=strategy
        )

    def forward(self, h: Tensor, batch: Batch, harmonics: Tensor, basis: Tensor) -> Tensor:
        target, source = batch.edges
        messages = self.message(self.up(h), harmonics, self.radial(basis), source, target, num_nodes=len(h))
        return self.gate(self.down(messages / NEIGHBOURS**0.5) + self.self_connection(h, batch.elements))


class Potential(nn.Module):
    """Energy of each structure and forces on each atom."""

    def __init__(self, channels: int = 16, layers: int = 2, lmax: int = 1, strategy: str = "auto") -> None:
        super().__init__()
        irreps_sh = o3.Irreps.spherical_harmonics(lmax)
        self.harmonics = o3.SphericalHarmonics(irreps_sh, normalize=True, normalization="component")
        self.embedding = Linear(f"{len(ELEMENTS)}x0e", f"{channels}x0e", strategy=strategy)
        self.layers, irreps = nn.ModuleList(), self.embedding.irreps_out
        for _ in range(layers):
            self.layers.append(Layer(irreps, irreps_sh, channels, strategy))
            irreps = self.layers[-1].gate.irreps_out
        self.readout = Linear(irreps, "0e", strategy=strategy)
        self.shifts = nn.Parameter(torch.zeros(len(ELEMENTS)))  # energy of an atom of each element alone
        self.register_buffer("scale", torch.ones(()))  # of what the network adds: the size of the forces
        convert(self, program=False)  # the same bits in each run: TorchScript, which e3nn's gates use, rounds otherwise

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            positions = batch.positions.detach().requires_grad_()
            energy = self._energy(positions, batch)
            (slope,) = torch.autograd.grad(energy.sum(), positions, create_graph=self.training)
        return energy, -slope

    def _energy(self, positions: Tensor, batch: Batch) -> Tensor:
        vectors = positions[batch.edges[1]] - positions[batch.edges[0]] + batch.shifts
        harmonics = self.harmonics(vectors)
        lengths = vectors.norm(dim=1)
        basis = soft_one_hot_linspace(lengths, 0.0, CUTOFF, BASIS, basis="smooth_finite", cutoff=True) * BASIS**0.5
        h = self.embedding(batch.elements)
        for layer in self.layers:
            h = layer(h, batch, harmonics, basis)
        of_atoms = self.scale * self.readout(h).squeeze(1).to(positions) + batch.elements @ self.shifts
        return of_atoms.new_zeros(len(batch.energy)).index_add(0, batch.structure, of_atoms)

    def start_from(self, data: Batch) -> None:
        """Set the energies of lone atoms and the scale to those that fit the data best."""
        counts = data.elements.new_zeros(len(data.energy), len(ELEMENTS)).index_add(0, data.structure, data.elements)
        with torch.no_grad():
            # in float64: the last digits of a solution may differ from run to run
            self.shifts.copy_(torch.linalg.lstsq(counts.double(), data.energy.double()).solution)
            self.scale.copy_(data.forces.square().mean().sqrt())
