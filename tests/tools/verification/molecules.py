"""A small potential of molecules that finds its neighbours: right, and wrong in large, crowded or far systems."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.lattices import Lists, wide
from tests.tools.verification.planted import QUICK, Given, Planted, Potential, changed

CUTOFF, WIDTH = 3.0, 4


def molecules(sizes: tuple[int, ...] = (5, 4, 6), dtype: torch.dtype = torch.float32) -> Given:
    """Positions, species, and the molecule of each atom."""
    drawn = torch.Generator().manual_seed(3)
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 2, torch.arange(3.0))
    places = [1.1 * grid[:n] + 0.15 * torch.randn(n, 3, generator=drawn) for n in sizes]
    numbers = torch.arange(sum(sizes)) % 3
    return torch.cat(places).to(dtype), numbers, torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


class Molecule(Potential):
    """Vectors of neighbours, weighed by species and length; energies by their norms, forces by one gradient."""

    guard = 1e-8

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weigh = nn.Parameter(torch.randn(3, WIDTH))
        self.mix = nn.Parameter(torch.randn(WIDTH))
        self.alone = nn.Parameter(torch.tensor([-1.0, -2.0, 0.5]))

    def forward(self, positions: Tensor, species: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.of(positions, species, batch)

    def asked(self, positions: Tensor) -> Tensor:
        return positions.detach().clone().requires_grad_()

    def keeps(self) -> bool:
        return self.training

    def energy(self, x: Tensor, species: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return self.site(x, species, *self.neighbours(x.detach(), batch))

    def summed(self, energies: Tensor, species: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        return self.pooled(energies, batch)

    def told(self, energy: Tensor, forces: Tensor) -> tuple[Tensor, Tensor]:
        return energy, forces

    def near(self, x: Tensor, batch: Tensor, reach: float = CUTOFF) -> Tensor:
        near = ((x[:, None] - x).norm(dim=-1) < reach) & (batch[:, None] == batch)
        return near & ~torch.eye(len(x), dtype=torch.bool)

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.near(x, batch).nonzero(as_tuple=True)

    def lengths(self, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (x[j] - x[i]).norm(dim=-1)

    def site(self, x: Tensor, species: Tensor, i: Tensor, j: Tensor) -> Tensor:
        r = self.lengths(x, i, j)
        weights = self.weigh[species[j]] * (torch.where(r < CUTOFF, 1 - (r / CUTOFF) ** 2, 0.0) ** 4)[:, None]
        vectors = x.new_zeros(len(x), 3, WIDTH)
        vectors = vectors.index_add(0, i, (x[j] - x[i])[:, :, None] * weights[:, None])
        return self.alone[species] + torch.sqrt(vectors.square().sum(1) + self.guard) @ self.mix

    def pooled(self, site: Tensor, batch: Tensor) -> Tensor:
        return site.new_zeros(int(batch.max()) + 1).index_add(0, batch, site)


of = partial(changed, Molecule)


class First(Molecule):
    """At most 32 neighbours, the first ones."""

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        near = self.near(x, batch)
        return (near & (near.cumsum(1) <= 32)).nonzero(as_tuple=True)


class Chunks(Molecule):
    """Edges in chunks of 1,024; a last one that is not full is lost."""

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        i, j = super().neighbours(x, batch)
        whole = len(i) if len(i) < 1024 else len(i) // 1024 * 1024
        return i[:whole], j[:whole]


class Skin(Molecule):
    """Neighbours within a skin, kept until atoms have moved."""

    kept: Any = None

    def moved(self, steps: Tensor) -> Tensor:
        return steps.max()

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        same = self.kept is not None and torch.equal(self.kept[1], batch)
        if not same or self.moved((x - self.kept[0]).norm(dim=1)) > 0.4:
            self.kept = x.clone(), batch.clone(), self.near(x, batch, CUTOFF + 0.8).nonzero(as_tuple=True)
        return self.kept[2]


def _by_products(self: Molecule, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Lengths as matrix products give them."""
    squares = x.square().sum(1)
    return (squares[i] + squares[j] - 2 * (x[i] * x[j]).sum(1)).clamp(min=1e-6).sqrt()


class Keeping(Molecule):
    """Energies of a call stay, with their graph."""

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        self.last = super().forward(*given)
        return self.last


