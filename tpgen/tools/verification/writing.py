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


def _arrange_edge_rows_as_in_argument(
    parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor, edge_rows: Tensor
) -> Tensor:
    edges = parsed_graph_inputs.edges
    if edges is None or edges.slots is None:
        return edge_rows
    flat = _shift_padding_indices(parsed_graph_inputs, graph, original_argument).flatten(0, edges.axes - 1)
    shape: tuple[int, ...] = (max(len(original_argument), len(edge_rows)),)
    places = torch.arange(len(edge_rows))
    if edges.axes == 2:
        shape, places = _find_neighbour_matrix_shape_and_edge_slots(
            graph, 0 if edges.empty is None else original_argument.shape[1]
        )
    room = flat[edges.empty or 0].expand(torch.Size(shape).numel(), *flat.shape[1:]).clone()
    if edges.empty is None and len(edge_rows) != len(room):
        raise NotCompared(FULL)
    room[places] = edge_rows
    return room.reshape(*shape, *flat.shape[1:])


def _find_neighbour_matrix_shape_and_edge_slots(graph: AtomGraph, min_width: int) -> tuple[tuple[int, int], Tensor]:
    assert graph.ends is not None
    first, number = graph.ends[0], len(graph.points)
    counts = torch.bincount(first, minlength=number)
    order = torch.argsort(first, stable=True)
    rank = torch.empty_like(first)
    rank[order] = torch.arange(len(first)) - (counts.cumsum(0) - counts)[first[order]]
    min_width = max(min_width, int(counts.max()) if len(counts) else 0)
    return (number, min_width), first * min_width + rank


def _shift_padding_indices(parsed_graph_inputs: Any, graph: AtomGraph, indices: Tensor) -> Tensor:
    # indices beyond the last atom fill empty places: as far beyond the new last atom
    if indices.is_floating_point() or indices.dtype == torch.bool:
        return indices
    before, after = len(parsed_graph_inputs.graph.points), len(graph.points)
    return torch.where(indices >= before, indices + (after - before), indices)


def _table_of_new_rows_by_copy_and_old_row(
    old_rows: Tensor, copy_of_row: Tensor, copy_count: int, old_row_count: int
) -> Tensor:
    table = torch.full((copy_count, max(old_row_count, 1)), -1)
    table[copy_of_row, old_rows] = torch.arange(len(old_rows))
    return table


def _renumber_indices(
    parsed_graph_inputs: Any, graph: AtomGraph, index_kind: str, indices: Tensor, copy_of_row: Tensor
) -> Tensor:
    if index_kind == ATOMS:
        table = _table_of_new_rows_by_copy_and_old_row(
            graph.atoms, graph.twins, graph.copy_count, len(parsed_graph_inputs.graph.points)
        )
    else:
        assert graph.edges is not None
        assert graph.edge_twins is not None
        table = _table_of_new_rows_by_copy_and_old_row(
            graph.edges, graph.edge_twins, graph.copy_count, parsed_graph_inputs.graph.ends.shape[1]
        )
    indices = indices.long()
    within = (indices >= 0) & (indices < table.shape[1])
    copy = copy_of_row.reshape(-1, *[1] * (indices.dim() - 1)).expand_as(indices)
    renumbered = table[copy, torch.where(within, indices, 0)]
    return torch.where(within, renumbered, _shift_padding_indices(parsed_graph_inputs, graph, indices))


def _make_index_argument_for_graph(
    parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor, index_kind: str, row_kind: str
) -> Tensor:
    if row_kind == "tuples":
        return _select_and_renumber_index_tuples(parsed_graph_inputs, graph, original_argument, index_kind)
    if index_kind == GRAPHS:
        assert graph.ends is not None
        return _arrange_edge_rows_as_in_argument(
            parsed_graph_inputs, graph, original_argument, graph.batch[graph.ends[0]]
        )
    if row_kind == EDGES:
        assert graph.edge_twins is not None
        indices = parsed_graph_inputs.edges.rows_of_edges(original_argument)[graph.edges]
        renumbered = _renumber_indices_or_raise(parsed_graph_inputs, graph, index_kind, indices, graph.edge_twins)
        return _arrange_edge_rows_as_in_argument(parsed_graph_inputs, graph, original_argument, renumbered)
    if row_kind == ATOMS:
        return _renumber_indices_or_raise(
            parsed_graph_inputs, graph, index_kind, original_argument[graph.atoms], graph.twins
        )
    twins = torch.stack([graph.twins[graph.batch == n][0] for n in range(graph.graph_count)])
    return _renumber_indices_or_raise(parsed_graph_inputs, graph, index_kind, original_argument[graph.graphs], twins)


