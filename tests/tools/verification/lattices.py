"""A small potential in a triclinic cell, with images of atoms themselves: right, awkward, and wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.planted import QUICK, Given, Planted, changed

CUTOFF, SPECIES = 3.0, 3
Found = dict[str, Tensor]


def neighbours(positions: Tensor, cell: Tensor, reach: int = 3) -> tuple[Tensor, Tensor]:
    """Ends of all edges shorter than the cutoff, and how many cells lie between them."""
    units = torch.cartesian_prod(*[torch.arange(-reach, reach + 1)] * 3).to(positions)
    lengths = (positions[None, :, None] - positions[:, None, None] + units @ cell).norm(dim=-1)
    source, target, image = ((lengths < CUTOFF) & (lengths > 1e-6)).nonzero().T
    return torch.stack([source, target]), units[image]


def made(places: Tensor, cell: Tensor) -> Given:
    """Positions, cell, ends, counts of cells, species and graphs of places in units of the cell."""
    positions = places @ cell
    species = torch.arange(len(places)) % SPECIES
    return positions, cell[None], *neighbours(positions, cell), species, torch.zeros(len(places), dtype=torch.long)


def triclinic(atoms: int = 3, seed: int = 0, scale: float = 1.0) -> Given:
    drawn = torch.Generator().manual_seed(seed)
    cell = scale * torch.tensor([[2.7, 0.2, -0.1], [0.6, 3.1, 0.3], [-0.4, 0.5, 3.4]], dtype=torch.float64)
    places = torch.tensor([[0, 0, 0], [0.5, 0.5, 0.1], [0.45, 0, 0.5], [0, 0.5, 0.5]], dtype=torch.float64)[:atoms]
    return made(places + 0.04 * torch.randn(atoms, 3, generator=drawn, dtype=torch.float64), cell)


def wide() -> Given:
    """A cell longer than the cutoff, whose list a network makes itself."""
    positions, cell, *_, species, batch = triclinic(4, scale=1.5)
    return positions, cell, species, batch


def bare() -> Given:
    """Without a list of edges."""
    return *triclinic()[:2], *triclinic()[4:]


def single() -> Given:
    return tuple(x.float() if x.is_floating_point() else x for x in triclinic())


def two() -> Given:
    """A batch of two crystals."""
    a, b = triclinic(3), triclinic(2, seed=1, scale=1.1)
    joined = [torch.cat([x, y]) for x, y in zip(a, b, strict=False) if x.shape[0] != 2 or x.dim() != 2]
    positions, cell, counts, species, batch = joined
    batch[3:] += 1
    return positions, cell, torch.cat([a[2], b[2] + 3], 1), counts, species, batch


def perfect() -> Given:
    """Forces vanish here."""
    places = torch.tensor([[0.0, 0, 0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    return made(places, 2.9 * torch.eye(3, dtype=torch.float64))


def vectors() -> Given:
    """Images as vectors in space."""
    given = triclinic()
    return *given[:3], given[3] @ given[1][0], *given[4:]


def cluster() -> Given:
    """Atoms without a cell: positions, ends and species."""
    drawn = torch.Generator().manual_seed(4)
    positions = 1.5 * torch.rand(5, 3, generator=drawn, dtype=torch.float64) * torch.tensor([1.0, 1.5, 2.0])
    far = 20.0 * torch.eye(3, dtype=torch.float64)
    return positions, neighbours(positions, far, reach=0)[0], torch.arange(5) % SPECIES


class Lattice(nn.Module):
    """Energies of atoms by the density and the dipole of neighbours; forces and stresses by one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.1, 0.7, 0.4]))
        self.width = nn.Parameter(torch.tensor(0.6))
        self.alone = nn.Parameter(torch.tensor([-1.0, -2.0, 0.5]))

    def forward(
        self, positions: Tensor, cell: Tensor, edge_index: Tensor, unit_shifts: Tensor, species: Tensor, batch: Tensor
    ) -> Found:
        with torch.enable_grad():
            x = self.asked(positions)
            strain = torch.zeros(len(cell), 3, 3, dtype=x.dtype, requires_grad=True)
            bent = 0.5 * (strain + strain.mT)
            place, box = x + torch.einsum("ni,nij->nj", x, bent[batch]), cell + cell @ bent
            edges = self.edges(place, box, edge_index, unit_shifts, batch)
            site = self.site(edges, edge_index, species, box, batch)
            energy = self.pooled(site, batch, len(cell))
            slope, by_strain = torch.autograd.grad(energy.sum(), [x, strain], create_graph=self.keeps())
        stress = by_strain / torch.linalg.det(cell).abs()[:, None, None]
        return self.told({"energy": energy, "forces": -slope, "stress": stress, "node_energy": site}, species)

    def asked(self, positions: Tensor) -> Tensor:
        return positions if positions.requires_grad else positions.detach().requires_grad_()

    def keeps(self) -> bool:
        return True

    def edges(self, x: Tensor, box: Tensor, ends: Tensor, counts: Tensor, batch: Tensor) -> Tensor:
        images = torch.einsum("ei,eij->ej", counts.to(x.dtype), box[batch[ends[0]]])
        return x[ends[1]] - x[ends[0]] + images

    def envelope(self, r: Tensor) -> Tensor:
        return torch.where(r < CUTOFF, (1 - (r / CUTOFF) ** 2) ** 4, torch.zeros_like(r))

    def weights(self, edges: Tensor, ends: Tensor, species: Tensor) -> Tensor:
        r = edges.norm(dim=-1)
        return self.depth[species[ends[1]]] * torch.exp(-self.width * r) * self.envelope(r)

    def site(self, edges: Tensor, ends: Tensor, species: Tensor, box: Tensor, batch: Tensor) -> Tensor:
        drawn = self.weights(edges, ends, species)
        density = drawn.new_zeros(len(species)).index_add(0, ends[0], drawn)
        dipole = drawn.new_zeros(len(species), 3).index_add(0, ends[0], drawn[:, None] * edges)
        return self.alone[species] - torch.tanh(density) + 0.3 * dipole.square().sum(-1)

    def pooled(self, site: Tensor, batch: Tensor, graphs: int) -> Tensor:
        return site.new_zeros(graphs).index_add(0, batch, site)

    def told(self, found: Found, species: Tensor) -> Found:
        return found


