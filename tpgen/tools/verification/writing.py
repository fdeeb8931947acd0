"""The arguments of a call of another graph: each tensor written by its role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tpgen.tools.verification.findings import NotCompared
from tpgen.tools.verification.graphs import AtomGraph
from tpgen.tools.verification.indices import ATOMS, EDGES, GRAPHS
from tpgen.tools.verification.subject import Named

LOST = "an index means what another graph has no more"
FULL = "no place among the neighbours of an atom is empty: give a call in which one is"


def _laid(reading: Any, graph: AtomGraph, x: Tensor, rows: Tensor) -> Tensor:
    """Rows of edges in the places of an argument, and what stood in an empty one in all others."""
    edges = reading.edges
    if edges is None or edges.slots is None:
        return rows
    flat = _further(reading, graph, x).flatten(0, edges.axes - 1)
    shape: tuple[int, ...] = (max(len(x), len(rows)),)
    places = torch.arange(len(rows))
    if edges.axes == 2:
        shape, places = _places(graph, 0 if edges.empty is None else x.shape[1])
    room = flat[edges.empty or 0].expand(torch.Size(shape).numel(), *flat.shape[1:]).clone()
    if edges.empty is None and len(rows) != len(room):
        raise NotCompared(FULL)
    room[places] = rows
    return room.reshape(*shape, *flat.shape[1:])


def _places(graph: AtomGraph, width: int) -> tuple[tuple[int, int], Tensor]:
    assert graph.ends is not None
    first, number = graph.ends[0], len(graph.points)
    counts = torch.bincount(first, minlength=number)
    order = torch.argsort(first, stable=True)
    rank = torch.empty_like(first)
    rank[order] = torch.arange(len(first)) - (counts.cumsum(0) - counts)[first[order]]
    width = max(width, int(counts.max()) if len(counts) else 0)
    return (number, width), first * width + rank


def _further(reading: Any, graph: AtomGraph, x: Tensor) -> Tensor:
    """Indices with those beyond the last atom, which stand in empty places, as far beyond."""
    if x.is_floating_point() or x.dtype == torch.bool:
        return x
    before, after = len(reading.graph.points), len(graph.points)
    return torch.where(x >= before, x + (after - before), x)


def _numbers(ids: Tensor, twins: Tensor, copies: int, number: int) -> Tensor:
    """The new number of each copy of what had a number; -1 where it is no more there."""
    table = torch.full((copies, max(number, 1)), -1)
    table[twins, ids] = torch.arange(len(ids))
    return table


def _renumbered(reading: Any, graph: AtomGraph, kind: str, x: Tensor, twins: Tensor) -> Tensor:
    """Indices of atoms or edges with their new numbers, in copies of the graph that rows are of."""
    if kind == ATOMS:
        table = _numbers(graph.atoms, graph.twins, graph.copies, len(reading.graph.points))
    else:
        assert graph.edges is not None
        assert graph.edge_twins is not None
        table = _numbers(graph.edges, graph.edge_twins, graph.copies, reading.graph.ends.shape[1])
    x = x.long()
    within = (x >= 0) & (x < table.shape[1])
    copy = twins.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return torch.where(within, table[copy, torch.where(within, x, 0)], _further(reading, graph, x))


def _indices(reading: Any, graph: AtomGraph, x: Tensor, kind: str, rows: str) -> Tensor:
    """Indices that stand in rows of atoms, edges, graphs, or rows of their own."""
    if rows == "tuples":
        return _tuples(reading, graph, x, kind)
    if kind == GRAPHS:
        assert graph.ends is not None
        return _laid(reading, graph, x, graph.batch[graph.ends[0]])
    if rows == EDGES:
        assert graph.edge_twins is not None
        found = _laid(
            reading, graph, x, _kept(reading, graph, kind, reading.edges.listed(x)[graph.edges], graph.edge_twins)
        )
    elif rows == ATOMS:
        found = _kept(reading, graph, kind, x[graph.atoms], graph.twins)
    else:
        twins = torch.stack([graph.twins[graph.batch == n][0] for n in range(graph.number)])
        found = _kept(reading, graph, kind, x[graph.graphs], twins)
    return found


def _kept(reading: Any, graph: AtomGraph, kind: str, x: Tensor, twins: Tensor) -> Tensor:
    found = _renumbered(reading, graph, kind, x, twins)
    if bool(((found == -1) & (x != -1)).any()):
        raise NotCompared(LOST)
    return found


def axis_of(x: Tensor) -> int:
    """The axis of a tensor of tuples along which these stand: the longer of two, where one has two to four entries.

    >>> axis_of(torch.ones(3, 8)), axis_of(torch.ones(8, 3))
    (1, 0)
    """
    return int(x.dim() == 2 and x.shape[0] in (2, 3, 4) and x.shape[1] > x.shape[0])


def _tuples(reading: Any, graph: AtomGraph, x: Tensor, kind: str) -> Tensor:
    """Tuples of which all indices are there, in each copy of the graph."""
    axis = axis_of(x)
    kept, twins = _tuple_rows(reading, graph, x.shape[axis])
    rows = x.movedim(axis, 0)[kept]
    return (_renumbered(reading, graph, kind, rows, twins) if kind else rows).movedim(0, axis)


def _tuple_rows(reading: Any, graph: AtomGraph, number: int) -> tuple[Tensor, Tensor]:
    """Which of so many tuples are there, and in which copy of the graph."""
    rows, copies = [], []
    for copy in range(graph.copies):
        there = torch.ones(number, dtype=torch.bool)
        for name in reading.indices:
            x = reading.values[name]
            if reading.roles[name].endswith("by tuples") and x.shape[axis_of(x)] == number:
                x = x.movedim(axis_of(x), 0)
                found = _renumbered(reading, graph, reading.roles[name].split()[0], x, torch.full((number,), copy))
                there &= ((found != -1) | (x == -1)).reshape(number, -1).all(1)
        rows.append(there.nonzero().flatten())
        copies.append(torch.full_like(rows[-1], copy))
    return torch.cat(rows), torch.cat(copies)


def _square(reading: Any, graph: AtomGraph, x: Tensor) -> Tensor:
    """A row and a column for each atom: between copies of the graph, zeros, which only flags have."""
    found = x[graph.atoms][:, graph.atoms]
    apart = graph.twins[:, None] != graph.twins[None]
    if not bool(apart.any()):
        return found
    if bool(((x != 0) & (x != 1)).any()):
        raise NotCompared("nobody can tell what stands between the atoms of two graphs")
    return found * ~apart.reshape(*apart.shape, *[1] * (x.dim() - 2))


def _vectors(reading: Any, graph: AtomGraph, x: Tensor) -> Tensor:
    if graph.edges is None or graph.counts is None:
        return _rows(reading, graph, x, EDGES)
    return _laid(reading, graph, x, (reading.sign * graph.shifts(graph.counts)).to(x.dtype))


def _rows(reading: Any, graph: AtomGraph, x: Tensor, name: str) -> Tensor:
    rows = getattr(graph, name)
    if rows is None:
        return x
    return _laid(reading, graph, x, reading.edges.listed(x)[rows]) if name == EDGES else x[rows]


def _by_graph(graph: AtomGraph, of_edges: bool = False) -> Tensor:
    batch = graph.batch[graph.ends[0]] if of_edges and graph.ends is not None else graph.batch
    return torch.bincount(batch, minlength=graph.number)


def _begins(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _by_atom(graph: AtomGraph) -> Tensor:
    assert graph.ends is not None
    return torch.bincount(graph.ends[0], minlength=len(graph.points))


def _end(reading: Any, graph: AtomGraph, x: Tensor, which: Any, transposed: bool = False) -> Tensor:
    assert graph.ends is not None
    x = x.T if transposed else x
    return _laid(reading, graph, x, graph.ends.T[:, which].to(x.dtype))


WRITE: dict[str, Callable[[Any, AtomGraph, Tensor], Tensor]] = {
    "points": lambda r, g, x: g.points,
    "cell": lambda r, g, x: x if g.cells is None else g.cells.reshape(-1, 3) if x.dim() == 2 else g.cells,
    "ends": lambda r, g, x: _end(r, g, x, slice(None), transposed=True).T,
    "ends by rows": lambda r, g, x: _end(r, g, x, slice(None)),
    "first ends": lambda r, g, x: _end(r, g, x, 0),
    "second ends": lambda r, g, x: _end(r, g, x, 1),
    "neighbours": lambda r, g, x: _end(r, g, x, 1),
    "begins of rows": lambda r, g, x: _begins(_by_atom(g)),
    "lengths of rows": lambda r, g, x: _by_atom(g),
    "vectors": _vectors,
    "counts": lambda r, g, x: x if g.counts is None else _laid(r, g, x, (r.sign * g.counts).to(x.dtype)),
    "batch": lambda r, g, x: g.batch,
    "pointers": lambda r, g, x: _begins(_by_graph(g)),
    "numbers of atoms": lambda r, g, x: _by_graph(g).reshape(-1, *x.shape[1:]),
    "numbers of edges": lambda r, g, x: _by_graph(g, of_edges=True).reshape(-1, *x.shape[1:]),
    "all atoms": lambda r, g, x: torch.tensor(len(g.points)).reshape(x.shape),
    "all edges": lambda r, g, x: torch.tensor(0 if g.ends is None else g.ends.shape[1]).reshape(x.shape),
    "all graphs": lambda r, g, x: torch.tensor(g.number).reshape(x.shape),
    "square": _square,
    "tuples": lambda r, g, x: _tuples(r, g, x, ""),
    ATOMS: lambda r, g, x: _rows(r, g, x, ATOMS),
    EDGES: lambda r, g, x: _rows(r, g, x, EDGES),
    GRAPHS: lambda r, g, x: _rows(r, g, x, GRAPHS),
    "": lambda r, g, x: x,
}


def write_graph(reading: Any, graph: AtomGraph) -> Named:
    """The arguments of a call of another graph, by the roles of a reading."""
    found = {}
    for name, x in reading.values.items():
        kind, _, rows = reading.roles[name].partition(" by ")
        if reading.roles[name] in WRITE:
            found[name] = WRITE[reading.roles[name]](reading, graph, x).to(x.dtype)
        else:
            found[name] = _indices(reading, graph, x, kind, rows).to(x.dtype)
    return found
