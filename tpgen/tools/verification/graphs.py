"""Graphs of atoms, and transformations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class AtomGraph:
    """Batched atoms, cells and edges; an edge joins ``x[ends[0]]`` and ``x[ends[1]] + counts @ cell``."""

    points: Tensor
    batch: Tensor  # the graph of each atom
    atoms: Tensor  # the row of each atom in the arguments, to gather further arguments by
    graphs: Tensor  # the same of each graph
    twins: Tensor  # the copy of the arguments' graph that each atom belongs to
    cells: Tensor | None = None
    ends: Tensor | None = None
    counts: Tensor | None = None  # cells that each edge crosses
    edges: Tensor | None = None  # the row of each edge in the arguments
    edge_twins: Tensor | None = None  # the copy of the arguments' graph that each edge belongs to

    @property
    def copy_count(self) -> int:
        """Number of copies of the original graph."""
        return int(self.twins.max()) + 1 if len(self.twins) else 1

    @property
    def graph_count(self) -> int:
        """Number of graphs."""
        return len(self.graphs)

    @property
    def vectors(self) -> Tensor:
        """Edge vectors, across cells."""
        assert self.ends is not None
        found = self.points[self.ends[1]] - self.points[self.ends[0]]
        return found if self.counts is None else found + self.displacements_of_cell_counts(self.counts)

    def displacements_of_cell_counts(self, cell_counts: Tensor) -> Tensor:
        """Convert each edge's counts of crossed cells to displacements."""
        assert self.ends is not None
        assert self.cells is not None
        return torch.einsum("ei,eij->ej", cell_counts, self.cells[self.batch[self.ends[0]]])


def select_edges(graph: AtomGraph, index_or_mask: Tensor) -> AtomGraph:
    """Keep the edges that an index or mask selects."""
    assert graph.ends is not None
    assert graph.edges is not None
    assert graph.edge_twins is not None
    counts = None if graph.counts is None else graph.counts[index_or_mask]
    rows = {"edges": graph.edges[index_or_mask], "edge_twins": graph.edge_twins[index_or_mask]}
    return replace(graph, ends=graph.ends[:, index_or_mask], counts=counts, **rows)


