"""Right potentials that look suspicious, by their indices, masks, caches and modes; and wrong ones like them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.tools.verification.planted import OF_PRODUCTS, QUICK, Given, Planted, Potential, changed

CUTOFF = 1.6
Found = dict[str, Tensor]


def cluster(atoms: int = 7, seed: int = 0) -> Given:
    """Positions, species, and the ends of edges shorter than the cutoff, of atoms in a box."""
    drawn = torch.Generator().manual_seed(seed)
    x = 2.4 * torch.rand(atoms, 3, generator=drawn, dtype=torch.float64)
    source, target = ((torch.cdist(x, x) < CUTOFF) & ~torch.eye(atoms, dtype=torch.bool)).nonzero().T
    return x, torch.arange(atoms) % 3, source.clone(), target.clone()


class Cluster(Potential):
    """Energies of edges weighted by species, and of atoms by the squared sum of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.0, 0.7, 1.3]))
        self.width = nn.Parameter(torch.tensor(0.8))

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Found:
        return self.of(positions, z, src, dst)

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:  # type: ignore[override]
        edges = x[dst] - x[src]
        weights = self.weights(edges, z, src, dst)
        zeros = weights.new_zeros(len(x))
        dipole = weights.new_zeros(len(x), 3).index_add(0, src, weights[:, None] * edges)
        return zeros.index_add(0, src, weights) + 0.1 * dipole.square().sum(-1)

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        squares = edges.square().sum(-1)
        envelope = (1 - squares / CUTOFF**2).clamp(min=0) ** 4
        return self.depth[z[src]] * self.depth[z[dst]] * torch.exp(-self.width * squares) * envelope


of = partial(changed, Cluster)


# --- layouts of indices -----------------------------------------------------------------------------------------------


class Matrix(Cluster):
    """Neighbours in rows, filled up with what is no atom."""

    def forward(self, positions: Tensor, z: Tensor, around: Tensor) -> Found:
        atom, place = ((around >= 0) & (around < len(positions))).nonzero().T
        return self.of(positions, z, atom, around[atom, place])


class Masked(Cluster):
    """Neighbours in rows, filled up with the first atom."""

    def forward(self, positions: Tensor, z: Tensor, around: Tensor, there: Tensor) -> Found:
        atom, place = there.nonzero().T
        return self.of(positions, z, atom, around[atom, place])


class Filled(Cluster):
    """A list of edges that is filled up."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Found:
        kept = src >= 0
        return self.of(positions, z, src[kept], dst[kept])


class Angles(Cluster):
    """Angles between edges, each of which is a pair of edges."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, one: Tensor, two: Tensor) -> Found:
        self.pairs = (one, two)
        return self.of(positions, z, src, dst)

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        edges, (one, two) = x[dst] - x[src], self.pairs
        weights = self.weights(edges, z, src, dst)
        bent = weights[one] * weights[two] * (edges[one] * edges[two]).sum(-1) ** 2
        return super().energy(x, z, src, dst).index_add(0, src[one], bent)


class Triplets(Cluster):
    """Three vectors of atoms, without a list of edges."""

    def forward(self, positions: Tensor, z: Tensor, t_i: Tensor, t_j: Tensor, t_k: Tensor) -> Found:
        self.third = t_k
        return self.of(positions, z, t_i, t_j)

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        one, two = x[dst] - x[src], x[self.third] - x[src]
        weights = self.weights(one, z, src, dst) * self.weights(two, z, src, self.third)
        return weights.new_zeros(len(x)).index_add(0, src, weights * (one * two).sum(-1))


class Typed(Cluster):
    """Types of edges that happen to be numbers of atoms."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, sort: Tensor) -> Found:
        self.sort = sort
        return self.of(positions, z, src, dst)

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return super().weights(edges, z, src, dst) * (1 + 0.2 * self.sort)


class Partners(Cluster):
    """An atom that each atom is bound to."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, partner: Tensor) -> Found:
        self.partner = partner
        return self.of(positions, z, src, dst)

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return super().energy(x, z, src, dst) + 0.1 * torch.exp(-(x - x[self.partner]).square().sum(-1))


