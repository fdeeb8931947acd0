"""Meaning of integer arguments: rows and edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product

import torch
from torch import Tensor

from tpgen.networks.trial import is_index
from tpgen.tools.verification.subject import TensorsByName, last_dict_key

ATOMS, EDGES, GRAPHS, LABELS = "atoms", "edges", "graphs", ""
INDEX_WORDS: dict[str | None, str] = {  # what `irreps_in` may say of integers
    "indices_of_atoms": ATOMS,
    "indices_of_edges": EDGES,
    "indices_of_graphs": GRAPHS,
    None: LABELS,
}
EDGE_INDEX = "edge_index"
PAIRS = (  # names of two vectors, the ends of edges
    ("src", "dst"), ("source", "target"), ("sources", "targets"), ("senders", "receivers"), ("idx_i", "idx_j"),
    ("edge_src", "edge_dst"), ("row", "col"), ("rows", "cols"), ("i", "j"), ("ind_i", "ind_j"), ("idx_u", "idx_v"),
    ("center", "neighbor"), ("centers", "neighbors"), ("edge_i", "edge_j"), ("first", "second"), ("head", "tail"),
)  # fmt: skip
_ATOM_NAMES = {EDGE_INDEX, "neighbors", "neighbours", "neighbor_list", "nbr_list", "nbrs", "idx_k"}
_ATOM_NAMES |= {name for pair in PAIRS for name in pair} - {"row", "col", "i", "j", "first", "second", "head", "tail"}
SPECIES_NAMES = {
    "z", "species", "atomic_numbers", "atomic_number", "numbers", "types", "type", "atom_types", "atom_type",
    "elements", "element", "node_type", "edge_type", "edge_types", "bond_type",
}  # fmt: skip
_LABEL_NAMES = {*SPECIES_NAMES, "charges", "charge", "spins", "spin", "node_attrs"}
_CANDIDATES = 64  # readings that are tried


def _may_be_row_indices(integers: Tensor, row_count: int) -> bool:
    within = (integers >= 0) & (integers < row_count)
    without = integers[~within]
    return bool(within.any()) and (not len(without) or (integers.dim() > 0 and bool((without == without[0]).all())))


def list_possible_index_kinds(argument_name: str, indices: Tensor, atom_count: int) -> tuple[str, ...]:
    """Kinds of rows (atoms, edges or none) that integers may index, likeliest first."""
    named, known = last_dict_key(argument_name).lower(), _may_be_row_indices(indices, atom_count)
    if named in _LABEL_NAMES or not indices.numel():
        return (LABELS,)
    if known and named in _ATOM_NAMES:
        return (ATOMS,)
    others = (EDGES,) if indices.dim() and len(indices) != atom_count and int(indices.min()) >= 0 else ()
    if not known:
        return (LABELS, *others)
    by_atom = indices.dim() == 1 and len(indices) == atom_count
    few = indices.dim() != 2 and 2 * len(indices.unique()) <= atom_count
    return (LABELS, ATOMS, *others) if by_atom or few or indices.numel() == 1 else (ATOMS, LABELS, *others)


def iterate_kind_assignments(candidate_kinds: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Yield a kind for each index tensor, likeliest choice first."""
    places = product(*(range(len(kinds)) for kinds in candidate_kinds.values()))
    for chosen in sorted(islice(places, 4096), key=lambda places: (sum(map(bool, places)), places))[:_CANDIDATES]:
        yield {name: kinds[n] for (name, kinds), n in zip(candidate_kinds.items(), chosen, strict=True)}


@dataclass(frozen=True)
class EncodedEdges:
    """Edges read from index arguments, and the layout of edge rows."""

    ends: Tensor
    roles: Mapping[str, str]
    shape: tuple[int, ...]
    slots: Tensor | None = None  # of each edge, in the first axes of an argument; None: one row for each edge
    empty: int | None = None  # a slot without an edge
    in_order: bool = False  # edges are sorted by first end
    axes: int = field(default=1)  # first axes of an argument that slots fill: 2 for neighbours of each atom

    def has_row_per_edge(self, x: Tensor) -> bool:
        return tuple(x.shape[: self.axes]) == self.shape

    def rows_of_edges(self, x: Tensor) -> Tensor:
        """A tensor's rows, one for each edge."""
        return x if self.slots is None else x.flatten(0, self.axes - 1)[self.slots]


def find_edges_in_arguments(
    arguments: TensorsByName, index_kinds: Mapping[str, str], atom_count: int
) -> EncodedEdges | None:
    """Find edges that index arguments encode."""
    names = [name for name in index_kinds if index_kinds[name] == ATOMS and is_index(arguments[name])]
    names.sort(key=lambda name: last_dict_key(name) != EDGE_INDEX)
    for find in (
        _find_edges_in_matrix_of_pairs,
        _find_edges_in_two_vectors,
        _find_edges_in_neighbour_matrix,
        _find_edges_in_flat_neighbour_list,
    ):
        found = find(arguments, names, atom_count)
        if found is not None and found.ends.shape[1]:
            return _add_roles_of_arguments_that_repeat_edge_ends(found, arguments, names)
    return None