of = partial(changed, Lattice)


def also(term: Any) -> type[Lattice]:
    """A potential with a further energy of each atom."""
    return of(site=lambda self, *given: Lattice.site(self, *given) + term(self, *given))


def weighted(factor: Any) -> type[Lattice]:
    """A potential whose edges weigh otherwise."""
    return of(weights=lambda self, e, n, z: Lattice.weights(self, e, n, z) * factor(e, n))


# --- wrong ------------------------------------------------------------------------------------------------------------


class Nearest(Lattice):
    """A list of its own, which knows the nearest image alone."""

    def forward(self, positions: Tensor, cell: Tensor, species: Tensor, batch: Tensor) -> Found:
        with torch.no_grad():
            ends = (~torch.eye(len(positions), dtype=torch.bool)).nonzero().T
            away = positions[ends[1]] - positions[ends[0]]
            counts = -torch.round(away @ torch.linalg.inv(cell[0]))
        return super().forward(positions, cell, ends, counts, species, batch)


class Lists(Lattice):
    """A list of its own, of cells as far as the cutoff reaches."""

    def forward(self, positions: Tensor, cell: Tensor, species: Tensor, batch: Tensor) -> Found:
        with torch.no_grad():
            ends, counts = self.found(positions, cell[0])
        return super().forward(positions, cell, ends, counts, species, batch)

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return neighbours(positions, cell, self.reach(cell))

    def reach(self, cell: Tensor) -> int:
        return int(torch.ceil(CUTOFF * torch.linalg.inv(cell).norm(dim=0)).max()) + 1


class WithoutSelf(Lists):
    """Without the images of an atom itself, as where no cell is smaller than the cutoff."""

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ends, counts = super().found(positions, cell)
        others = ends[0] != ends[1]
        return ends[:, others], counts[others]


class ByLengths(Lists):
    """As many cells as the lengths of vectors say, not the heights."""

    def reach(self, cell: Tensor) -> int:
        return int(torch.ceil(CUTOFF / cell.norm(dim=1)).max())


class InsideReach(Lists):
    """As many cells as the heights say, for atoms that are inside of the cell."""

    def reach(self, cell: Tensor) -> int:
        return super().reach(cell) - 1


class FirstReach(Lists):
    """As many cells as for the first that was seen."""

    kept: int | None = None

    def reach(self, cell: Tensor) -> int:
        self.kept = super().reach(cell) - 1 if self.kept is None else self.kept
        return self.kept


class LastMove(Lists):
    """A list that is kept where atoms moved little since the last call, and not since it was made."""

    last: Tensor | None = None
    held: tuple[Tensor, Tensor] | None = None

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        last, self.last = self.last, positions.clone()
        same = last is not None and last.shape == positions.shape
        if self.held is None or not same or float((positions - last).norm(dim=-1).max()) > 0.25:
            self.held = super().found(positions, cell)
        return self.held