def _renumber_indices_or_raise(
    parsed_graph_inputs: Any, graph: AtomGraph, index_kind: str, indices: Tensor, copy_of_row: Tensor
) -> Tensor:
    found = _renumber_indices(parsed_graph_inputs, graph, index_kind, indices, copy_of_row)
    if bool(((found == -1) & (indices != -1)).any()):
        raise NotCompared(LOST)
    return found


def find_tuple_axis(tuples: Tensor) -> int:
    """Axis along which tuples of indices follow each other.

    >>> find_tuple_axis(torch.ones(3, 8)), find_tuple_axis(torch.ones(8, 3))
    (1, 0)
    """
    return int(tuples.dim() == 2 and tuples.shape[0] in (2, 3, 4) and tuples.shape[1] > tuples.shape[0])


def _select_and_renumber_index_tuples(
    parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor, index_kind: str
) -> Tensor:
    # tuples whose indices are all left, in each copy of the graph
    axis = find_tuple_axis(original_argument)
    kept, twins = _find_rows_and_copies_of_index_tuples_within_graph(
        parsed_graph_inputs, graph, original_argument.shape[axis]
    )
    rows = original_argument.movedim(axis, 0)[kept]
    return (_renumber_indices(parsed_graph_inputs, graph, index_kind, rows, twins) if index_kind else rows).movedim(
        0, axis
    )


def _find_rows_and_copies_of_index_tuples_within_graph(
    parsed_graph_inputs: Any, graph: AtomGraph, tuple_count: int
) -> tuple[Tensor, Tensor]:
    rows, copies = [], []
    for copy in range(graph.copy_count):
        there = torch.ones(tuple_count, dtype=torch.bool)
        for name in parsed_graph_inputs.index_names:
            x = parsed_graph_inputs.values[name]
            if parsed_graph_inputs.roles[name].endswith("by tuples") and x.shape[find_tuple_axis(x)] == tuple_count:
                x, kind = x.movedim(find_tuple_axis(x), 0), parsed_graph_inputs.roles[name].split()[0]
                found = _renumber_indices(parsed_graph_inputs, graph, kind, x, torch.full((tuple_count,), copy))
                there &= ((found != -1) | (x == -1)).reshape(tuple_count, -1).all(1)
        rows.append(there.nonzero().flatten())
        copies.append(torch.full_like(rows[-1], copy))
    return torch.cat(rows), torch.cat(copies)


def _select_rows_and_columns_of_atoms(parsed_graph_inputs: Any, graph: AtomGraph, atom_matrix: Tensor) -> Tensor:
    # a row and a column for each atom: zeros between copies of the graph, which only flags have
    found = atom_matrix[graph.atoms][:, graph.atoms]
    apart = graph.twins[:, None] != graph.twins[None]
    if not bool(apart.any()):
        return found
    if bool(((atom_matrix != 0) & (atom_matrix != 1)).any()):
        raise NotCompared("nobody can tell what stands between the atoms of two graphs")
    return found * ~apart.reshape(*apart.shape, *[1] * (atom_matrix.dim() - 2))


def _make_edge_shifts_for_graph(parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor) -> Tensor:
    if graph.edges is None or graph.counts is None:
        return _select_argument_rows_for_graph(parsed_graph_inputs, graph, original_argument, EDGES)
    return _arrange_edge_rows_as_in_argument(
        parsed_graph_inputs,
        graph,
        original_argument,
        (parsed_graph_inputs.sign * graph.displacements_of_cell_counts(graph.counts)).to(original_argument.dtype),
    )


def _select_argument_rows_for_graph(
    parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor, row_kind: str
) -> Tensor:
    rows = getattr(graph, row_kind)
    if rows is None:
        return original_argument
    if row_kind != EDGES:
        return original_argument[rows]
    return _arrange_edge_rows_as_in_argument(
        parsed_graph_inputs, graph, original_argument, parsed_graph_inputs.edges.rows_of_edges(original_argument)[rows]
    )