def keep_half_of_edges_twice(graph: AtomGraph) -> AtomGraph:
    assert graph.ends is not None
    number = graph.ends.shape[1]
    order = torch.argsort(graph.ends[0], stable=True)[: (number + 1) // 2]
    return select_edges(graph, torch.cat([order, order])[:number])


def sort_edges_by_first_atom(graph: AtomGraph) -> AtomGraph:
    assert graph.ends is not None
    return select_edges(graph, torch.argsort(graph.ends[0], stable=True))


def select_atoms(graph: AtomGraph, index: Tensor) -> AtomGraph:
    """Keep indexed atoms, in that order, and edges between."""
    place = torch.full((len(graph.points),), -1).scatter(0, index, torch.arange(len(index)))
    moved = {name: getattr(graph, name)[index] for name in ("points", "batch", "atoms", "twins")}
    if graph.ends is None:
        return replace(graph, **moved)
    kept = select_edges(graph, (place[graph.ends] >= 0).all(0))
    assert kept.ends is not None
    return replace(kept, ends=place[kept.ends], **moved)


def reverse_edges(graph: AtomGraph) -> AtomGraph:
    assert graph.ends is not None
    return replace(graph, ends=graph.ends.flip(0), counts=None if graph.counts is None else -graph.counts)


def move_atoms_to_other_cells(graph: AtomGraph, cell_steps: Tensor) -> AtomGraph:
    """Move atoms, with edges, by ``cell_steps (atoms, 3)`` of the lattice vectors."""
    assert graph.cells is not None
    cell_steps = cell_steps.to(graph.points.dtype)
    points = graph.points + torch.einsum("ni,nij->nj", cell_steps, graph.cells[graph.batch])
    if graph.ends is None or graph.counts is None:
        return replace(graph, points=points)
    source, target = graph.ends
    return replace(graph, points=points, counts=graph.counts + cell_steps[source] - cell_steps[target])


def shear_lattice(graph: AtomGraph, axis: int, added_axis: int) -> AtomGraph:
    """Describe the same lattice with vector ``added_axis`` added to vector ``axis``."""
    assert graph.cells is not None
    cells = graph.cells.clone()
    cells[:, axis] += cells[:, added_axis]
    counts = None if graph.counts is None else graph.counts.clone()
    if counts is not None:
        counts[:, added_axis] -= counts[:, axis]
    return replace(graph, cells=cells, counts=counts)


def double_cell_along_axis(graph: AtomGraph, axis: int) -> AtomGraph:
    """Double every cell along an axis, with atoms and edges."""
    assert graph.cells is not None
    cells = graph.cells.clone()
    cells[:, axis] *= 2
    step = graph.cells[graph.batch, axis]
    counts = graph.counts
    along = None if graph.ends is None else torch.zeros(graph.ends.shape[1]) if counts is None else counts[:, axis]
    twice = _append_shifted_copy_of_atoms_and_edges(graph, step, along)
    if counts is None or along is None:
        return replace(twice, cells=cells)
    copies = [counts.clone(), counts.clone()]
    for copy in (0, 1):
        copies[copy][:, axis] = ((along + copy) / 2).floor()
    return replace(twice, cells=cells, counts=torch.cat(copies))


def add_distant_copy(graph: AtomGraph, distance: float) -> AtomGraph:
    """Add a distant copy, without edges between."""
    step = distance * torch.tensor([0.6, 0.0, 0.8], dtype=graph.points.dtype).expand_as(graph.points)
    twice = _append_shifted_copy_of_atoms_and_edges(
        graph, step, None if graph.ends is None else torch.zeros(graph.ends.shape[1])
    )
    return twice if graph.counts is None else replace(twice, counts=torch.cat([graph.counts] * 2))


def _append_shifted_copy_of_atoms_and_edges(
    graph: AtomGraph, shift: Tensor, copies_crossed_by_edges: Tensor | None
) -> AtomGraph:
    # atoms and a copy of each, the first those of a graph; ``along`` counts the copies that an edge goes over
    number = len(graph.points)
    order = torch.argsort(torch.cat([graph.batch, graph.batch]), stable=True)
    place = torch.argsort(order)
    moved = {
        "points": torch.cat([graph.points, graph.points + shift])[order],
        "batch": torch.cat([graph.batch, graph.batch])[order],
        "atoms": torch.cat([graph.atoms, graph.atoms])[order],
        "twins": torch.cat([graph.twins, graph.twins + graph.copy_count])[order],
    }
    if graph.ends is None or copies_crossed_by_edges is None or graph.edges is None or graph.edge_twins is None:
        return replace(graph, **moved)
    source, target = graph.ends
    ends = [
        torch.stack([source + n * number, target + number * ((copies_crossed_by_edges.long() + n) % 2)]) for n in (0, 1)
    ]
    rows = {"edges": torch.cat([graph.edges] * 2)}
    rows["edge_twins"] = torch.cat([graph.edge_twins, graph.edge_twins + graph.copy_count])
    return replace(graph, ends=place[torch.cat(ends, 1)], **rows, **moved)


def select_graph_of_batch(batch: AtomGraph, graph_index: int) -> AtomGraph:
    found = select_atoms(batch, (batch.batch == graph_index).nonzero().flatten())
    cells = None if batch.cells is None else batch.cells[graph_index : graph_index + 1]
    return replace(found, batch=found.batch * 0, graphs=batch.graphs[graph_index : graph_index + 1], cells=cells)


def join_graphs(first: AtomGraph, second: AtomGraph) -> AtomGraph:
    """Join two graphs to a batch."""

    def joined_field(field_name: str, number_offset: int = 0) -> Tensor | None:
        a, b = getattr(first, field_name), getattr(second, field_name)
        return None if a is None else torch.cat([a, b + number_offset], -1 if field_name == "ends" else 0)

    names = ("points", "atoms", "graphs", "cells", "counts", "edges")
    found = {name: joined_field(name) for name in names}
    further = {
        "batch": first.graph_count,
        "ends": len(first.points),
        "twins": first.copy_count,
        "edge_twins": first.copy_count,
    }
    return AtomGraph(**found, **{name: joined_field(name, more) for name, more in further.items()})  # type: ignore[arg-type]


def place_atoms_on_line(graph: AtomGraph, axis: int, spacing: float) -> AtomGraph:
    """Place atoms along an axis; drop edges to images."""
    points = torch.zeros_like(graph.points)
    points[:, axis] = spacing * torch.arange(len(points), dtype=points.dtype)
    if graph.ends is None:
        return replace(graph, points=points)
    within = graph.ends[0] != graph.ends[1]
    if graph.counts is not None:
        within &= (graph.counts == 0).all(-1)
    return replace(select_edges(graph, within), points=points)


def shortest_distance(graph: AtomGraph) -> float:
    """Shortest edge length, else interatomic distance, else one."""
    edges = graph.ends is not None and graph.ends.shape[1] > 0
    if edges:
        lengths = graph.vectors.norm(dim=-1)
    else:
        lengths = torch.pdist(graph.points)[torch.pdist(graph.batch[:, None].double()) == 0]
    lengths = lengths[lengths > 0]
    return float(lengths.min()) if len(lengths) else 1.0