class SpeciesByNumber(Lattice):
    """Energies of atoms alone, kept for each number of atoms."""

    held: dict[int, Tensor] | None = None

    def site(self, edges, ends, species, box, batch):
        self.held = {} if self.held is None else self.held
        self.held.setdefault(len(species), self.alone[species].detach().clone())
        return super().site(edges, ends, species, box, batch) + self.held[len(species)]


class Chunks(Lattice):
    """Edges in chunks of 128 where they are many; a chunk that is not full is lost."""

    def site(self, edges, ends, species, box, batch):
        whole = len(edges) if len(edges) <= 512 else len(edges) // 128 * 128
        return super().site(edges[:whole], ends[:, :whole], species, box, batch)


class Kept(Lattice):
    """Numbers of neighbours, kept for each number of atoms."""

    held: dict[int, Tensor] | None = None

    def site(self, edges, ends, species, box, batch):
        self.held = {} if self.held is None else self.held
        if len(species) not in self.held:
            self.held[len(species)] = torch.bincount(ends[0], minlength=len(species)).to(edges)
        return super().site(edges, ends, species, box, batch) + 1e-3 * self.held[len(species)]


def _few(edges, ends):
    """The nearest six neighbours of each atom."""
    r, kept = edges.norm(dim=-1).detach(), torch.zeros(len(edges)).to(edges)
    for atom in ends[0].unique():
        mine = (ends[0] == atom).nonzero().flatten()
        kept[mine[r[mine].argsort()[:6]]] = 1.0
    return kept


def _close(self, edges, ends, species, box, batch):
    r = edges.norm(dim=-1)
    push = torch.where(r < 0.8, torch.exp(-r) * (0.8 - r) ** 3, torch.zeros_like(r)).detach()
    return push.new_zeros(len(species)).index_add(0, ends[0], push)


def _angles(edges, ends):
    """Angles at each atom, by pairs of its edges."""
    unit = edges / edges.norm(dim=-1, keepdim=True)
    pairs = ((ends[0][:, None] == ends[0][None]) & ~torch.eye(ends.shape[1], dtype=torch.bool)).nonzero().T
    between = torch.arccos((unit[pairs[0]] * unit[pairs[1]]).sum(-1))
    return edges.new_zeros(len(edges)).index_add(0, pairs[0], 1e-3 * between**2)


def _mean_of_neighbours(self, edges, ends, species, box, batch):
    weights = self.weights(edges, ends, species)
    degree = torch.bincount(ends[0], minlength=len(species))
    return weights.new_zeros(len(species)).index_add(0, ends[0], weights) / degree


