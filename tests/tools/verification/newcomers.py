"""Faults that a second reader planted, right networks that were accused, and what may be meant and is told."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification import lattices, suspicious
from tests.tools.verification.planted import Given, Planted, changed
from tests.tools.verification.strangers import VECTORS, Layer, layer, rows
from tests.tools.verification.suspicious import Cluster, batched, cluster, of

ORDERED = {"irreps_out": ["0e", "1o"]}
SINGLE = torch.float32


def narrow() -> Given:
    return tuple(x.float() if x.is_floating_point() else x for x in cluster())


def narrow_rows() -> Given:
    return (rows()[0].float(),)


# --- potentials -------------------------------------------------------------------------------------------------------


class Listed(Cluster):
    """Neighbours of points, kept as long as there are as many."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[int, Tensor] = {}

    def forward(self, positions: Tensor, z: Tensor) -> Any:  # type: ignore[override]
        if len(z) not in self.lists:
            self.lists[len(z)] = torch.nonzero(torch.cdist(positions.detach(), positions.detach()) < 1.6).T
        source, target = self.lists[len(z)]
        return self.of(positions, z, source[source != target], target[source != target])


class Degrees(Cluster):
    """Numbers of neighbours, kept for a list in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple, Tensor] = {}

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        key = (src.data_ptr(), len(src))
        if key not in self.kept:
            self.kept[key] = torch.bincount(src, minlength=len(z))
        return super().weights(edges, z, src, dst) / (1 + self.kept[key][src])


class Asking(Cluster):
    """Another energy where its caller asks for gradients."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Any:
        found = self.of(positions.detach(), z, src, dst)
        return {**found, "energy": found["energy"] * (1.001 if positions.requires_grad else 1.0)}


class Narrow(Cluster):
    """One-hot rows, which code makes in float32."""

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        hot = nn.functional.one_hot(z, 3).float()
        return super().weights(edges, z, src, dst) * (hot @ self.depth)[src]


class Keyed(nn.Module):
    """Results of a dict, whose list of edges it turns around; a parameter is called as a result may be."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster, self.out = Cluster(), nn.Parameter(torch.ones(2))

    def forward(self, data: dict[str, Tensor]) -> Any:
        data["edge_index"] = data["edge_index"].flip(0)
        return self.cluster.of(data["positions"], data["z"], *data["edge_index"])


class Moving(nn.Module):
    """Points that edges move, by weights that are a softmax over the edges of all."""

    def forward(self, positions: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        source, target = edge_index
        edges = positions[target] - positions[source]
        weights = edges.square().sum(-1).neg().softmax(0)
        return {"positions": positions.index_add(0, source, weights[:, None] * edges)}


class Calm(Moving):
    """Points that edges move, each by its own weight."""

    def forward(self, positions: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        source, target = edge_index
        edges = positions[target] - positions[source]
        weights = edges.square().sum(-1).neg().exp()
        return {"positions": positions.index_add(0, source, weights[:, None] * edges)}


class Directions(nn.Module):
    """A tensor of the directions between atoms that a mask tells from none."""

    def forward(self, positions: Tensor, real: Tensor) -> dict[str, Tensor]:
        one, other = (real[:, None] & real[None] & ~torch.eye(len(real), dtype=torch.bool)).nonzero().T
        edges = nn.functional.normalize(positions[other] - positions[one], eps=0.0)
        return {"order": torch.einsum("ei,ej->ij", edges, edges)}


def keyed() -> Given:
    x, z, src, dst = cluster()
    return ({"positions": x, "z": z, "edge_index": torch.stack([src, dst])},)


def linked() -> Given:
    x, _, src, dst = cluster()
    return x, torch.stack([src, dst])


def filled() -> Given:
    x = cluster()[0]
    return torch.cat([x, torch.zeros(2, 3, dtype=x.dtype)]), torch.arange(9) < 7


MOVES = {"irreps_out": {"positions": "cartesian_points"}}


def _lone(self: Cluster, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Any:
    found = self.of(positions, z, src, dst)
    return {**found, "forces": found["forces"].squeeze(0)}


def _pooled(self: Any, site: Tensor, graph: Tensor, graphs: int) -> Tensor:
    return suspicious.Batched.pooled(self, site, graph, graphs).squeeze()


SQUEEZED = changed(suspicious.Batched, pooled=_pooled)
CUT = of(told=lambda self, e, f: {"energy": e, "forces": f.detach()})  # forces without a graph of an energy with one


def _pushed(self: Cluster, energy: Tensor, forces: Tensor) -> Any:
    return energy, forces + 0.4 * forces.norm() / len(forces) ** 0.5 * torch.eye(3).repeat(3, 1)[: len(forces)]


class Strained(lattices.Lattice):
    """Results without names."""

    sign = 1.0

    def forward(self, *given: Tensor) -> Any:
        found = super().forward(*given)
        return found["energy"], found["forces"], self.sign * found["stress"]


def _by_cell(self: lattices.Lattice, positions: Tensor, cell: Tensor, *rest: Tensor) -> Any:
    found, volume = (
        lattices.Lattice.forward(self, positions, cell, *rest),
        torch.linalg.det(cell).abs().reshape(-1, 1, 1),
    )
    stress = (found["stress"].reshape(-1, 3, 3) * volume).detach() / volume
    return {**found, "forces": found["forces"].detach(), "stress": stress.reshape(found["stress"].shape)}


# --- layers -----------------------------------------------------------------------------------------------------------


def _partly_kept(self: Any) -> Tensor:
    if self.held is None:
        self.held = self.mix.detach().clone()
    return self.mix + 1e-2 * self.held


def _single(self: Layer, x: Tensor) -> Tensor:
    found = Layer.forward(self, x)
    return found.squeeze(0) if len(x) == 1 else found


class Buffered(Layer):
    """Results in memory that it writes again, where no gradients are taken."""

    room: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        if found.requires_grad:
            return found
        if self.room is None or self.room.shape != found.shape:
            self.room = torch.empty_like(found)
        return self.room.copy_(found)


class Normed(Layer):
    """Norms of vectors, normalised as torch does it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def scaled(self, v: Tensor) -> Tensor:
        return v * self.norm(v.square().sum(-1))[..., None]