def _count_atoms_or_edges_by_graph(graph: AtomGraph, count_edges: bool = False) -> Tensor:
    batch = graph.batch[graph.ends[0]] if count_edges and graph.ends is not None else graph.batch
    return torch.bincount(batch, minlength=graph.graph_count)


def _segment_offsets(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _count_edges_by_first_atom(graph: AtomGraph) -> Tensor:
    assert graph.ends is not None
    return torch.bincount(graph.ends[0], minlength=len(graph.points))


def _make_edge_ends_for_graph(
    parsed_graph_inputs: Any, graph: AtomGraph, original_argument: Tensor, end: int | slice, transposed: bool = False
) -> Tensor:
    assert graph.ends is not None
    original_argument = original_argument.T if transposed else original_argument
    return _arrange_edge_rows_as_in_argument(
        parsed_graph_inputs, graph, original_argument, graph.ends.T[:, end].to(original_argument.dtype)
    )


WRITE: dict[str, Callable[[Any, AtomGraph, Tensor], Tensor]] = {
    "points": lambda r, g, x: g.points,
    "cell": lambda r, g, x: x if g.cells is None else g.cells.reshape(-1, 3) if x.dim() == 2 else g.cells,
    "ends": lambda r, g, x: _make_edge_ends_for_graph(r, g, x, slice(None), transposed=True).T,
    "ends by rows": lambda r, g, x: _make_edge_ends_for_graph(r, g, x, slice(None)),
    "first ends": lambda r, g, x: _make_edge_ends_for_graph(r, g, x, 0),
    "second ends": lambda r, g, x: _make_edge_ends_for_graph(r, g, x, 1),
    "neighbours": lambda r, g, x: _make_edge_ends_for_graph(r, g, x, 1),
    "begins of rows": lambda r, g, x: _segment_offsets(_count_edges_by_first_atom(g)),
    "lengths of rows": lambda r, g, x: _count_edges_by_first_atom(g),
    "vectors": _make_edge_shifts_for_graph,
    "counts": lambda r, g, x: (
        x if g.counts is None else _arrange_edge_rows_as_in_argument(r, g, x, (r.sign * g.counts).to(x.dtype))
    ),
    "batch": lambda r, g, x: g.batch,
    "pointers": lambda r, g, x: _segment_offsets(_count_atoms_or_edges_by_graph(g)),
    "numbers of atoms": lambda r, g, x: _count_atoms_or_edges_by_graph(g).reshape(-1, *x.shape[1:]),
    "numbers of edges": lambda r, g, x: _count_atoms_or_edges_by_graph(g, count_edges=True).reshape(-1, *x.shape[1:]),
    "all atoms": lambda r, g, x: torch.tensor(len(g.points)).reshape(x.shape),
    "all edges": lambda r, g, x: torch.tensor(0 if g.ends is None else g.ends.shape[1]).reshape(x.shape),
    "all graphs": lambda r, g, x: torch.tensor(g.graph_count).reshape(x.shape),
    "square": _select_rows_and_columns_of_atoms,
    "tuples": lambda r, g, x: _select_and_renumber_index_tuples(r, g, x, ""),
    ATOMS: lambda r, g, x: _select_argument_rows_for_graph(r, g, x, ATOMS),
    EDGES: lambda r, g, x: _select_argument_rows_for_graph(r, g, x, EDGES),
    GRAPHS: lambda r, g, x: _select_argument_rows_for_graph(r, g, x, GRAPHS),
    "": lambda r, g, x: x,
}


def make_call_arguments_for_graph(parsed_graph_inputs: Any, graph: AtomGraph) -> TensorsByName:
    found = {}
    for name, x in parsed_graph_inputs.values.items():
        kind, _, rows = parsed_graph_inputs.roles[name].partition(" by ")
        if parsed_graph_inputs.roles[name] in WRITE:
            found[name] = WRITE[parsed_graph_inputs.roles[name]](parsed_graph_inputs, graph, x).to(x.dtype)
        else:
            found[name] = _make_index_argument_for_graph(parsed_graph_inputs, graph, x, kind, rows).to(x.dtype)
    return found