class Numbered(Cluster):
    """A number of atoms that is Python's own."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, num_atoms: int) -> Found:
        assert num_atoms == len(positions)
        return self.of(positions, z, src, dst)


class Batched(Cluster):
    """Energies of graphs, and a feature of each."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, idx_m: Tensor, state: Tensor) -> Found:
        self.graph, self.state = idx_m, state
        return self.of(positions, z, src, dst)

    def summed(self, energies: Tensor, *rest: Tensor) -> Tensor:
        return self.pooled(energies * (1 + self.state.square().sum(-1))[self.graph], self.graph, len(self.state))

    def pooled(self, site: Tensor, graph: Tensor, graphs: int) -> Tensor:
        return site.new_zeros(graphs).index_add(0, graph, site)


def _without_empty_graphs(self: Batched, site: Tensor, graph: Tensor, graphs: int) -> Tensor:
    kinds, own = graph.unique(return_inverse=True)
    return site.new_zeros(len(kinds)).index_add(0, own, site)


class Counted(Batched):
    """Numbers of atoms in each graph, which are floating."""

    def forward(self, positions, z, src, dst, natoms, state):  # type: ignore[override]
        graph = torch.repeat_interleave(torch.arange(len(natoms)), natoms.long())
        return super().forward(positions, z, src, dst, graph, state)


def matrix(fill: int) -> Given:
    x, z, src, dst = cluster()
    rows = torch.full((len(x), int(torch.bincount(src).max()) + 1), fill)
    for atom in range(len(x)):
        mine = dst[src == atom]
        rows[atom, : len(mine)] = mine
    return x, z, rows


def masked() -> Given:
    x, z, rows = matrix(-1)
    return x, z, rows.clamp(min=0), rows >= 0


def compressed() -> Given:
    x, z, src, dst = cluster()
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(src, minlength=len(x)).cumsum(0)])
    return x, z, begins, dst


def filled() -> Given:
    x, z, src, dst = cluster()
    more = torch.full((5,), -1)
    return x, z, torch.cat([src, more]), torch.cat([dst, more])


def adjacent() -> Given:
    x, z, src, dst = cluster()
    return x, z, torch.zeros(len(x), len(x), dtype=torch.bool).index_put((src, dst), torch.tensor(True))


def angles() -> Given:
    x, z, src, dst = cluster()
    alike = (src[:, None] == src[None]) & ~torch.eye(len(src), dtype=torch.bool)
    return x, z, src, dst, *(end.clone() for end in alike.nonzero().T)


def triplets() -> Given:
    x, z, src, dst, one, two = angles()
    return x, z, src[one], dst[one], dst[two]


def sites() -> Given:
    x, _, src, dst = cluster()
    return x, torch.tensor([4, 0, 2, 2, 5, 1, 0]), src, dst


def batched(counts: bool = False) -> Given:
    parts = [cluster(5), cluster(4, seed=1)]
    x, z = (torch.cat([part[n] for part in parts]) for n in (0, 1))
    src, dst = (torch.cat([parts[0][n], parts[1][n] + 5]) for n in (2, 3))
    state = torch.tensor([[0.1, 0.4], [0.3, -0.2]], dtype=torch.float64)
    graph = torch.tensor([5.0, 4.0]).double() if counts else torch.arange(2).repeat_interleave(torch.tensor([5, 4]))
    return x, z, src, dst, graph, state


# --- gradients, caches, modes and numbers -----------------------------------------------------------------------------


class Keeping(Cluster):
    """Keeps what it has computed, with the graph, for whoever looks at it."""

    kept: list[Tensor] | None = None

    def told(self, energy: Tensor, forces: Tensor) -> Found:
        self.kept = [energy, forces]
        return super().told(energy, forces)


class Dropping(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def weights(self, *given: Tensor) -> Tensor:
        return self.drop(super().weights(*given))


class Lengths(Cluster):
    """Lengths whose gradient at zero is none, by two `where`."""

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        squares = edges.square().sum(-1)
        some = squares > 1e-12
        lengths = torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)
        return super().weights(edges, z, src, dst) * (1 + lengths**3)


