"""A small periodic potential on edges, right, and wrong as potentials in use have been."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CUTOFF = 2.5
Found = dict[str, Tensor]


def crystal(side: int = 2, spacing: float = 1.7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
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


def told(change):
    """A crystal whose results are changed after they were made."""
    return type("Told", (Crystal,), {"told": lambda self, found, cell: {**found, **change(found, cell)}})


def of(**methods):
    """A crystal with other methods."""
    return type("Other", (Crystal,), methods)


def _also(term):
    """A crystal with a further energy, of itself, the edges, their ends, the species and the points."""
    right = Crystal.energy
    return of(energy=lambda self, *given: right(self, *given) + term(self, *given))


class Counting(Crystal):
    """After six calls, another energy."""

    calls = 0

    def energy(self, *given):
        self.calls += 1
        return super().energy(*given) + 1e-3 * (self.calls > 6)


class Cached(Crystal):
    """Keeps what it made of its first arguments, under a key that others have as well."""

    held: tuple | None = None

    def key(self, edges, ends):
        raise NotImplementedError

    def energy(self, edges, ends, species, x):
        if self.held is None or self.held[0] != self.key(edges, ends):
            self.held = (self.key(edges, ends), edges.detach().clone(), ends.clone(), species.clone())
        return super().energy(edges, ends, species, x) + self.further(*self.held[1:])

    def further(self, edges, ends, species):
        return 1e-3 * edges.norm(dim=-1).sum()


class ByShape(Cached):
    def key(self, edges, ends):
        return edges.shape


class ByAddress(Cached):
    def key(self, edges, ends):
        return ends.data_ptr()

    def further(self, edges, ends, species):
        return 1e-3 * self.depth[species[ends[0]]].sum()


class ByNumberOfAtoms(Cached):
    """The species of the first system of so many atoms."""

    def key(self, edges, ends):
        return int(ends.max())

    def further(self, edges, ends, species):
        return 1e-3 * self.depth[species[:3]].sum()


class RunningMean(Crystal):
    """Energies relative to a mean that every call moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def energy(self, *given):
        found = super().energy(*given)
        self.mean.mul_(0.9).add_(0.1 * found.detach())
        return found - self.mean


class OneResult(Crystal):
    """Forces in memory that the next call writes to."""

    held: Tensor | None = None

    def told(self, found, cell):
        with torch.no_grad():
            self.held = found["forces"].clone() if self.held is None else self.held.copy_(found["forces"])
        return {**found, "forces": self.held}


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


class Dropping(Crystal):
    def well(self, r):
        return functional.dropout(super().well(r), 0.1, training=True)


class Further(Crystal):
    """With a further parameter."""

    def __init__(self):
        super().__init__()
        self.tiny = nn.Parameter(torch.tensor(1.0))


class Tiny(Further):
    """A parameter that matters little, and has no gradient."""

    def well(self, r):
        return super().well(r) * (1 + 1e-9 * self.tiny.detach())


class Data(Further):
    """A parameter that is read as ``.data``."""

    def energy(self, *given):
        return super().energy(*given) * self.tiny.data


class ForcesWithout(Further):
    """A parameter that the energy has a gradient of, and the forces have none."""

    def told(self, found, cell):
        return {**found, "energy": found["energy"] * self.tiny, "forces": found["forces"] * self.tiny.detach()}


class Numbers(Further):
    """A parameter that goes through a Python number."""

    def energy(self, *given):
        return super().energy(*given) + 1e-3 * float(self.tiny.detach()) * self.width


class HalfDetached(Crystal):
    """Part of what depends on a parameter has no gradient."""

    def well(self, r):
        return super().well(r) + 1e-3 * torch.exp(-self.width.detach() * r)


def _by_order(self, edges, ends, species, x):
    return 1e-2 * (torch.linspace(0, 1, len(edges)).to(edges) * torch.exp(-edges.norm(dim=-1))).sum()


