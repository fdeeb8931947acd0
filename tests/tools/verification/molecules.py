"""A small potential of molecules that finds its neighbours: right, and wrong in large, crowded or far systems."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CUTOFF, WIDTH = 3.0, 4


def molecules(sizes: tuple[int, ...] = (5, 4, 6), dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, species, and the molecule of each atom."""
    drawn = torch.Generator().manual_seed(3)
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 2, torch.arange(3.0))
    places = [1.1 * grid[:n] + 0.15 * torch.randn(n, 3, generator=drawn) for n in sizes]
    numbers = torch.arange(sum(sizes)) % 3
    return torch.cat(places).to(dtype), numbers, torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


class Molecule(nn.Module):
    """Vectors of neighbours, weighed by species and length; energies by their norms, forces by one gradient."""

    guard = 1e-8

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weigh = nn.Parameter(torch.randn(3, WIDTH))
        self.mix = nn.Parameter(torch.randn(WIDTH))
        self.alone = nn.Parameter(torch.tensor([-1.0, -2.0, 0.5]))

    def forward(self, positions: Tensor, species: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        x = positions.detach().clone().requires_grad_()
        with torch.enable_grad():
            i, j = self.neighbours(x.detach(), batch)
            energy = self.pooled(self.site(x, species, i, j), batch)
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy, self.told(-slope)

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

    def told(self, forces: Tensor) -> Tensor:
        return forces


def of(**methods: Any) -> type[Molecule]:
    """A potential with other methods."""
    return type("Other", (Molecule,), methods)


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


class MeanMove(Skin):
    """Kept until atoms have moved in the mean."""

    def moved(self, steps: Tensor) -> Tensor:
        return steps.mean()


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


FAULTS: dict[str, tuple[str, str, type[Molecule], bool]] = {  # law, part, potential, whether in training
    "at most 32 neighbours": ("permutation", "of many neighbours", First, False),
    "chunks of 1,024 edges": ("batch", "many graphs", Chunks, False),
    "a list kept by the mean move": ("history", "one atom ", MeanMove, False),
    "lengths by matrix products": ("precision", "far away", of(lengths=_by_products), False),
    "a norm without a guard": ("finite", "an atom between two alike", of(guard=0.0), False),
    "forces without a graph in training": (
        "parameters", "[1]", of(told=lambda self, forces: forces.detach()), True),
}  # fmt: skip
TOLD: dict[str, tuple[str, str, type[Molecule]]] = {
    "results with their graph": ("saved", "copy after a call", Keeping),
    "graphs that have atoms": ("batch", "a gap", of(pooled=_of_those_there)),
    "one row of an embedding for two species": ("permutation", "species", of(
        site=lambda self, x, species, *rest: Molecule.site(self, x, species.clamp(max=1), *rest))),
    "large energies": ("precision", "differences of energies", of(
        site=lambda self, *given: Molecule.site(self, *given) - 20_000.0)),
}  # fmt: skip


class Roomy(Molecule):
    """Atoms as many as there is room for, none of which is alone."""

    def neighbours(self, x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        i, j = super().neighbours(x, batch)
        if len(x) > 128 or len(i.unique()) < len(x):
            raise ValueError("too many atoms, or one alone")
        return i, j


RIGHT: dict[str, type[Molecule]] = {
    "a norm that bends in 1e-4": Molecule,
    "a list with a skin": Skin,
    "one energy of all": of(pooled=lambda self, site, batch: site.sum()),
    "room for some atoms, none alone": Roomy,
}