class Padded(Cluster):
    """Atoms that are none, of which a mask tells."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, real: Tensor) -> Found:
        self.real = real
        return self.of(positions, z, src, dst)

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return super().weights(edges, z, src, dst) * (self.real[src] & self.real[dst])


class Seeded(Cluster):
    """Numbers of a generator that begins anew in each call."""

    def weights(self, *given: Tensor) -> Tensor:
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return super().weights(*given) * (1 + float(drawn.sum()))


def _in_order(order: Any) -> type[Cluster]:
    """Sums in the order of edges that a function of their targets says."""
    return of(energy=lambda self, x, z, src, dst: Cluster.energy(self, x, z, src[order(dst)], dst[order(dst)]))


class Parities(Cluster):
    """Beside the energy, a vector and a number that a mirror turns."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor, pull: Tensor) -> Found:
        found = self.of(positions, z, src, dst)
        edges = positions[dst] - positions[src]
        one, two = ((self.weights(edges, z, src, dst) * z[src] ** n) @ edges for n in (1, 2))
        return {**found, "polar": one + pull, "chiral": torch.linalg.cross(pull, one).dot(two)}


def on_the_cutoff() -> Given:
    """The last edge is exactly as long as the cutoff."""
    x = torch.tensor([[0.0, 0, 0], [CUTOFF, 0, 0], [0.3, 1.1, 0.2], [1.0, 0.9, 1.4]], dtype=torch.float64)
    src, dst = ((torch.cdist(x, x) < CUTOFF + 0.1) & ~torch.eye(4, dtype=torch.bool)).nonzero().T
    return x, torch.arange(4) % 3, src.clone(), dst.clone()


def padded() -> Given:
    x, z, src, dst = cluster()
    more, real = torch.zeros(2, 3, dtype=torch.float64), torch.arange(9) < 7
    ends = torch.tensor([7, 8, 7])
    return (
        torch.cat([x, more + 3 + torch.eye(3)[:2]]),
        torch.cat([z, z[:2]]),
        torch.cat([src, ends]),
        torch.cat([dst, ends.flip(0).roll(1)]),
        real,
    )


LACKS = ("batch", "images", "basis", "stress", "sum")  # of a cluster: no cell, and no graphs
DERIVED = ("first order", "second order", "third order", "Hessian", "parameters")