def _uneven(ends, x):
    return 1 - 1e-3 * (ends[0] < ends[1]).to(x).unsqueeze(-1)


def _compiled():
    return 1.001 if torch.compiler.is_compiling() else 1.0


def _vector_relu(self, edges, ends, species, x):
    return 1e-2 * torch.relu(edges).sum()


FAULTS: dict[str, tuple[str, type[Crystal]]] = {
    "a stress twice as large": ("stress", told(lambda f, c: {"stress": 2 * f["stress"]})),
    "a stress of the other sign": ("stress", told(lambda f, c: {"stress": -f["stress"]})),
    "a pressure added to the stress": (
        "stress", told(lambda f, c: {"stress": f["stress"] + 0.01 * torch.eye(3).to(c) * f["energy"]})),
    "a stress not divided by the volume": (
        "stress", told(lambda f, c: {"stress": f["stress"] * torch.linalg.det(c)})),
    "a stress that is not symmetric": (
        "stress", told(lambda f, c: {"stress": f["stress"] + 1e-4 * torch.linalg.cross(c, c.roll(1, 0))})),
    "a stress of half the off-diagonal": (
        "stress", told(lambda f, c: {"stress": 0.5 * (f["stress"] + f["stress"].diagonal().diag())})),
    "shifts that are not strained": ("stress", of(strained=lambda self, shifts, strain: torch.zeros_like(shifts))),
    "forces of the other sign": ("forces", told(lambda f, c: {"forces": -f["forces"]})),
    "the force of one atom": (
        "forces", told(lambda f, c: {"forces": torch.cat([f["forces"][:-1], 1.01 * f["forces"][-1:]])})),
    "forces without their mean, and a drift": (
        "forces", told(lambda f, c: {"forces": f["forces"] - f["forces"].mean(0) + 1e-4})),
    "forces a little too large": ("forces", told(lambda f, c: {"forces": f["forces"] * (1 + 3e-7)})),
    "forces through float32": ("forces", told(lambda f, c: {"forces": (f["forces"] * 3).float().double() / 3.0000003})),
    "a well in float32": ("forces", of(well=lambda self, r: Crystal.well(self, r.float()).to(r.dtype))),
    "a length that is detached": (
        "forces", of(well=lambda self, r: torch.exp(-self.width * r.detach() ** 2))),
    "a cutoff with a step": ("smooth", of(cutoff=lambda self, u: torch.where(u < 1, 1 - 0.9 * u**2, 0 * u))),
    "a cutoff with a kink": ("smooth", of(cutoff=lambda self, u: torch.where(u < 1, 1 - u, 0 * u))),
    "a cosine that ends too early": (
        "smooth", of(cutoff=lambda self, u: torch.where(u < 0.95, torch.cos(0.5 * torch.pi * u), 0 * u))),
    "a table of distances": ("forces", of(well=lambda self, r: torch.exp(-self.width * torch.round(100 * r) / 100))),
    "another energy after six calls": ("history", Counting),
    "a cache by shapes": ("history", ByShape),
    "a cache by addresses": ("history", ByAddress),
    "a cache by the number of atoms": ("history", ByNumberOfAtoms),
    "a mean that runs on": ("history", RunningMean),
    "a result that the next call overwrites": ("history", OneResult),
    "positions of the caller that are wrapped": ("history", Wrapping),
    "shifts of the caller that are scaled": ("history", Scaling),
    "dropout that is left on": ("repeated", lambda: Dropping().eval()),
    "noise of some last bits": (
        "repeated", of(energy=lambda self, *g: Crystal.energy(self, *g) * (1 + 1e-13 * torch.rand(()).double()))),
    "a small parameter without gradient": ("parameters", Tiny),
    "a parameter read as data": ("parameters", Data),
    "forces without the gradient of a parameter": ("parameters", ForcesWithout),
    "a parameter through a number": ("parameters", Numbers),
    "a parameter half detached": ("first order", HalfDetached),
    "an energy of places": ("translation", _also(lambda s, e, n, z, x: 1e-7 * torch.tanh(1e-3 * x.sum()))),
    "an energy of the height": ("equivariant", _also(lambda s, e, n, z, x: 1e-3 * e[:, 2].square().sum())),
    "relu of vectors": ("equivariant", _also(_vector_relu)),
    "an energy of a mirror image": (
        "equivariant", _also(lambda s, e, n, z, x: 1e-3 * torch.linalg.det(e[:3] / CUTOFF))),
    "the first atom twice": ("permutation", _also(lambda s, e, n, z, x: 1e-2 * (x[0] - x[-1]).square().sum())),
    "the first edge twice": ("edges", _also(lambda s, e, n, z, x: 1e-2 * torch.exp(-e[0].square().sum()))),
    "neighbours by the order of edges": (
        "edges", _also(_by_order)),
    "shifts a little too short": (
        "images", of(edges=lambda self, x, shifts, ends: x[ends[1]] - x[ends[0]] + 0.999 * shifts)),
    "a shift at the wrong end of some edges": (
        "images", of(edges=lambda self, x, shifts, ends: x[ends[1]] - x[ends[0]] + shifts * _uneven(ends, x))),
    "another energy when compiled": ("compiled", of(well=lambda self, r: Crystal.well(self, r) * _compiled())),
}  # fmt: skip