def _in_chunks(edges, ends):
    """Whole chunks, one for each thread."""
    threads = torch.get_num_threads()
    return (torch.arange(len(edges)) < len(edges) // threads * threads).to(edges)


class Free(Lattice):
    """Atoms without a cell, by the same energies."""

    def forward(self, positions, edge_index, species):
        with torch.enable_grad():
            x = self.asked(positions)
            edges = x[edge_index[1]] - x[edge_index[0]]
            energy = self.site(edges, edge_index, species, x, torch.zeros_like(species)).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return {"energy": energy, "forces": -slope}


def free(network: type[Lattice]) -> Any:
    return type("Other", (network, Free), {})


FAULTS: dict[str, Planted] = {
    "images on the wrong side": Planted("images", of(
        edges=lambda self, x, box, n, counts, batch: Lattice.edges(self, x, box, n, -counts, batch)), triclinic),
    "no images of an atom itself": Planted("copies", weighted(lambda e, n: (n[0] != n[1]).to(e)), triclinic),
    "images of an atom itself twice": Planted("copies", weighted(lambda e, n: 1.0 + (n[0] == n[1]).to(e)), triclinic),
    "the nearest image alone": Planted("copies", Nearest, bare),
    "images of atoms inside of the cell alone": Planted("images", InsideReach, wide),
    "a cell made upright": Planted("basis", of(
        edges=lambda self, x, box, *r: Lattice.edges(self, x, box.diagonal(0, 1, 2).diag_embed(), *r)), triclinic),
    "a mean over atoms": Planted("copies", of(
        pooled=lambda self, site, batch, graphs: Lattice.pooled(self, site, batch, graphs) / len(site)), triclinic),
    "the lengths of the cell's vectors": Planted(
        "basis", also(lambda s, e, n, z, box, b: 1e-3 * box.norm(dim=-1).sum(-1)[b]), triclinic),
    "the mean of a batch": Planted("batch", also(lambda s, e, n, z, box, b: 1e-2 * s.alone[z].mean()), triclinic),
    "the mean of a batch of two": Planted("batch", also(lambda s, e, n, z, box, b: 1e-2 * s.alone[z].mean()), two),
    "the first cell for all": Planted("batch", of(
        edges=lambda self, x, box, n, *rest: Lattice.edges(self, x, box[:1].expand_as(box), n, *rest)), two),
    "the mean number of neighbours": Planted(
        "batch", also(lambda s, e, n, z, box, b: 1e-3 * s.depth[z] * len(e) / len(z)), triclinic),
    "the nearest neighbours alone": Planted("smooth", weighted(_few), triclinic),
    "a branch of close atoms without a gradient": Planted("forces", also(_close), triclinic),
    "angles by arccos": Planted("finite", free(weighted(_angles)), cluster),
    "a mean over neighbours without a guard": Planted("finite", also(_mean_of_neighbours), triclinic),
    "chunks by the number of threads": Planted("threads", weighted(_in_chunks), triclinic),
    "numbers of neighbours that are kept": Planted("history", Kept, triclinic),
    "energies kept by the number of atoms": Planted("history", SpeciesByNumber, triclinic),
    "a list kept by the last move": Planted("history", LastMove, wide),
    "the reach of the first cell": Planted("basis", FirstReach, wide),
    "no images of an atom itself, in a wide cell": Planted("copies", WithoutSelf, wide),
    "images by lengths of vectors": Planted("basis", ByLengths, wide),
    "chunks of many edges": Planted("copies", free(Chunks), cluster),
    "an exponential that overflows": Planted("finite", weighted(
        lambda e, n: torch.exp(150.0 / e.norm(dim=-1)) / (1.0 + torch.exp(150.0 / e.norm(dim=-1)))), triclinic),
    "energies of atoms without those of atoms alone": Planted("sum", of(
        told=lambda self, f, z: {**f, "node_energy": f["node_energy"] - self.alone[z]}), triclinic),
}  # fmt: skip


# --- unusual, and right -----------------------------------------------------------------------------------------------


# Counts of cells by the name of vectors.
SHIFTS = of(forward=lambda self, positions, cell, edge_index, shifts, species, batch: Lattice.forward(
    self, positions, cell, edge_index, shifts, species, batch))  # fmt: skip


class Vectors(Lattice):
    """Images as vectors in space."""

    def forward(self, positions, cell, edge_index, shifts, species, batch):
        counts = torch.einsum("ei,eij->ej", shifts, torch.linalg.inv(cell)[batch[edge_index[0]]])
        return super().forward(positions, cell, edge_index, counts, species, batch)


class All(Lattice):
    """A list of its own, with all images."""

    def forward(self, positions, cell, species, batch):
        with torch.no_grad():
            ends, counts = neighbours(positions, cell[0], reach=6)
        return super().forward(positions, cell, ends, counts, species, batch)


class Passing(Lattice):
    """Arguments without names of its own, and results without a graph."""

    def forward(self, *given):
        return {name: y.detach() for name, y in super().forward(*given).items()}


class Single(Lattice):
    """A net that computes in single precision, whatever it is given."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def weights(self, edges, ends, species):
        r = edges.norm(dim=-1, keepdim=True).float()
        return super().weights(edges, ends, species) * torch.sigmoid(self.net(r)).squeeze(-1)


class Field(Lattice):
    def forward(self, positions, cell, edge_index, unit_shifts, species, batch, field):
        self.field = field
        return super().forward(positions, cell, edge_index, unit_shifts, species, batch)

    def site(self, edges, ends, species, box, batch):
        drawn = self.weights(edges, ends, species)
        dipole = drawn.new_zeros(len(species), 3).index_add(0, ends[0], drawn[:, None] * edges)
        return super().site(edges, ends, species, box, batch) - dipole @ self.field


class Charged(Lattice):
    """A charge of the whole, shared by all atoms alike."""

    def forward(self, positions, cell, edge_index, unit_shifts, species, batch, total_charge):
        self.total = total_charge
        return super().forward(positions, cell, edge_index, unit_shifts, species, batch)

    def site(self, edges, ends, species, box, batch):
        numbers = torch.bincount(batch, minlength=len(self.total))
        return super().site(edges, ends, species, box, batch) + 0.1 * (self.total / numbers)[batch] ** 2


class TwoEnds(Lattice):
    """Edges as two vectors."""

    def forward(self, positions, cell, i, j, unit_shifts, species, batch):
        return super().forward(positions, cell, torch.stack([i, j]), unit_shifts, species, batch)


def two_ends() -> Given:
    positions, cell, ends, *rest = triclinic()
    return positions, cell, *ends, *rest


ASKING = of(asked=lambda self, positions: positions.requires_grad_())  # as some potentials do, of their caller's


class Rebuilt(Lattice):
    """A constant that its constructor makes, which no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(7.0), persistent=False)

    def weights(self, *given):
        return super().weights(*given) / self.mean


