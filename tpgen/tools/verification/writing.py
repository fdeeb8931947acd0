"""A call's arguments for another graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tpgen.tools.verification.findings import NotCompared
from tpgen.tools.verification.graphs import AtomGraph
from tpgen.tools.verification.indices import ATOMS, EDGES, GRAPHS
from tpgen.tools.verification.subject import TensorsByName

LOST = "an index means what another graph has no more"
FULL = "no place among the neighbours of an atom is empty: give a call in which one is"


def _write_rows_into_edge_slots(reading: Any, graph: AtomGraph, original: Tensor, rows: Tensor) -> Tensor:
    edges = reading.edges
    if edges is None or edges.slots is None:
        return rows
    flat = _shift_padding_indices(reading, graph, original).flatten(0, edges.axes - 1)
    shape: tuple[int, ...] = (max(len(original), len(rows)),)
    places = torch.arange(len(rows))
    if edges.axes == 2:
        shape, places = _neighbour_matrix_shape_and_slots(graph, 0 if edges.empty is None else original.shape[1])
    room = flat[edges.empty or 0].expand(torch.Size(shape).numel(), *flat.shape[1:]).clone()
    if edges.empty is None and len(rows) != len(room):
        raise NotCompared(FULL)
    room[places] = rows
    return room.reshape(*shape, *flat.shape[1:])


def _neighbour_matrix_shape_and_slots(graph: AtomGraph, width: int) -> tuple[tuple[int, int], Tensor]:
    assert graph.ends is not None
    first, number = graph.ends[0], len(graph.points)
    counts = torch.bincount(first, minlength=number)
    order = torch.argsort(first, stable=True)
    rank = torch.empty_like(first)
    rank[order] = torch.arange(len(first)) - (counts.cumsum(0) - counts)[first[order]]
    width = max(width, int(counts.max()) if len(counts) else 0)
    return (number, width), first * width + rank


def _shift_padding_indices(reading: Any, graph: AtomGraph, indices: Tensor) -> Tensor:
    # indices beyond the last atom fill empty places: as far beyond the new last atom
    if indices.is_floating_point() or indices.dtype == torch.bool:
        return indices
    before, after = len(reading.graph.points), len(graph.points)
    return torch.where(indices >= before, indices + (after - before), indices)


def _number_table(ids: Tensor, copy_of_row: Tensor, copy_count: int, number: int) -> Tensor:
    """Return new numbers by copy and old number; -1 for removed rows."""
    table = torch.full((copy_count, max(number, 1)), -1)
    table[copy_of_row, ids] = torch.arange(len(ids))
    return table


def _renumber_indices(reading: Any, graph: AtomGraph, kind: str, indices: Tensor, copy_of_row: Tensor) -> Tensor:
    if kind == ATOMS:
        table = _number_table(graph.atoms, graph.twins, graph.copies, len(reading.graph.points))
    else:
        assert graph.edges is not None
        assert graph.edge_twins is not None
        table = _number_table(graph.edges, graph.edge_twins, graph.copies, reading.graph.ends.shape[1])
    indices = indices.long()
    within = (indices >= 0) & (indices < table.shape[1])
    copy = copy_of_row.reshape(-1, *[1] * (indices.dim() - 1)).expand_as(indices)
    renumbered = table[copy, torch.where(within, indices, 0)]
    return torch.where(within, renumbered, _shift_padding_indices(reading, graph, indices))


def _write_indices(reading: Any, graph: AtomGraph, original: Tensor, kind: str, rows: str) -> Tensor:
    if rows == "tuples":
        return _write_index_tuples(reading, graph, original, kind)
    if kind == GRAPHS:
        assert graph.ends is not None
        return _write_rows_into_edge_slots(reading, graph, original, graph.batch[graph.ends[0]])
    if rows == EDGES:
        assert graph.edge_twins is not None
        indices = reading.edges.rows_of_edges(original)[graph.edges]
        renumbered = _renumber_indices_or_raise(reading, graph, kind, indices, graph.edge_twins)
        return _write_rows_into_edge_slots(reading, graph, original, renumbered)
    if rows == ATOMS:
        return _renumber_indices_or_raise(reading, graph, kind, original[graph.atoms], graph.twins)
    twins = torch.stack([graph.twins[graph.batch == n][0] for n in range(graph.number)])
    return _renumber_indices_or_raise(reading, graph, kind, original[graph.graphs], twins)


def _renumber_indices_or_raise(
    reading: Any, graph: AtomGraph, kind: str, indices: Tensor, copy_of_row: Tensor
) -> Tensor:
    found = _renumber_indices(reading, graph, kind, indices, copy_of_row)
    if bool(((found == -1) & (indices != -1)).any()):
        raise NotCompared(LOST)
    return found


def find_tuple_axis(tuples: Tensor) -> int:
    """Axis along which tuples of indices follow each other.

    >>> find_tuple_axis(torch.ones(3, 8)), find_tuple_axis(torch.ones(8, 3))
    (1, 0)
    """
    return int(tuples.dim() == 2 and tuples.shape[0] in (2, 3, 4) and tuples.shape[1] > tuples.shape[0])


def _write_index_tuples(reading: Any, graph: AtomGraph, original: Tensor, kind: str) -> Tensor:
    # tuples whose indices are all left, in each copy of the graph
    axis = find_tuple_axis(original)
    kept, twins = _numbers_and_copies_of_complete_tuples(reading, graph, original.shape[axis])
    rows = original.movedim(axis, 0)[kept]
    return (_renumber_indices(reading, graph, kind, rows, twins) if kind else rows).movedim(0, axis)


def _numbers_and_copies_of_complete_tuples(reading: Any, graph: AtomGraph, number: int) -> tuple[Tensor, Tensor]:
    rows, copies = [], []
    for copy in range(graph.copies):
        there = torch.ones(number, dtype=torch.bool)
        for name in reading.index_names:
            x = reading.values[name]
            if reading.roles[name].endswith("by tuples") and x.shape[find_tuple_axis(x)] == number:
                x, kind = x.movedim(find_tuple_axis(x), 0), reading.roles[name].split()[0]
                found = _renumber_indices(reading, graph, kind, x, torch.full((number,), copy))
                there &= ((found != -1) | (x == -1)).reshape(number, -1).all(1)
        rows.append(there.nonzero().flatten())
        copies.append(torch.full_like(rows[-1], copy))
    return torch.cat(rows), torch.cat(copies)


def _write_rows_and_columns_of_atoms(reading: Any, graph: AtomGraph, original: Tensor) -> Tensor:
    # a row and a column for each atom: zeros between copies of the graph, which only flags have
    found = original[graph.atoms][:, graph.atoms]
    apart = graph.twins[:, None] != graph.twins[None]
    if not bool(apart.any()):
        return found
    if bool(((original != 0) & (original != 1)).any()):
        raise NotCompared("nobody can tell what stands between the atoms of two graphs")
    return found * ~apart.reshape(*apart.shape, *[1] * (original.dim() - 2))


def _write_edge_shifts(reading: Any, graph: AtomGraph, original: Tensor) -> Tensor:
    if graph.edges is None or graph.counts is None:
        return _write_selected_rows(reading, graph, original, EDGES)
    return _write_rows_into_edge_slots(
        reading, graph, original, (reading.sign * graph.shifts(graph.counts)).to(original.dtype)
    )


def _write_selected_rows(reading: Any, graph: AtomGraph, original: Tensor, row_kind: str) -> Tensor:
    rows = getattr(graph, row_kind)
    if rows is None:
        return original
    if row_kind != EDGES:
        return original[rows]
    return _write_rows_into_edge_slots(reading, graph, original, reading.edges.rows_of_edges(original)[rows])


def _count_by_graph(graph: AtomGraph, of_edges: bool = False) -> Tensor:
    batch = graph.batch[graph.ends[0]] if of_edges and graph.ends is not None else graph.batch
    return torch.bincount(batch, minlength=graph.number)


def _segment_offsets(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _count_edges_by_first_atom(graph: AtomGraph) -> Tensor:
    assert graph.ends is not None
    return torch.bincount(graph.ends[0], minlength=len(graph.points))


def _write_edge_ends(reading: Any, graph: AtomGraph, original: Tensor, end: Any, transposed: bool = False) -> Tensor:
    assert graph.ends is not None
    original = original.T if transposed else original
    return _write_rows_into_edge_slots(reading, graph, original, graph.ends.T[:, end].to(original.dtype))


WRITE: dict[str, Callable[[Any, AtomGraph, Tensor], Tensor]] = {
    "points": lambda r, g, x: g.points,
    "cell": lambda r, g, x: x if g.cells is None else g.cells.reshape(-1, 3) if x.dim() == 2 else g.cells,
    "ends": lambda r, g, x: _write_edge_ends(r, g, x, slice(None), transposed=True).T,
    "ends by rows": lambda r, g, x: _write_edge_ends(r, g, x, slice(None)),
    "first ends": lambda r, g, x: _write_edge_ends(r, g, x, 0),
    "second ends": lambda r, g, x: _write_edge_ends(r, g, x, 1),
    "neighbours": lambda r, g, x: _write_edge_ends(r, g, x, 1),
    "begins of rows": lambda r, g, x: _segment_offsets(_count_edges_by_first_atom(g)),
    "lengths of rows": lambda r, g, x: _count_edges_by_first_atom(g),
    "vectors": _write_edge_shifts,
    "counts": lambda r, g, x: (
        x if g.counts is None else _write_rows_into_edge_slots(r, g, x, (r.sign * g.counts).to(x.dtype))
    ),
    "batch": lambda r, g, x: g.batch,
    "pointers": lambda r, g, x: _segment_offsets(_count_by_graph(g)),
    "numbers of atoms": lambda r, g, x: _count_by_graph(g).reshape(-1, *x.shape[1:]),
    "numbers of edges": lambda r, g, x: _count_by_graph(g, of_edges=True).reshape(-1, *x.shape[1:]),
    "all atoms": lambda r, g, x: torch.tensor(len(g.points)).reshape(x.shape),
    "all edges": lambda r, g, x: torch.tensor(0 if g.ends is None else g.ends.shape[1]).reshape(x.shape),
    "all graphs": lambda r, g, x: torch.tensor(g.number).reshape(x.shape),
    "square": _write_rows_and_columns_of_atoms,
    "tuples": lambda r, g, x: _write_index_tuples(r, g, x, ""),
    ATOMS: lambda r, g, x: _write_selected_rows(r, g, x, ATOMS),
    EDGES: lambda r, g, x: _write_selected_rows(r, g, x, EDGES),
    GRAPHS: lambda r, g, x: _write_selected_rows(r, g, x, GRAPHS),
    "": lambda r, g, x: x,
}


def write_arguments_for_graph(reading: Any, graph: AtomGraph) -> TensorsByName:
    """A call's arguments for another graph."""
    found = {}
    for name, x in reading.values.items():
        kind, _, rows = reading.roles[name].partition(" by ")
        if reading.roles[name] in WRITE:
            found[name] = WRITE[reading.roles[name]](reading, graph, x).to(x.dtype)
        else:
            found[name] = _write_indices(reading, graph, x, kind, rows).to(x.dtype)
    return found