UNSEEN: dict[str, type[Crystal]] = {  # what no law can see: these are right potentials of another system
    "species by one off": of(energy=lambda self, e, n, z, x: Crystal.energy(self, e, n, (z + 1) % 3, x)),
    "another unit": of(energy=lambda self, *given: 27.2 * Crystal.energy(self, *given)),
}


# --- unusual, and right -----------------------------------------------------------------------------------------------


class Unused(Further):
    """A parameter that nothing depends on."""


class Dead(Further):
    """A parameter behind a ReLU that is off."""

    def energy(self, *given):
        return super().energy(*given) + torch.relu(-5.0 - self.tiny.square())


class Flat(Further):
    """A parameter at a point where its slope is zero."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.tiny)

    def energy(self, *given):
        return super().energy(*given) * (1 + self.tiny.square())


class Evaluated(Crystal):
    """Results without a graph, as in dynamics."""

    def told(self, found, cell):
        return {name: y.detach() for name, y in found.items()}


class Remembering(Crystal):
    """A cache that is asked whether it is still right."""

    held: tuple | None = None

    def energy(self, edges, ends, species, x):
        if self.held is None or not torch.equal(self.held[0], species):
            self.held = (species.clone(), species.bincount(minlength=3).double())
        return super().energy(edges, ends, species, x) + (1e-3 * self.held[1].to(edges) * self.depth).sum()


class Observed(Crystal):
    """A count of calls and a mean of energies, which nothing reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def energy(self, *given):
        self.calls += 1
        return super().energy(*given)


class Frozen(Crystal):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Empty(Crystal):
    """With a parameter without entries."""

    def __init__(self):
        super().__init__()
        self.none = nn.Parameter(torch.empty(0))


AWKWARD: dict[str, Callable[[], Crystal]] = {
    "right": Crystal,
    "a parameter that nothing depends on": Unused,
    "a parameter behind a ReLU that is off": Dead,
    "a parameter of slope zero": Flat,
    "results without a graph, in evaluation": lambda: Evaluated().eval(),
    "a cache that is asked": Remembering,
    "a count that nothing reads": Observed,
    "frozen parameters": Frozen,
    "a parameter without entries": Empty,
    "a large energy of atoms alone": _also(lambda s, e, n, z, x: 1250.0 * len(z)),
    "a virial in the place of a stress": of(
        told=lambda self, f, cell: {
            "energy": f["energy"], "forces": f["forces"], "virials": -f["stress"] * torch.linalg.det(cell).abs()
        }
    ),
    "stresses of a batch": told(lambda f, c: {"stress": f["stress"].unsqueeze(0)}),
}  # fmt: skip
