"""Padded molecules are verified as rows of atoms; edges that masks leave out, and results that are transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tools.verification import suspicious
from tests.tools.verification.suspicious import Cluster, cluster, of
from tpgen.tools.verification.masks import NO_MASK
from tpgen.tools.verification.padding import padded_molecules
from tpgen.tools.verification.potentials import LONG, NO_CUTOFF
from tpgen.tools.verification.verify import Verification, verify

CUTOFF = 2.5
SAID = {"irreps_in": {"coordinates": "cartesian_points"}}
Given = tuple[Tensor, ...]


pytestmark = pytest.mark.usefixtures("double")


class Molecules(nn.Module):
    """Energies and forces of molecules, padded where species are negative; all pairs shorter than the cutoff."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.0, 0.7, 1.3]))

    def forward(self, species: Tensor, coordinates: Tensor) -> dict[str, Tensor]:
        return self.of(species.clamp(min=0), species >= 0, coordinates)

    def of(self, species: Tensor, real: Tensor, coordinates: Tensor) -> dict[str, Tensor]:
        with torch.enable_grad():
            x = coordinates if coordinates.requires_grad else coordinates.detach().requires_grad_()
            depth = self.depth[species]
            pairs = self.pairs(real) & ~torch.eye(x.shape[1], dtype=torch.bool)
            squares = (x[:, :, None] - x[:, None]).square().sum(-1)
            envelope = (1 - squares / CUTOFF**2).clamp(min=0) ** 4 * pairs
            neighbours = (envelope * depth[:, :, None] * depth[:, None]).sum(2)
            energy = self.sites(depth * (1 + neighbours).log(), real).sum(1)
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return {"energy": energy, "forces": -slope}

    def pairs(self, real: Tensor) -> Tensor:
        return real[:, :, None] & real[:, None]

    def sites(self, energies: Tensor, real: Tensor) -> Tensor:
        return energies * real


class ByMask(Molecules):
    def forward(self, species: Tensor, coordinates: Tensor, real: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return self.of(species, real, coordinates)


class ByZeros(Molecules):
    def forward(self, species: Tensor, coordinates: Tensor) -> dict[str, Tensor]:
        return self.of((species - 1).clamp(min=0), species > 0, coordinates)


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


LAWS = ["equivariant", "translation", "permutation", "batch", "finite", "first order", "forces", "surroundings"]


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (Molecules, molecules),
        (ByMask, by_mask),
        (ByZeros, by_zeros),
        (Molecules, lambda: molecules((4, 4, 4))),
        (Molecules, lambda: molecules((5,))),
    ],
)
def test_right_networks_of_padded_molecules_pass(made: type[nn.Module], given: Callable[[], Given]) -> None:
    report = verify(made(), given(), only=LAWS, **SAID)
    assert not report.failed, str(report)
    compared = {finding.law for finding in report.findings if finding.status == "passed"}
    assert compared >= set(LAWS) - ({"batch"} if len(given()[0]) == 1 else set()), str(report)
    assert "coordinates: padded molecules" in str(report) or "real: padded molecules" in str(report)


@pytest.mark.parametrize(
    ("methods", "given"),
    [
        ({"pairs": lambda self, real: real[:, :, None].expand(-1, -1, real.shape[1])}, molecules),
        ({"sites": lambda self, energies, real: energies * real / real.shape[1]}, molecules),
        ({"sites": lambda self, energies, real: energies + 0.1 * ~real}, molecules),
    ],
)
def test_networks_that_see_padding_fail(methods: dict[str, Any], given: Callable[[], Given]) -> None:
    report = verify(type("Other", (Molecules,), methods)(), given(), only=["batch"], **SAID)
    assert report.failed == ("batch",), str(report)


def test_what_is_read_as_padded_molecules() -> None:
    species, x = molecules()
    found = padded_molecules({"species": species, "x": x})
    assert found is not None
    assert found.rows["x"].shape == (12, 3)
    assert found.rows["batch"].tolist() == [0] * 5 + [1] * 3 + [2] * 4
    assert padded_molecules({"x": x}) is None  # nothing says which are atoms
    assert padded_molecules({"species": species, "x": x, "positions": x[0]}) is None  # neighbours in rows
    masks = {"real": species >= 0, "kept": (species >= 0).flip(0)}
    assert padded_molecules({"species": species, "x": x, **masks}) is None  # of which one may be another
    assert padded_molecules({"species": species, "x": x, "batch": species[0]}) is None
    flags = torch.tensor([[True, False, True, True, True]] * 3)  # of aromatic atoms, say
    assert padded_molecules({"species": species, "x": x, "flags": flags}) is None
    hydrogen = padded_molecules({"species": torch.tensor([[1, 2, 0, 0]] * 2), "x": torch.ones(2, 4, 3)})
    assert hydrogen is not None
    assert len(hydrogen.rows["x"]) == 8  # the species 0 is one as others are
    assert padded_molecules({"cell": torch.eye(3)[None], "z": torch.arange(3)}) is None


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


@pytest.mark.parametrize("given", [masked, given_later])
@pytest.mark.parametrize(("made", "told"), [(MaskedEdges, False), (AllEdges, True)])
def test_more_edges_that_a_mask_leaves_out_change_nothing(
    made: type[nn.Module], told: bool, given: Callable[[], Given]
) -> None:
    report = verify(made(), given(), only=["edges"])
    assert not report.failed, str(report)
    found = [finding for finding in report.findings if "edge_mask leaves out" in finding.part]
    assert [finding.why == NO_MASK.format("edge_mask") for finding in found] == ([True] if told else [False, False])


def _softmax_weights(self: Cluster, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    # the denominator counts all edges of the list
    weights = Cluster.weights(self, edges, z, src, dst)
    return weights / (1.0 + torch.zeros(len(z)).index_add(0, src, torch.ones_like(weights)))[src]


def smooth_of(network: nn.Module) -> Verification:
    return verify(network, cluster(), only=["smooth"])


def test_a_denominator_of_all_edges_is_told() -> None:
    told = NO_CUTOFF.format(LONG)
    assert told in str(smooth_of(of(weights=_softmax_weights)()))
    assert told not in str(smooth_of(Cluster()))


class Tensors(nn.Module):
    """A polarizability of edges, that is symmetric if ``both``."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both, self.scale = both, nn.Parameter(torch.ones(1))

    def forward(self, positions: Tensor) -> dict[str, Tensor]:
        v = positions - positions.mean(0)
        found = self.scale * v[:, :, None] * v.roll(1, 0)[:, None]
        return {"polarizability": (found + found.mT if self.both else found).sum(0)}


@pytest.mark.parametrize("both", [True, False])
def test_polarizabilities_equal_their_transposes(both: bool) -> None:
    said = {"irreps_out": {"polarizability": "cartesian_tensors"}}
    report = verify(Tensors(both), suspicious.cluster()[:1], only=["Hessian", "equivariant"], **said)
    assert report.failed == (() if both else ("Hessian",)), str(report)