class Chiral(Cluster):
    """Energies, and the volume that the sums of three species' edges span."""

    def forward(self, positions: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Found:
        edges = positions[dst] - positions[src]
        weights = self.weights(edges, z, src, dst)[:, None] * edges
        sums = weights.new_zeros(3, 3).index_add(0, z[src], weights)
        return {**self.of(positions, z, src, dst), "chiral": 1e-3 * torch.linalg.det(sums)[None]}


def plane() -> Given:
    x, *rest = cluster(6)
    x[:, 2] = 0
    return x, *edges_within(x, rest[0])


def edges_within(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    source, target = ((torch.cdist(x, x) < CUTOFF) & ~torch.eye(len(x), dtype=torch.bool)).nonzero().T
    return z, source.clone(), target.clone()


def _right(
    made: Any = Cluster, given: Any = cluster, without: tuple[str, ...] = (), also: tuple[str, ...] = (), **more: Any
) -> Planted:
    """All laws that can be compared."""
    left_out = {*OF_PRODUCTS, *LACKS, *without} - {*also}
    return Planted([law for law in QUICK if law not in left_out], made, given, **more)


RIGHT: dict[str, Planted] = {
    "two vectors": _right(),
    "as many species as atoms, one-hot": _right(
        of(forward=lambda self, positions, node_attrs, src, dst: self.of(positions, node_attrs.argmax(1), src, dst)),
        lambda: (cluster(3)[0], torch.eye(3).double()[[1, 0, 2]], *cluster(3)[2:])),
    "a pseudoscalar of atoms in a plane": _right(Chiral, plane, said={"irreps_out": {"chiral": "0o"}}, without=(
        "copies", "parameters")),
    "ends in rows": _right(
        of(forward=lambda self, positions, z, links: self.of(positions, z, *links.T)),
        lambda: (*cluster()[:2], torch.stack(cluster()[2:], 1))),
    "neighbours in rows, filled with -1": _right(Matrix, lambda: matrix(-1)),
    "neighbours in rows, filled with the number of atoms": _right(Matrix, lambda: matrix(7)),
    "neighbours in rows, and a mask": _right(Masked, masked),
    "compressed rows": _right(of(forward=lambda self, positions, z, begins, columns: self.of(
        positions, z, torch.repeat_interleave(torch.arange(len(z)), begins.diff()), columns)), compressed),
    "a list that is filled up": _right(Filled, filled),
    "an adjacency": _right(
        of(forward=lambda self, positions, z, adjacency: self.of(positions, z, *adjacency.nonzero().T)), adjacent,
        without=("edges", "copies")),
    "angles of edges": _right(Angles, angles),
    "triplets of atoms": _right(Triplets, triplets, without=("edges", "copies")),
    "types in the range of atoms": _right(Typed, lambda: (*cluster(), torch.arange(len(cluster()[2])) % 3)),
    "sites in the range of atoms": _right(
        of(forward=lambda self, positions, site, a, b: self.of(positions, site % 3, a, b)), sites),
    "partners": _right(Partners, lambda: (*cluster(), torch.tensor([1, 0, 3, 2, 5, 4, 6]))),
    "a number of atoms": _right(Numbered, lambda: (*cluster(), 7)),
    "a batch of another name": _right(Batched, batched, also=("batch",)),
    "a batch by floating numbers of atoms": _right(Counted, lambda: batched(counts=True), also=("batch",)),
    "positions that are detached": _right(of(asked=lambda self, x: x.detach().requires_grad_())),
    "results that are kept": _right(Keeping),
    "forces without a graph in evaluation": _right(
        of(keeps=lambda self: self.training), training=False, without=DERIVED),
    "dropout in evaluation": _right(Dropping, training=False),
    "lengths by two where": _right(Lengths),
    "atoms that are none": _right(Padded, padded, without=("copies",)),
    "a generator of each call": _right(Seeded),
    "edges that are sorted": _right(_in_order(lambda dst: torch.argsort(dst, stable=True))),
    "two parities": _right(Parities, lambda: (*cluster(), torch.tensor([0.3, -0.2, 0.5]).double()), said={
        "irreps_in": {"pull": "1o"}, "irreps_out": {"polar": "1o", "chiral": "0o"}}, without=("copies",)),
    "charges that are integers": _right(
        of(forward=lambda self, positions, charges, src, dst: self.of(positions, charges + 1, src, dst)),
        lambda: (cluster()[0], cluster()[1] - 1, *cluster()[2:])),
    "an edge on the cutoff": _right(given=on_the_cutoff),
    "positions that are detached, which is told": Planted(
        ["first order", "second order"], of(asked=lambda self, x: x.detach().requires_grad_()), cluster,
        "the network detaches positions, by its own choice", "positions"),
    "what is said of integers": Planted("edges", Matrix, lambda: matrix(-1), said={
        "irreps_in": {"around": "indices_of_atoms", "z": None}}),
}  # fmt: skip


class Flat(Cluster):
    """Pairs as one number each, which no reading takes for an index."""

    def forward(self, positions: Tensor, z: Tensor, both: Tensor) -> Found:
        return self.of(positions, z, both // len(z), both % len(z))


def flat() -> Given:
    x, z, src, dst = cluster()
    return x, z, src * len(x) + dst


TOLD: dict[str, Planted] = {
    "an index of no known kind": Planted("permutation", Flat, flat, "say irreps_in={'both': 'indices_of_atoms'}"),
}


# --- wrong ------------------------------------------------------------------------------------------------------------


class Stale(Cluster):
    """Weights that are kept, with their graph, for the first list of edges."""

    kept: Tensor | None = None

    def weights(self, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) != len(src):
            self.kept = self.depth[z[src]] * 1.0
        return super().weights(edges, z, src, dst) * self.kept.detach()


class Drawing(Cluster):
    """Numbers of a generator that goes on."""

    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.generator = generator

    def weights(self, *given: Tensor) -> Tensor:
        self.generator.random()
        return super().weights(*given)


class Shuffled(Cluster):
    """Sums in another order at each call."""

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        order = torch.randperm(len(src))
        return super().energy(x, z, src[order], dst[order])


class Leaking(Matrix):
    """Places that are filled up with -1, which is the last atom."""

    def forward(self, positions: Tensor, z: Tensor, around: Tensor) -> Found:
        atom = torch.arange(len(z)).repeat_interleave(around.shape[1])
        return self.of(positions, z, atom, around.flatten())


class Swapped(Angles):
    """Edges of angles that are taken for atoms."""

    def energy(self, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        bent = 0.1 * (x[self.pairs[0] % len(x)] - x[src[self.pairs[1]]]).square().sum(-1)
        return Cluster.energy(self, x, z, src, dst).index_add(0, src[self.pairs[1]], torch.exp(-bent))


def _detached(**methods: Any) -> type[Cluster]:
    return of(asked=lambda self, x: x.detach().requires_grad_(), **methods)


def _by_number(self: Cluster, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return Cluster.weights(self, edges, src % 3, src, dst)


def _one_off(self: Cluster, edges: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return Cluster.weights(self, edges, z.roll(1), src, dst)


def _rolled(self: Cluster, x: Tensor, z: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return Cluster.energy(self, x, z, src, dst.roll(1))


FAULTS: dict[str, Planted] = {
    "weights by the number of an atom": Planted("permutation", of(weights=_by_number), cluster),
    "species of the atom before": Planted("permutation", of(weights=_one_off), cluster),
    "ends of another edge": Planted("edges", of(energy=_rolled), cluster),
    "a mean over the list": Planted("copies", of(
        energy=lambda self, x, z, src, dst: Cluster.energy(self, x, z, src, dst) / len(src)), cluster),
    "detached, and a sign": Planted("forces", _detached(told=lambda self, e, f: {"energy": e, "forces": -f}), cluster),
    "detached, and a sign, by order": Planted(
        "first order", _detached(told=lambda self, e, f: {"energy": e, "forces": -f}), cluster),
    "detached, and no slope": Planted("second order", _detached(
        told=lambda self, e, f: {"energy": e, "forces": f + 0.1 * torch.linalg.cross(f, f.roll(1, 0))}), cluster),
    "detached, and no forces": Planted("first order", _detached(told=lambda self, e, f: {"energy": e}), cluster),
    "a cache that goes stale": Planted("history", Stale, cluster),
    "a generator of numpy that goes on": Planted("surroundings", lambda: Drawing(np.random.default_rng(0)), cluster),
    "a generator of Python that goes on": Planted("surroundings", lambda: Drawing(random.Random(0)), cluster),
    "Python's random numbers that go on": Planted("surroundings", lambda: Drawing(random), cluster),
    "sums in random order": Planted("repeated", Shuffled, lambda: cluster(5)),
    "neighbours that leak": Planted("permutation", Leaking, lambda: matrix(-1)),
    "graphs that know of the first": Planted("batch", changed(
        Batched, summed=lambda self, *given: (found := Batched.summed(self, *given)) + 0.01 * found[:1]), batched),
    "a graph without atoms that is lost": Planted(
        "batch", changed(Batched, pooled=_without_empty_graphs), batched, part="a gap"),
    "the last place of a list that is filled up": Planted("edges", type("Other", (Filled,), {
        "energy": lambda self, x, z, s, d: Cluster.energy(self, x, z, s[:-1], d[:-1])}), filled),
    "a number of atoms that is fixed": Planted("copies", type("Other", (Numbered,), {
        "energy": lambda self, x, z, s, d: Cluster.energy(self, x, z, s, d) * (1 + 0.1 * (len(x) > 7))}),
        lambda: (*cluster(), 7)),
    "edges of angles that are taken for atoms": Planted(  # no reading is obeyed, and integers reach to the last edge
        ["permutation", "edges"], Swapped, angles, "one: indices of edges"),
    "an index that is said to be none": Planted("permutation", Flat, flat, said={"irreps_in": {"both": None}}),
}  # fmt: skip
