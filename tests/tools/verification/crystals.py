"""A small periodic potential on edges, right, and wrong as potentials in use have been."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tools.verification.planted import Given, Planted, changed
from tpgen.tools.verification.verify import LAWS

CUTOFF = 2.5
Found = dict[str, Tensor]


def crystal(side: int = 2, spacing: float = 1.7, dtype: torch.dtype = torch.float64) -> Given:
    """Positions, cell, shifts, ends of all edges shorter than the cutoff, and species."""
    made = torch.Generator().manual_seed(1)
    places = torch.cartesian_prod(*[torch.arange(side)] * 3).double()
    positions = spacing * places + 0.1 * torch.randn(places.shape, generator=made, dtype=torch.float64)
    cell = side * spacing * torch.eye(3, dtype=torch.float64)
    shifts = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]).double()] * 3) @ cell
    lengths = (positions[None, :, None] - positions[:, None, None] + shifts).norm(dim=-1)
    source, target, image = ((lengths < CUTOFF) & (lengths > 1e-6)).nonzero().T
    species = torch.randint(3, (len(positions),), generator=made)
    return positions.to(dtype), cell.to(dtype), shifts[image].to(dtype), torch.stack([source, target]), species


class Crystal(nn.Module):
    """Gaussians of edges with a depth for each species; forces and stress by one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.3, 0.7, 0.4]))
        self.width = nn.Parameter(torch.tensor(0.8))

    def forward(self, positions: Tensor, cell: Tensor, shifts: Tensor, edge_index: Tensor, species: Tensor) -> Found:
        with torch.enable_grad():
            x = positions if positions.requires_grad else positions.detach().requires_grad_()
            strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
            bent = 0.5 * (strain + strain.T)
            edges = self.edges(x + x @ bent, shifts + self.strained(shifts, bent), edge_index)
            energy = self.energy(edges, edge_index, species, x)
            slope, by_strain = torch.autograd.grad(energy, [x, strain], create_graph=True)
        volume = torch.linalg.det(cell).abs()
        return self.told({"energy": energy, "forces": -slope, "stress": by_strain / volume}, cell)

    def strained(self, shifts: Tensor, strain: Tensor) -> Tensor:
        return shifts @ strain

    def edges(self, x: Tensor, shifts: Tensor, ends: Tensor) -> Tensor:
        return x[ends[1]] - x[ends[0]] + shifts

    def energy(self, edges: Tensor, ends: Tensor, species: Tensor, x: Tensor) -> Tensor:
        r = edges.norm(dim=-1)
        depth = self.depth[species]
        return 0.5 * (depth[ends[0]] * depth[ends[1]] * self.well(r) * self.cutoff(r / CUTOFF)).sum()

    def well(self, r: Tensor) -> Tensor:
        return torch.exp(-self.width * r**2)

    def cutoff(self, u: Tensor) -> Tensor:
        return torch.where(u < 1, (1 - u**2) ** 3, torch.zeros_like(u))

    def told(self, found: Found, cell: Tensor) -> Found:
        return found


of = partial(changed, Crystal)


def told(change: Any) -> type[Crystal]:
    """A crystal whose results are changed after they were made."""
    return of(told=lambda self, found, cell: {**found, **change(found, cell)})


def also(term: Any) -> type[Crystal]:
    """A crystal with a further energy, of itself, the edges, their ends, the species and the points."""
    return of(energy=lambda self, *given: Crystal.energy(self, *given) + term(self, *given))


class Further(Crystal):
    """With a further parameter."""

    def __init__(self, value: Any = 1.0) -> None:
        super().__init__()
        self.tiny = nn.Parameter(torch.tensor(value))


further = partial(changed, Further)


