"""`Reading`: which tensors of a call are points, cells, edges and images, and a call's tensors of another graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tpgen.inspection.training import is_index
from tpgen.verification.graphs import AtomGraph
from tpgen.verification.subject import STILL, Frame, Named, short

VECTORS = ("shifts", "edge_cell_shift_vectors")  # images of edges, in space
_COUNTS = ("unit_shifts", "edge_cell_shift", "cell_shift", "cell_offsets", "pbc_shift")  # the same in cells
CELLS = ("cell", "lattice", "box")
BATCH, POINTERS, PERIODIC, EDGES = "batch", "ptr", "pbc", "edge_index"
_WHOLE = 1e-4  # of a cell: how near to a whole number a count is


@dataclass(frozen=True)
class Reading:
    """Role of each tensor of a call, and the graph that they say together.

    ``sign`` is -1 where images belong to the first end of an edge.  ``unclear`` says why edges, cells and copies of
    atoms cannot be changed.
    """

    values: Named
    roles: Mapping[str, str]
    graph: AtomGraph
    sign: float = 1.0
    periodic: tuple[int, ...] = ()
    unclear: str = ""

    def named(self, role: str) -> list[str]:
        return [name for name, found in self.roles.items() if found == role]

    def written(self, graph: AtomGraph) -> Named:
        """The arguments of a call of another graph."""
        return {name: _WRITE[self.roles[name]](self, graph, x).to(x.dtype) for name, x in self.values.items()}


def _written_vectors(reading: Reading, graph: AtomGraph, x: Tensor) -> Tensor:
    if graph.edges is None or graph.counts is None:
        return x if graph.edges is None else x[graph.edges]
    return reading.sign * graph.shifts(graph.counts)


def _rows(name: str, reading: Reading, graph: AtomGraph, x: Tensor) -> Tensor:
    """Rows of the arguments that a graph names."""
    rows = getattr(graph, name)
    return x if rows is None else x[rows]


def _counted(graph: AtomGraph) -> Tensor:
    return torch.bincount(graph.batch, minlength=graph.number)


_WRITE: dict[str, Callable[[Reading, AtomGraph, Tensor], Tensor]] = {
    "points": lambda r, g, x: g.points,
    "cell": lambda r, g, x: x if g.cells is None else g.cells.reshape(-1, 3) if x.dim() == 2 else g.cells,
    "ends": lambda r, g, x: x if g.ends is None else g.ends,
    "pairs": lambda r, g, x: torch.argsort(g.atoms)[x],  # where atoms are in another order
    "vectors": _written_vectors,
    "counts": lambda r, g, x: x if g.counts is None else r.sign * g.counts,
    "batch": lambda r, g, x: g.batch,
    "pointers": lambda r, g, x: torch.cat([torch.zeros(1, dtype=torch.int64), _counted(g).cumsum(0)]),
    "numbers of atoms": lambda r, g, x: _counted(g).reshape(-1, *x.shape[1:]),
    "atoms": partial(_rows, "atoms"),
    "edges": partial(_rows, "edges"),
    "graphs": partial(_rows, "graphs"),
    "": lambda r, g, x: x,
}


def rows_read(x: Tensor, how: Frame) -> int | None:
    """The number of rows of a tensor that turns so; None where it has no other axis than those that turn."""
    return x.shape[0] if x.dim() > how.axes else None


def read_call(points: str, values: Named, turns: Mapping[str, Frame]) -> Reading | str:
    """The reading of a call, or why there is none."""
    x = values[points].to(torch.float64)
    if x.dim() != 2 or x.shape[1] != 3:
        return f"{points} has shape {tuple(x.shape)}, where one row of three for each atom is read"
    roles = {points: "points"}
    ends = _ends(values, len(x), roles)
    batch = next((v for n, v in values.items() if short(n) == BATCH and v.shape == x.shape[:1]), None)
    cell = next((n for n in values if short(n) in CELLS and values[n].numel() % 9 == 0 and values[n].numel()), None)
    cells = None if cell is None else values[cell].to(torch.float64).reshape(-1, 3, 3)
    batch = torch.zeros(len(x), dtype=torch.int64) if batch is None else batch.long()
    number = max(int(batch.max()) + 1 if len(batch) else 1, 1 if cells is None else len(cells))
    if cell is not None and cells is not None:
        roles[cell] = "cell"
        cells = cells if len(cells) == number and bool((torch.linalg.det(cells).abs() > 1e-9).all()) else None
    edges = None if ends is None else torch.arange(values[ends].shape[1])
    graph = AtomGraph(x, batch, torch.arange(len(x)), torch.arange(number), cells, None, None, edges)
    graph = graph if ends is None else replace(graph, ends=values[ends].long())
    for name, value in values.items():
        if name not in roles:
            roles[name] = _role(name, value, turns.get(name, STILL), graph)
    return _with_images(Reading(values, roles, graph, unclear=_unclear(values, roles, graph)))


def _ends(values: Named, atoms: int, roles: dict[str, str]) -> str | None:
    """The tensor of the ends of edges; others like it are pairs."""
    found = [
        name
        for name, x in values.items()
        if x.dtype == torch.int64 and x.dim() == 2 and x.shape[0] == 2 and x.shape[1] > 0
        if int(x.min()) >= 0 and int(x.max()) < atoms
    ]
    found.sort(key=lambda name: short(name) != EDGES)
    roles |= {name: "ends" if name == found[0] else "pairs" for name in found}
    return found[0] if found else None


def _role(name: str, x: Tensor, how: Frame, graph: AtomGraph) -> str:
    edges = -1 if graph.ends is None else graph.ends.shape[1]
    rows = rows_read(x, how)
    if short(name) == BATCH:
        return "batch"
    if short(name) == POINTERS:
        return "pointers"
    if short(name) == PERIODIC:
        return "graphs" if x.dim() == 2 and rows == graph.number else ""
    if not x.is_floating_point() and rows == graph.number and torch.equal(x.flatten(), _counted(graph)):
        return "numbers of atoms"
    if rows == edges and x.shape[1:] == (3,) and short(name) in VECTORS and how is not STILL:
        return "vectors"
    if rows == edges and x.shape[1:] == (3,) and how is STILL and _whole(x) and _is_counts(name, x):
        return "counts"
    return {None: "", edges: "edges", graph.number: "graphs", len(graph.points): "atoms"}.get(rows, "")


def _is_counts(name: str, x: Tensor) -> bool:
    return short(name) in _COUNTS + VECTORS or bool((x < 0).any())


def _whole(x: Tensor) -> bool:
    return bool(((x - x.round()).abs() < _WHOLE).all())


def are_counts(name: str, values: Named) -> bool:
    """Whether images of edges, of which nobody said so, are whole numbers of cells and not vectors in space."""
    x = values[name].double()
    if short(name) not in VECTORS or x.shape[-1:] != (3,) or not _whole(x):
        return False
    cells = [v.double().reshape(-1, 3, 3) for n, v in values.items() if short(n) in CELLS and v.numel() % 9 == 0]
    return not any(_whole(x @ torch.linalg.pinv(cell)) for found in cells for cell in found)


def _unclear(values: Named, roles: Mapping[str, str], graph: AtomGraph) -> str:
    """Why it cannot be told which axis of the arguments is of what; empty where it can."""
    edges, atoms = 0 if graph.ends is None else graph.ends.shape[1], len(graph.points)
    loose = [n for n, x in values.items() if roles[n] in ("atoms", "edges", "graphs") and x.is_floating_point()]
    if edges and edges in (atoms, graph.number):
        return f"there are {edges} edges, and {atoms} atoms: give a call in which numbers tell axes apart"
    if atoms == graph.number and loose:
        return f"there are as many graphs as atoms: nobody can tell of which {loose[0]} is"
    if "pairs" in roles.values():
        return f"two tensors may be the ends of edges: call one of them {EDGES}"
    odd = [n for n, x in values.items() if roles[n] in ("edges", "") and is_index(x) and x.numel() > atoms]
    return f"the whole numbers of {odd[0]} may mean edges" if odd else ""


def _with_images(reading: Reading) -> Reading:
    """With the cells between the ends of edges, and which end they belong to."""
    graph, counts, vectors = reading.graph, reading.named("counts"), reading.named("vectors")
    if graph.ends is None or not (counts or vectors):
        return reading if graph.ends is not None else replace(reading, periodic=_periodic(reading, None))
    if graph.cells is None:
        return replace(reading, unclear=reading.unclear or "edges have images, and there is no cell for each graph")
    if counts:
        found = reading.values[counts[0]].to(torch.float64)
    else:
        inverse = torch.linalg.inv(graph.cells)[graph.batch[graph.ends[0]]]
        found = torch.einsum("ei,eij->ej", reading.values[vectors[0]].to(torch.float64), inverse)
        if not _whole(found):
            return replace(reading, unclear=reading.unclear or f"{vectors[0]} are no whole numbers of cells")
    signs = {sign: replace(graph, counts=sign * found.round()) for sign in (1.0, -1.0)}
    longest = {sign: float(one.vectors.norm(dim=-1).max()) for sign, one in signs.items()}
    sign = 1.0 if longest[1.0] <= longest[-1.0] * (1 + 1e-6) else -1.0
    return replace(reading, graph=signs[sign], sign=sign, periodic=_periodic(reading, found.round()))


def _periodic(reading: Reading, counts: Tensor | None) -> tuple[int, ...]:
    """The axes of the cell along which it repeats, as far as the arguments say."""
    if reading.graph.cells is None:
        return ()
    said = next((x for n, x in reading.values.items() if short(n) == PERIODIC and x.numel() % 3 == 0), None)
    there = torch.ones(3, dtype=torch.bool) if said is None else said.bool().reshape(-1, 3).all(0)
    if counts is not None:
        there &= counts.ne(0).any(0)
    return tuple(there.nonzero().flatten().tolist())