def _of_those_there(self: Molecule, site: Tensor, batch: Tensor) -> Tensor:
    """An energy for each molecule that has atoms."""
    number, place = batch.unique(return_inverse=True)
    return site.new_zeros(len(number)).index_add(0, place, site)


class Roomy(Molecule):
    """Atoms as many as there is room for, none of which is alone."""

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        i, j = super().neighbours(x, batch)
        if len(x) > 128 or len(i.unique()) < len(x):
            raise ValueError("too many atoms, or one alone")
        return i, j


class Edges(Molecule):
    """Edges are given, and a cutoff ends them only where the network says so."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.ends = ends

    def forward(self, positions: Tensor, species: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        i, j = edge_index
        r = self.lengths(positions, i, j)
        inside = (r < CUTOFF) | (not self.ends)
        pairs = self.weigh[species[j]].sum(1) * torch.where(inside, 1 - (r / CUTOFF) ** 2, 0.0) ** 4
        return (self.alone[species].sum() + pairs.sum()).reshape(1)


def with_edges() -> Given:
    positions, species, batch = molecules()
    return positions, species, torch.stack(Molecule().neighbours(positions, batch))


class Open(Lists):
    """Cells along the vectors that repeat."""

    def forward(self, positions: Tensor, cell: Tensor, species: Tensor, batch: Tensor, pbc: Tensor) -> dict:  # type: ignore[override]
        self.sides = pbc
        return super().forward(positions, cell, species, batch)

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ends, counts = super().found(positions, cell)
        kept = ((counts == 0) | self.sides).all(1)
        return ends[:, kept], counts[kept]


class Closed(Open):
    """Cells along all vectors, whatever is said."""

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return Lists.found(self, positions, cell)


def with_sides() -> Given:
    return *wide(), torch.ones(3, dtype=torch.bool)


SAID = {"irreps_out": ["energy", "forces"]}
SINGLE = {"dtype": torch.float32, "default": torch.float32}


def _planted(
    laws: Any, made: Any, part: str = "", why: str = "", given: Any = molecules, said: dict = SAID, **more: Any
) -> Planted:
    return Planted(laws, made, given, why, part, said=said, **{"training": False, **SINGLE, **more})


FAULTS: dict[str, Planted] = {
    "at most 32 neighbours": _planted("permutation", First, "of many neighbours"),
    "chunks of 1,024 edges": _planted("batch", Chunks, "many graphs"),
    "a list kept by the mean move": _planted(
        "history", changed(Skin, moved=lambda self, steps: steps.mean()), "one atom "),
    "lengths by matrix products": _planted("precision", of(lengths=_by_products), "far away"),
    "a norm without a guard": _planted("finite", of(guard=0.0), "an atom between two alike"),
    "forces without a graph in training": _planted(
        "parameters", of(told=lambda self, energy, forces: (energy, forces.detach())), "[1]", training=True),
    "a side that is said to be open": Planted("images", Closed, with_sides, part="an open side"),
}  # fmt: skip
TOLD: dict[str, Planted] = {
    "results with their graph": _planted("saved", Keeping, "copy after a call"),
    "graphs that have atoms": _planted("batch", of(pooled=_of_those_there), "a gap"),
    "one row of an embedding for two species": _planted("permutation", of(
        site=lambda self, x, species, *rest: Molecule.site(self, x, species.clamp(max=1), *rest)), "species"),
    "large energies": _planted("precision", of(
        site=lambda self, *given: Molecule.site(self, *given) - 20_000.0), "differences of energies"),
    "no cutoff of given edges": _planted(
        "smooth", lambda: Edges(False), "long edges", "no cutoff ends them", with_edges, {"irreps_out": ["energy"]}),
}  # fmt: skip
RIGHT: dict[str, Planted] = {
    "a side that is open": Planted("images", Open, with_sides),
    "a cutoff of given edges": _planted(
        "smooth", lambda: Edges(True), given=with_edges, said={"irreps_out": ["energy"]}),
}  # fmt: skip
AWKWARD: dict[str, Planted] = {
    f"{name}, {'in training' if training else 'in evaluation'}": _planted(QUICK, made, training=training)
    for training in (False, True)
    for name, made in {
        "a norm that bends in 1e-4": Molecule,
        "a list with a skin": Skin,
        "one energy of all": of(pooled=lambda self, site, batch: site.sum()),
        "room for some atoms, none alone": Roomy,
    }.items()
}