class Stateful(Crystal):
    """With two buffers, which calls may write to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))


class Cached(Crystal):
    """Keeps what it made of its first arguments, under a key that others have as well."""

    held: tuple | None = None

    def key(self, edges: Tensor, ends: Tensor) -> Any:
        raise NotImplementedError

    def energy(self, edges: Tensor, ends: Tensor, species: Tensor, x: Tensor) -> Tensor:
        if self.held is None or self.held[0] != self.key(edges, ends):
            self.held = (self.key(edges, ends), edges.detach().clone(), ends.clone(), species.clone())
        return super().energy(edges, ends, species, x) + 1e-3 * self.further(*self.held[1:])

    def further(self, edges: Tensor, ends: Tensor, species: Tensor) -> Tensor:
        return self.depth[species[ends[0]]].sum()


cached = partial(changed, Cached)


class Wrapping(Crystal):
    """Brings the positions of its caller into the cell."""

    def forward(self, positions, cell, *rest):
        with torch.no_grad():
            positions[0] += cell[0]
        return super().forward(positions, cell, *rest)


class Scaling(Crystal):
    """Shifts in cells, made in place out of those in space."""

    def forward(self, positions, cell, shifts, *rest):
        with torch.no_grad():
            shifts.mul_(1.0 + 1e-9)
        return super().forward(positions, cell, shifts, *rest)


class Remembering(Crystal):
    """A cache that is asked whether it is still right."""

    held: tuple | None = None

    def energy(self, edges, ends, species, x):
        if self.held is None or not torch.equal(self.held[0], species):
            self.held = (species.clone(), species.bincount(minlength=3).double())
        return super().energy(edges, ends, species, x) + (1e-3 * self.held[1].to(edges) * self.depth).sum()


def _later(self: Any, *given: Tensor) -> Tensor:
    self.calls += 1
    return Crystal.energy(self, *given) + 1e-3 * (self.calls > 6)


def _relative_to_mean(self: Stateful, *given: Tensor) -> Tensor:
    found = Crystal.energy(self, *given)
    self.mean.mul_(0.9).add_(0.1 * found.detach())
    return found - self.mean


def _counted(self: Stateful, *given: Tensor) -> Tensor:
    self.calls += 1
    return Crystal.energy(self, *given)


def _one_result(self: Crystal, found: Found, cell: Tensor) -> Found:
    """Forces in memory that the next call writes to."""
    with torch.no_grad():
        self.held = self.held.copy_(found["forces"]) if hasattr(self, "held") else found["forces"].clone()
    return {**found, "forces": self.held}


def _without_forces(self: Further, found: Found, cell: Tensor) -> Found:
    return {**found, "energy": found["energy"] * self.tiny, "forces": found["forces"] * self.tiny.detach()}


def _half_detached(self: Crystal, r: Tensor) -> Tensor:
    return Crystal.well(self, r) + 1e-3 * torch.exp(-self.width.detach() * r)


def _by_order(self, edges, ends, species, x):
    return 1e-2 * (torch.linspace(0, 1, len(edges)).to(edges) * torch.exp(-edges.norm(dim=-1))).sum()


def _uneven(ends, x):
    return 1 - 1e-3 * (ends[0] < ends[1]).to(x).unsqueeze(-1)


def _compiled():
    return 1.001 if torch.compiler.is_compiling() else 1.0


def _vector_relu(self, edges, ends, species, x):
    return 1e-2 * torch.relu(edges).sum()


def _fault(law: str, made: Any, **more: Any) -> Planted:
    return Planted(law, made, crystal, **more)


def _right(made: Any, **more: Any) -> Planted:
    return Planted([*LAWS], made, crystal, **more)


FAULTS: dict[str, Planted] = {
    "a stress twice as large": _fault("stress", told(lambda f, c: {"stress": 2 * f["stress"]})),
    "a stress of the other sign": _fault("stress", told(lambda f, c: {"stress": -f["stress"]})),
    "a pressure added to the stress": _fault(
        "stress", told(lambda f, c: {"stress": f["stress"] + 0.01 * torch.eye(3).to(c) * f["energy"]})),
    "a stress not divided by the volume": _fault(
        "stress", told(lambda f, c: {"stress": f["stress"] * torch.linalg.det(c)})),
    "a virial of the other sign beside a stress": _fault(
        "stress", told(lambda f, c: {"virials": f["stress"] * torch.linalg.det(c).abs()}), part="virials"),
    "a stress that is not symmetric": _fault(
        "stress", told(lambda f, c: {"stress": f["stress"] + 1e-4 * torch.linalg.cross(c, c.roll(1, 0))})),
    "a stress of half the off-diagonal": _fault(
        "stress", told(lambda f, c: {"stress": 0.5 * (f["stress"] + f["stress"].diagonal().diag())})),
    "shifts that are not strained": _fault(
        "stress", of(strained=lambda self, shifts, strain: torch.zeros_like(shifts))),
    "forces of the other sign": _fault("forces", told(lambda f, c: {"forces": -f["forces"]})),
    "the force of one atom": _fault(
        "forces", told(lambda f, c: {"forces": torch.cat([f["forces"][:-1], 1.01 * f["forces"][-1:]])})),
    "forces without their mean, and a drift": _fault(
        "forces", told(lambda f, c: {"forces": f["forces"] - f["forces"].mean(0) + 1e-4})),
    "forces a little too large": _fault("forces", told(lambda f, c: {"forces": f["forces"] * (1 + 3e-7)})),
    "forces through float32": _fault(
        "forces", told(lambda f, c: {"forces": (f["forces"] * 3).float().double() / 3.0000003})),
    "a well in float32": _fault("forces", of(well=lambda self, r: Crystal.well(self, r.float()).to(r.dtype))),
    "a length that is detached": _fault(
        "forces", of(well=lambda self, r: torch.exp(-self.width * r.detach() ** 2))),
    "a cutoff with a step": _fault("smooth", of(cutoff=lambda self, u: torch.where(u < 1, 1 - 0.9 * u**2, 0 * u))),
    "a cutoff with a kink": _fault("smooth", of(cutoff=lambda self, u: torch.where(u < 1, 1 - u, 0 * u))),
    "a cosine that ends too early": _fault(
        "smooth", of(cutoff=lambda self, u: torch.where(u < 0.95, torch.cos(0.5 * torch.pi * u), 0 * u))),
    "a table of distances": _fault(
        "forces", of(well=lambda self, r: torch.exp(-self.width * torch.round(100 * r) / 100))),
    "another energy after six calls": _fault("history", of(calls=0, energy=_later)),
    "a cache by shapes": _fault("history", cached(
        key=lambda self, edges, ends: edges.shape, further=lambda self, edges, *rest: edges.norm(dim=-1).sum())),
    "a cache by addresses": _fault("history", cached(key=lambda self, edges, ends: ends.data_ptr())),
    "a cache by the number of atoms": _fault("history", cached(
        key=lambda self, edges, ends: int(ends.max()), further=lambda self, e, n, z: self.depth[z[:3]].sum())),
    "a mean that runs on": _fault("history", changed(Stateful, energy=_relative_to_mean)),
    "a result that the next call overwrites": _fault("history", of(told=_one_result)),
    "positions of the caller that are wrapped": _fault("history", Wrapping),
    "shifts of the caller that are scaled": _fault("history", Scaling),
    "dropout that is left on": _fault("repeated", of(
        well=lambda self, r: functional.dropout(Crystal.well(self, r), 0.1, training=True)), training=False),
    "noise of some last bits": _fault(
        "repeated", of(energy=lambda self, *g: Crystal.energy(self, *g) * (1 + 1e-13 * torch.rand(()).double()))),
    "a small parameter without gradient": _fault("parameters", further(
        well=lambda self, r: Crystal.well(self, r) * (1 + 1e-9 * self.tiny.detach()))),
    "a parameter read as data": _fault("parameters", further(
        energy=lambda self, *given: Crystal.energy(self, *given) * self.tiny.data)),
    "forces without the gradient of a parameter": _fault("parameters", further(told=_without_forces)),
    "a parameter through a number": _fault("parameters", further(energy=lambda self, *given: (
        Crystal.energy(self, *given) + 1e-3 * float(self.tiny.detach()) * self.width))),
    "a parameter half detached": _fault("first order", of(well=_half_detached)),
    "an energy of places": _fault("translation", also(lambda s, e, n, z, x: 1e-7 * torch.tanh(1e-3 * x.sum()))),
    "an energy of the height": _fault("equivariant", also(lambda s, e, n, z, x: 1e-3 * e[:, 2].square().sum())),
    "relu of vectors": _fault("equivariant", also(_vector_relu)),
    "an energy of a mirror image": _fault(
        "equivariant", also(lambda s, e, n, z, x: 1e-3 * torch.linalg.det(e[:3] / CUTOFF))),
    "the first atom twice": _fault("permutation", also(lambda s, e, n, z, x: 1e-2 * (x[0] - x[-1]).square().sum())),
    "the first edge twice": _fault("edges", also(lambda s, e, n, z, x: 1e-2 * torch.exp(-e[0].square().sum()))),
    "neighbours by the order of edges": _fault(
        "edges", also(_by_order)),
    "shifts a little too short": _fault(
        "images", of(edges=lambda self, x, shifts, ends: x[ends[1]] - x[ends[0]] + 0.999 * shifts)),
    "a shift at the wrong end of some edges": _fault(
        "images", of(edges=lambda self, x, shifts, ends: x[ends[1]] - x[ends[0]] + shifts * _uneven(ends, x))),
    "another energy when compiled": _fault("compiled", of(well=lambda self, r: Crystal.well(self, r) * _compiled())),
}  # fmt: skip

UNSEEN: dict[str, Planted] = {  # what no law can see: these are right potentials of another system
    "species by one off": _right(of(energy=lambda self, e, n, z, x: Crystal.energy(self, e, n, (z + 1) % 3, x))),
    "another unit": _right(of(energy=lambda self, *given: 27.2 * Crystal.energy(self, *given))),
}

# --- unusual, and right -----------------------------------------------------------------------------------------------

AWKWARD: dict[str, Planted] = {
    "right": _right(Crystal),
    "a parameter that nothing depends on": _right(Further),
    "a parameter behind a ReLU that is off": _right(further(
        energy=lambda self, *given: Crystal.energy(self, *given) + torch.relu(-5.0 - self.tiny.square()))),
    "a parameter of slope zero": _right(lambda: further(
        energy=lambda self, *given: Crystal.energy(self, *given) * (1 + self.tiny.square()))(0.0)),
    "results without a graph, in evaluation": _right(
        told(lambda f, c: {name: y.detach() for name, y in f.items()}), training=False),
    "a cache that is asked": _right(Remembering),
    "a count that nothing reads": _right(changed(Stateful, energy=_counted)),
    "frozen parameters": _right(lambda: Crystal().requires_grad_(False)),
    "a parameter without entries": _right(lambda: Further([])),
    "a large energy of atoms alone": _right(also(lambda s, e, n, z, x: 1250.0 * len(z))),
    "a virial in the place of a stress": _right(of(told=lambda self, f, cell: {
        "energy": f["energy"], "forces": f["forces"], "virials": -f["stress"] * torch.linalg.det(cell).abs()})),
    "stresses of a batch": _right(told(lambda f, c: {"stress": f["stress"].unsqueeze(0)})),
}  # fmt: skip