def _find_edges_in_matrix_of_pairs(
    arguments: TensorsByName, index_names: list[str], atom_count: int
) -> EncodedEdges | None:
    for name in index_names:
        x = arguments[name]
        if (
            x.dim() == 2
            and 2 in x.shape
            and (x.shape[0] == 2 or x.shape[0] != atom_count or last_dict_key(name) == EDGE_INDEX)
        ):
            role = "ends" if x.shape[0] == 2 else "ends by rows"
            return _encode_edges_without_padding(x if role == "ends" else x.T, {name: role}, atom_count)
    return None


def _find_edges_in_two_vectors(
    arguments: TensorsByName, index_names: list[str], atom_count: int
) -> EncodedEdges | None:
    vectors = {name: arguments[name] for name in index_names if arguments[name].dim() == 1}
    by_name = {last_dict_key(name).lower(): name for name in vectors}
    pairs = [(by_name[a], by_name[b]) for a, b in PAIRS if a in by_name and b in by_name]
    for length in {len(x) for x in vectors.values()} - {atom_count}:
        alike = tuple(name for name, x in vectors.items() if len(x) == length)
        pairs += [alike] if len(alike) == 2 else []
    for first, second in pairs:
        if vectors[first].shape == vectors[second].shape:
            roles = {first: "first ends", second: "second ends"}
            return _encode_edges_without_padding(torch.stack([vectors[first], vectors[second]]), roles, atom_count)
    return None


def _encode_edges_without_padding(
    edge_ends: Tensor, argument_roles: Mapping[str, str], atom_count: int
) -> EncodedEdges:
    edge_ends = edge_ends.long()
    kept = ((edge_ends >= 0) & (edge_ends < atom_count)).all(0)
    if bool(kept.all()):
        return EncodedEdges(edge_ends, argument_roles, (edge_ends.shape[1],))
    empty = int((~kept).nonzero()[0])
    return EncodedEdges(edge_ends[:, kept], argument_roles, (edge_ends.shape[1],), kept.nonzero().flatten(), empty)


def _find_edges_in_neighbour_matrix(
    arguments: TensorsByName, index_names: list[str], atom_count: int
) -> EncodedEdges | None:
    # a row of neighbours for each atom; a slot without an index, or masked, is empty
    for name in index_names:
        x = arguments[name]
        if x.dim() == 2 and len(x) == atom_count:
            kept = (x >= 0) & (x < atom_count)
            for mask in (m for m in arguments.values() if m.dtype == torch.bool and m.shape == x.shape):
                left = x[~mask]
                kept = kept & mask if len(left) and bool((left == left[0]).all()) else kept
            atom, place = kept.nonzero().T
            empty = (~kept).flatten().nonzero().flatten()
            slots = kept.flatten().nonzero().flatten()
            ends = torch.stack([atom, x.long()[atom, place]])
            return EncodedEdges(
                ends, {name: "neighbours"}, tuple(x.shape), slots, int(empty[0]) if len(empty) else None, axes=2
            )
    return None


def _find_edges_in_flat_neighbour_list(
    arguments: TensorsByName, index_names: list[str], atom_count: int
) -> EncodedEdges | None:
    # a vector of neighbours, with the count or the offset of each atom
    for name in (name for name in index_names if arguments[name].dim() == 1):
        x = arguments[name].long()
        for other, held in ((n, v.long()) for n, v in arguments.items() if is_index(v) and v.dim() == 1 and n != name):
            begins = len(held) == atom_count + 1 and int(held[0]) == 0 and bool((held.diff() >= 0).all())
            counts = held.diff() if begins else held
            if len(counts) == atom_count and int(counts.min()) >= 0 and int(counts.sum()) == len(x) and len(x) > 1:
                ends = torch.stack([torch.repeat_interleave(torch.arange(atom_count), counts), x])
                roles = {name: "second ends", other: "begins of rows" if begins else "lengths of rows"}
                return EncodedEdges(ends, roles, (len(x),), in_order=True)
    return None


def _add_roles_of_arguments_that_repeat_edge_ends(
    edges: EncodedEdges, arguments: TensorsByName, index_names: list[str]
) -> EncodedEdges:
    roles = dict(edges.roles)
    for name in (
        name
        for name in index_names
        if name not in roles and edges.axes == 1 and edges.has_row_per_edge(arguments[name])
    ):
        for end, role in zip(edges.ends, ("first ends", "second ends"), strict=True):
            if torch.equal(edges.rows_of_edges(arguments[name]), end):
                roles.setdefault(name, role)
    return replace(edges, roles=roles)
