"""Padded molecules are verified as rows of atoms; edges that masks leave out, and results that are transposes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.planted import Given, Planted, Potential, changed
from tests.tools.verification.suspicious import Cluster, cluster, of
from tpgen.tools.verification.masks import NO_MASK
from tpgen.tools.verification.potentials import LONG, NO_CUTOFF

CUTOFF = 2.5


class Molecules(Potential):
    """Energies and forces of molecules, padded where species are negative; all pairs shorter than the cutoff."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.0, 0.7, 1.3]))

    def forward(self, species: Tensor, coordinates: Tensor) -> dict[str, Tensor]:
        return self.of(coordinates, species.clamp(min=0), species >= 0)

    def energy(self, x: Tensor, species: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        depth = self.depth[species]
        pairs = self.pairs(real) & ~torch.eye(x.shape[1], dtype=torch.bool)
        squares = (x[:, :, None] - x[:, None]).square().sum(-1)
        envelope = (1 - squares / CUTOFF**2).clamp(min=0) ** 4 * pairs
        neighbours = (envelope * depth[:, :, None] * depth[:, None]).sum(2)
        return self.sites(depth * (1 + neighbours).log(), real)

    def summed(self, energies: Tensor, *rest: Tensor) -> Tensor:
        return energies.sum(1)

    def pairs(self, real: Tensor) -> Tensor:
        return real[:, :, None] & real[:, None]

    def sites(self, energies: Tensor, real: Tensor) -> Tensor:
        return energies * real


class ByMask(Molecules):
    def forward(self, species: Tensor, coordinates: Tensor, real: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return self.of(coordinates, species, real)


class ByZeros(Molecules):
    def forward(self, species: Tensor, coordinates: Tensor) -> dict[str, Tensor]:
        return self.of(coordinates, (species - 1).clamp(min=0), species > 0)


def molecules(sizes: tuple[int, ...] = (5, 3, 4)) -> Given:
    drawn, width = torch.Generator().manual_seed(0), max(sizes)
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 3)[:width]
    x = grid + 0.2 * torch.randn(len(sizes), width, 3, generator=drawn)
    padded = torch.arange(width) >= torch.tensor(sizes)[:, None]
    species = (torch.arange(width) % 3).expand(len(sizes), width).masked_fill(padded, -1)
    return species, x.masked_fill(padded[..., None], 0.0)


def by_mask() -> Given:
    species, x = molecules()
    return species.clamp(min=0), x, species >= 0


def by_zeros() -> Given:
    species, x = molecules()
    return species + 1, x


# --- masks of edges, and edges that are long --------------------------------------------------------------------------


class MaskedEdges(Cluster):
    """Edges behind the last one are left out."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, edge_mask: Tensor) -> Any:  # type: ignore[override]
        return self.of(positions, z, *self.kept(src, dst, edge_mask))

    def kept(self, src: Tensor, dst: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return src[mask], dst[mask]


class AllEdges(MaskedEdges):
    def kept(self, src: Tensor, dst: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return src, dst


def masked() -> Given:
    x, z, src, dst = cluster()
    near = (x[:1] - x[1:]).norm(dim=1).argmin() + 1  # one more edge, of which the network is told to leave it out
    mask = torch.arange(len(src) + 1) < len(src)
    return x, z, torch.cat([src, src.new_zeros(1)]), torch.cat([dst, near[None]]), mask


def given_later() -> Given:
    """The same, with the edge that is left out first."""
    x, z, *edges = masked()
    return x, z, *(rows.flip(0) for rows in edges)


def _softmax_weights(self: Cluster, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    # the denominator counts all edges of the list
    weights = Cluster.weights(self, edges, z, src, dst)
    return weights / (1.0 + torch.zeros(len(z)).index_add(0, src, torch.ones_like(weights)))[src]


class Tensors(nn.Module):
    """A polarizability of edges, that is symmetric if ``both``."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both, self.scale = both, nn.Parameter(torch.ones(1))

    def forward(self, positions: Tensor) -> dict[str, Tensor]:
        v = positions - positions.mean(0)
        found = self.scale * v[:, :, None] * v.roll(1, 0)[:, None]
        return {"polarizability": (found + found.mT if self.both else found).sum(0)}


ALONE = ["equivariant", "translation", "permutation", "finite", "first order", "forces", "surroundings"]
SAID = {"irreps_in": {"coordinates": "cartesian_points"}}
POLARIZABILITY = {"irreps_out": {"polarizability": "cartesian_tensors"}}


def _right(made: type[nn.Module], given: Any, laws: list[str] = [*ALONE, "batch"]) -> Planted:  # noqa: B006
    return Planted(laws, made, given, ": padded molecules", said=SAID)


RIGHT: dict[str, Planted] = {
    "padding by negative species": _right(Molecules, molecules),
    "padding by a mask": _right(ByMask, by_mask),
    "padding by zeros": _right(ByZeros, by_zeros),
    "molecules of one size": _right(Molecules, lambda: molecules((4, 4, 4))),
    "one molecule": _right(Molecules, lambda: molecules((5,)), ALONE),
    "a mask of edges": Planted("edges", MaskedEdges, masked, part="edge_mask leaves out"),
    "a mask of edges, the first of which is left out": Planted(
        "edges", MaskedEdges, given_later, part="edge_mask leaves out"),
    "a cutoff of a cluster": Planted("smooth", Cluster, cluster),
    "a symmetric polarizability": Planted(
        ["Hessian", "equivariant"], lambda: Tensors(True), lambda: cluster()[:1], said=POLARIZABILITY),
}  # fmt: skip
FAULTS: dict[str, Planted] = {
    "pairs with padding": Planted("batch", changed(
        Molecules, pairs=lambda self, real: real[:, :, None].expand(-1, -1, real.shape[1])), molecules, said=SAID),
    "a mean over the room of a molecule": Planted("batch", changed(
        Molecules, sites=lambda self, energies, real: energies * real / real.shape[1]), molecules, said=SAID),
    "energies of padding": Planted("batch", changed(
        Molecules, sites=lambda self, energies, real: energies + 0.1 * ~real), molecules, said=SAID),
    "a polarizability that is not symmetric": Planted(
        "Hessian", lambda: Tensors(False), lambda: cluster()[:1], said=POLARIZABILITY),
}  # fmt: skip
TOLD: dict[str, Planted] = {
    "a mask that leaves no edges out": Planted(
        "edges", AllEdges, masked, NO_MASK.format("edge_mask"), "edge_mask leaves out"),
    "a mask that leaves no edges out, not the first": Planted(
        "edges", AllEdges, given_later, NO_MASK.format("edge_mask"), "edge_mask leaves out"),
    "a denominator of all edges": Planted("smooth", of(weights=_softmax_weights), cluster, NO_CUTOFF.format(LONG)),
}  # fmt: skip
