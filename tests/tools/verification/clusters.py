"""Clusters in which a potential finds edges itself: stale lists, sums that are none, and branches silent at first."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.lattices import Lists, wide
from tests.tools.verification.molecules import CUTOFF
from tests.tools.verification.planted import QUICK, Given, Planted, Potential, changed

SKIN = 1.0


def cluster() -> Given:
    """Positions and species; no atom is near to all others."""
    places = [[0, 0.1, 0.3], [2.4, 0.3, -0.2], [-0.6, 2.2, 0.5], [1.4, 2.1, 2.4], [-1, -0.5, 2.9], [3.8, 2.4, 0.6]]
    return torch.tensor(places, dtype=torch.float64), torch.arange(6) % 3


class Cluster(Potential):
    """Energies of atoms by the weights and the dipole of neighbours, with forces."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.0, 0.7, 1.3]))
        self.alone = nn.Parameter(torch.tensor([-1.0, -2.0, 0.5]))

    def forward(self, positions: Tensor, species: Tensor) -> dict[str, Tensor]:
        return self.of(positions, species)

    def near(self, x: Tensor, reach: float) -> Tensor:
        return ((x[:, None] - x).norm(dim=-1) < reach).fill_diagonal_(False).nonzero().T

    def ends(self, x: Tensor) -> Tensor:
        return self.near(x, CUTOFF)

    def energy(self, x: Tensor, species: Tensor) -> Tensor:  # type: ignore[override]
        i, j = self.ends(x.detach())
        edges = x[j] - x[i]
        squares = edges.square().sum(-1)
        weights = self.depth[species[j]] * torch.exp(-0.2 * squares) * (1 - squares / CUTOFF**2).clamp(min=0) ** 4
        zeros = x.new_zeros(len(x), 3)
        dipole = zeros.index_add(0, i, weights[:, None] * edges)
        return self.alone[species] - torch.tanh(zeros[:, 0].index_add(0, i, weights)) + self.squared(dipole)

    def squared(self, dipole: Tensor) -> Tensor:
        return dipole.square().sum(-1)


of = partial(changed, Cluster)


class Skin(Cluster):
    """A list with a skin, made anew where an atom moved by more than half of it."""

    kept: Any = None

    def moved(self, steps: Tensor) -> Tensor:
        return steps.max()

    def ends(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept[0].shape != x.shape or self.moved((x - self.kept[0]).norm(dim=1)) > SKIN / 2:
            self.kept = x.clone(), self.near(x, CUTOFF + SKIN)
        return self.kept[1]


def skin(moved: Any) -> type[Skin]:
    return changed(Skin, moved=lambda self, steps: moved(steps))


class Crystal(Lists):
    """Images of a list with a skin, made anew where atoms moved, or the cell."""

    kept: Any = None

    def moved(self, steps: Tensor) -> Tensor:
        return steps.max()

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        same = self.kept is not None and len(self.kept[0]) == len(positions) and torch.equal(self.kept[1], cell)
        if not same or self.moved((positions - self.kept[0]).norm(dim=1)) > SKIN / 2:
            shrunk = CUTOFF / (CUTOFF + SKIN)  # the cutoff of `neighbours` is fixed
            units = super().found(shrunk * positions, shrunk * cell)
            self.kept = positions.clone(), cell.clone(), units
        return self.kept[2]


class Silent(Cluster):
    """A further branch, scaled by a parameter that is zero before training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))

    def squared(self, dipole: Tensor) -> Tensor:
        return super().squared(dipole) + self.branch(dipole)

    def branch(self, dipole: Tensor) -> Tensor:
        return self.scale.sum() * dipole.square().sum(-1).exp()


silent = partial(changed, Silent)


class Last(Silent):
    """A last linear layer that begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 1))
        for p in (self.scale, *self.last[2].parameters()):
            nn.init.zeros_(p)

    def branch(self, dipole: Tensor) -> Tensor:
        return self.last(self.seen(dipole)).squeeze(-1)

    def seen(self, dipole: Tensor) -> Tensor:
        return dipole.square().sum(-1, keepdim=True)


DARK = changed(Last, seen=lambda self, dipole: dipole[:, :1])  # of one component