# Edges from their targets, with images of these.
OTHER_SIDE = of(forward=lambda self, positions, cell, edge_index, unit_shifts, species, batch: Lattice.forward(
    self, positions, cell, edge_index.flip(0), unit_shifts, species, batch))  # fmt: skip


def _slowly(self: Lattice, edges: Tensor, ends: Tensor, species: Tensor) -> Tensor:
    """Weights that decay slowly, and end nowhere."""
    return self.depth[species[ends[1]]] / (1 + edges.norm(dim=-1))


def in_field() -> Given:
    return *triclinic(), torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)


def other_ends() -> Given:
    return tuple(x.flip(0) if n == 2 else x for n, x in enumerate(triclinic()))


def whole_numbers() -> Given:
    return tuple(x.long() if n == 3 else x for n, x in enumerate(triclinic()))


def chain() -> Given:
    """Two edges, as many as an edge has ends."""
    return made(torch.zeros(1, 3).double(), torch.diag(torch.tensor([2.5, 9.0, 9.0])).double())


def far_apart() -> Given:
    return made(torch.eye(3, dtype=torch.float64) / 2, 14.0 * torch.eye(3, dtype=torch.float64))


def _right(network: Any = Lattice, given: Callable[[], Given] = triclinic, **more: Any) -> Planted:
    return Planted(QUICK, network, given, **more)


NAMES = ("positions", "cell", "edge_index", "unit_shifts", "species", "batch")
AWKWARD: dict[str, Planted] = {
    "lists of its own, in a wide cell": _right(Lists, wide),
    "right": _right(),
    "in single precision": _right(given=single, dtype=torch.float32),
    "in evaluation": _right(of(keeps=lambda self: self.training), training=False),
    "a batch of two": _right(given=two),
    "forces that vanish": _right(given=perfect),
    "one atom": _right(given=lambda: triclinic(1)),
    "atoms far apart": _right(given=far_apart),
    "counts by the name of vectors": _right(SHIFTS),
    "counts by the name of vectors, and said so": _right(SHIFTS, said={"irreps_in": {"shifts": None}}),
    "counts that are integers": _right(given=whole_numbers),
    "vectors": _right(Vectors, vectors),
    "images of the other end": _right(OTHER_SIDE, other_ends),
    "a list of its own": _right(All, bare),
    "a dict": _right(
        of(forward=lambda self, data: Lattice.forward(self, **data)),
        lambda: (dict(zip(NAMES, triclinic(), strict=True)),),
    ),
    "arguments without names": _right(Passing, training=False),
    "single precision inside": _right(Single, single, dtype=torch.float32),
    "a field of three, and three atoms": _right(Field, in_field, said={"irreps_in": {"field": "cartesian_vectors"}}),
    "a charge of all atoms": _right(Charged, lambda: (*triclinic(), torch.ones(1, dtype=torch.float64))),
    "no cell": _right(Free, cluster),
    "gradients asked for": _right(ASKING),
    "a constant of the constructor": _right(Rebuilt),
}
TOLD: dict[str, Planted] = {
    "gradients asked for": Planted(
        "surroundings", ASKING, triclinic, "sets requires_grad of its caller's tensor", "positions"),
    "a constant of the constructor": Planted(
        "saved", Rebuilt, triclinic, "no state_dict holds mean: they must come from the constructor", "buffers"),
    "no cutoff": Planted("smooth", of(weights=_slowly), triclinic, "no cutoff ends them", "long edges"),
    "no cutoff, in two crystals": Planted("smooth", of(weights=_slowly), two, "no cutoff ends them", "long edges"),
    "no cutoff, where forces vanish": Planted(
        "smooth", of(weights=_slowly), perfect, "no cutoff ends them", "long edges"),
}  # fmt: skip
RIGHT: dict[str, Planted] = {
    "two edges of one atom": Planted(["edges", "images", "copies", "finite"], Lattice, chain),
    "two vectors of ends": Planted(
        ["images", "basis", "copies", "stress", "batch"], TwoEnds, two_ends, "i, j: ends of edges"),
    **{f"a cutoff, {given.__name__}": Planted("smooth", Lattice, given) for given in (triclinic, two, perfect)},
}  # fmt: skip