class Products(nn.Module):
    """Vectors times a scalar, as long as a tangent of their norm: no number where all vanish."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        v = x.reshape(-1, 4, 3) + y[:, None]
        lengths = v.norm(dim=-1, keepdim=True)
        return (v * lengths.tanh() / lengths).reshape(-1, 12)


def both() -> Given:
    return (*rows(), torch.randn(7, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64))


PAIRED = {"irreps_in": ["4x1o", "1o"], "irreps_out": ["4x1o"]}
DROPPED = layer(scaled=lambda self, v: v * nn.functional.dropout(torch.ones_like(v[..., :1]), 0.3, self.training))
NOISY = layer(scaled=lambda self, v: v * (1 + 0.1 * torch.rand_like(v[..., :1])))


def _layer(law: str, made: Any, why: str = "", given: Any = rows, said: dict | None = None, **more: Any) -> Planted:
    return Planted(law, made, given, why, said=VECTORS if said is None else said, **more)


FAULTS: dict[str, Planted] = {
    "forces without a graph in training": Planted("parameters", CUT, cluster, "forces has no graph in train()"),
    "a graph that is freed in training": Planted("parameters", of(keeps=lambda self: False), cluster, "frees the g"),
    "an energy that is cut off": Planted(
        "parameters", of(told=lambda self, e, f: {"energy": e.detach(), "forces": f}), cluster, "energy has no graph"),
    "nothing with a graph in training": Planted(
        "parameters", of(told=lambda self, e, f: {"energy": e.detach(), "forces": f.detach()}), cluster, "no graph"),
    "half of a parameter cut off": _layer("parameters", layer(
        weight=lambda self: torch.cat([self.mix[:2], self.mix[2:].detach()]))),
    "forces of the other sign without a name": Planted("forces", of(
        told=lambda self, e, f: (e, -f)), cluster, said=ORDERED),
    "forces that are no slope, by a word": Planted(
        "forces", of(told=_pushed), cluster, said={"irreps_out": ["energy", "forces"]}),
    "a stress of the other sign without a name": Planted(
        "stress", changed(Strained, sign=-1.0), lattices.triclinic,
        said={"irreps_out": [None, "1o", "cartesian_tensors"]}),
    "forces of the other sign, in float32": Planted(
        "forces", changed(Narrow, told=lambda self, e, f: {"energy": e, "forces": -f}), narrow,
        dtype=SINGLE),
    "results that are written again": _layer("history", Buffered, given=narrow_rows, dtype=SINGLE),
    "a list of neighbours that is kept": Planted("history", Listed, lambda: cluster()[:2]),
    "numbers of neighbours that are kept": Planted("history", Degrees, cluster),
    "another value where no gradients are taken": _layer("no_grad", layer(
        weight=lambda self: self.mix if torch.is_grad_enabled() else 1.001 * self.mix)),
    "another value where gradients are asked for": Planted("no_grad", Asking, cluster),
    "rows that come back sorted": _layer("permutation", layer(
        scaled=lambda self, v: v[torch.argsort(v[:, 0].square().sum(-1))])),
    "rows that are rolled": _layer("permutation", layer(scaled=lambda self, v: v.roll(1, 0))),
    "one row without its axis": _layer("permutation", layer(forward=_single), "where (1, 12) was expected"),
    "vectors that vanish in all inputs": _layer("finite", Products, given=both, said=PAIRED),
    "the largest species of a batch": Planted("batch", changed(suspicious.Batched, energy=(
        lambda self, x, z, src, dst: Cluster.energy(self, x, z, src, dst) * (1 + 0.1 * z.max()))), batched),
    "a lone atom": Planted("batch", changed(suspicious.Batched, energy=(
        lambda self, x, z, src, dst: Cluster.energy(self, x, z, src, dst) + 0.1 * (len(x) == 1))), batched),
    "a dict that is written into": Planted("surroundings", Keyed, keyed, "edge_index'] of its caller's"),
    "an energy without its axis": Planted("batch", SQUEEZED, batched),
    "one atom without its axis": Planted("finite", of(forward=_lone), cluster, "where (1, 3) was expected"),
    "points moved by a softmax over all edges": Planted("copies", Moving, linked, said=MOVES),
    "a part of the weights kept in evaluation, in float32": _layer(
        "history", layer(held=None, weight=_partly_kept), given=narrow_rows, dtype=SINGLE, training=False),
    "random numbers in evaluation": _layer("repeated", NOISY, training=False),
    "random numbers in training and in evaluation": _layer("repeated", NOISY),
}  # fmt: skip

TOLD: dict[str, Planted] = {
    "forces that are perhaps none": Planted(
        "forces", of(told=_pushed), cluster, "may be an energy and forces that are not its slope", said=ORDERED),
    "numbers that are looked at": Planted(
        "parameters", of(
            told=lambda self, e, f: {"energy": e, "forces": f, "looked at": e.detach() * torch.ones(2)}), cluster,
        "has no graph in train()", said={"irreps_out": {"looked at": None}}),
    "dropout": _layer("repeated", DROPPED, "calls in training draw random numbers, as dropout does"),
    "a mean over atoms": Planted("copies", of(
        energy=lambda self, x, z, s, d: Cluster.energy(self, x, z, s, d) * (1 + 0.1 * (z == z.max()))), cluster,
        "atoms know of others that no edge joins"),
}  # fmt: skip

RIGHT: dict[str, Planted] = {
    "results without names": Planted("forces", of(told=lambda self, e, f: (e, f)), cluster, said=ORDERED),
    "results without names or a word of them": Planted(
        ["forces", "equivariant"], of(told=lambda self, e, f: (e, f)), cluster),
    "a stress without a name or a word of it": Planted(["stress", "equivariant"], Strained, lattices.triclinic),
    "a stress without a graph but by the cell": Planted(
        ["first order", "Hessian"], changed(lattices.Lattice, forward=_by_cell), lattices.triclinic, training=False),
    "results by words": Planted("forces", of(told=lambda self, e, f: [e, f]), cluster, said={
        "irreps_out": {"[0]": "energy", "[1]": "forces"}}),
    "a stress without a name": Planted(
        "stress", Strained, lattices.triclinic, said={"irreps_out": [None, "1o", "cartesian_tensors"]}),
    "one-hot rows in float32": Planted("first order", Narrow, narrow, dtype=SINGLE),
    "results that are made float32": _layer(
        "first order", layer(forward=lambda self, x: Layer.forward(self, x).float()), given=narrow_rows, dtype=SINGLE),
    "points moved by edges": Planted("copies", Calm, linked, said=MOVES),
    "atoms that fill up, in one place": Planted(
        "finite", Directions, filled, said={"irreps_out": {"order": "cartesian_tensors"}}),
    "a layer norm": _layer("third order", lambda: Normed(nn.LayerNorm(4))),
    "weight norms": _layer("second order", lambda: Normed(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))),
    "a batch norm in training": _layer("third order", lambda: Normed(nn.BatchNorm1d(4))),
    "dropout in any order": _layer("permutation", DROPPED),
    "dropout, turned": _layer("equivariant", DROPPED),
    "dropout, differentiated": _layer("second order", DROPPED),
    "forces without a graph in evaluation": Planted(["no_grad", "parameters"], CUT, cluster, training=False),
}  # fmt: skip