def _refused(self: Silent, dipole: Tensor) -> Tensor:
    if bool(self.scale.any()):
        raise ValueError("trained")
    return dipole @ self.scale


def _mirrored(self: Silent, dipole: Tensor) -> Tensor:
    return self.scale.sum() * torch.linalg.det(dipole[:3] - dipole[3]).expand(len(dipole))


def _along(self: Silent, dipole: Tensor) -> Tensor:
    return dipole @ self.scale


def _frozen() -> Cluster:
    network = silent(branch=_along)()
    network.scale.requires_grad_(False)
    return network


def _charged(self: Cluster, x: Tensor, species: Tensor) -> Tensor:
    lengths = (x[:, None] - x).square().sum(-1) + torch.eye(len(x))
    return Cluster.energy(self, x, species) + (self.alone[species] * (1 - torch.eye(len(x))) / lengths.sqrt()).sum(1)


def _relative(self: Cluster, site: Tensor, *rest: Tensor) -> Tensor:
    return site.sum() + (site - site.mean()).square().sum()


def _gap(self: Cluster, energy: Tensor, forces: Tensor) -> dict[str, Tensor]:
    return {"gap": energy}


MEAN = {"summed": lambda self, site, *rest: site.mean()}
FAULTS: dict[str, Planted] = {
    "a list kept by the mean move": Planted("history", skin(torch.mean), cluster),
    "a list kept by the first atom's move": Planted("history", skin(lambda steps: steps[0]), cluster),
    "a list kept by the median move": Planted("history", skin(torch.median), cluster),
    "images kept by the mean move": Planted(
        "history", changed(Crystal, moved=lambda self, steps: steps.mean()), wide),
    "a mean over atoms": Planted("copies", of(**MEAN), cluster),
    "the number of atoms of a training set": Planted(
        "copies", of(summed=lambda self, site, *rest: 6 * site.mean()), cluster),
    "charges of the mean": Planted(
        "copies", of(summed=lambda self, site, *rest: site.sum() + 0.1 * site.sum() ** 2 / 6), cluster),
    "a mean of a number that is called an energy": Planted(
        "copies", of(told=_gap, **MEAN), cluster, said={"irreps_out": {"gap": "energy"}}),
    "a silent field": Planted("equivariant", silent(branch=_along), cluster, "that are zero now, here random: scale"),
    "a silent mirror": Planted("equivariant", silent(branch=_mirrored), cluster, "that are zero now"),
    "a silent last layer": Planted("equivariant", DARK, cluster, "zero now, here random: scale, last.2.weight, last"),
}  # fmt: skip
TOLD: dict[str, Planted] = {
    "a mean that is no energy": Planted("copies", of(told=_gap, **MEAN), cluster, "the same of two systems as of one"),
    "charges that see each other however far": Planted(
        "copies", of(energy=_charged), cluster, "the network sees points that are"),
    "a mean beside energies": Planted("copies", of(summed=_relative), cluster, "or far away, which may be meant"),
}  # fmt: skip
RIGHT: dict[str, Planted] = {
    "a list with a skin": Planted("history", Skin, cluster),
    "images with a skin": Planted("history", Crystal, wide),
    "a list that is made anew": Planted("history", Cluster, cluster),
    "energies that add up": Planted("copies", Cluster, cluster),
    "energies that add up, by a list with a skin": Planted("copies", Skin, cluster),
    "a sum of another name": Planted("copies", of(told=_gap), cluster),
    "a silent branch": Planted("equivariant", Silent, cluster),
    "a silent last layer": Planted("equivariant", Last, cluster),
    "zeros that no training changes": Planted("equivariant", _frozen, cluster),
    "a branch that fails behind zeros": Planted("equivariant", silent(branch=_refused), cluster),
    "no numbers behind zeros": Planted("equivariant", silent(
        branch=lambda self, dipole: (-self.scale.square().sum()).sqrt() * dipole[:, 0]), cluster),
}  # fmt: skip
AWKWARD: dict[str, Planted] = {
    "a list with a skin, as torch finds its largest": Planted(QUICK, skin(torch.max), cluster)
}
