"""Roles of a call's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tpgen.networks.trial import is_index
from tpgen.tools.verification.graphs import AtomGraph, sort_edges_by_first_atom
from tpgen.tools.verification.indices import (
    ATOMS,
    EDGE_INDEX,
    EDGES,
    GRAPHS,
    LABELS,
    SPECIES_NAMES,
    EncodedEdges,
    find_edges_in_arguments,
)
from tpgen.tools.verification.subject import INVARIANT, TensorsByName, TransformationRule, last_dict_key
from tpgen.tools.verification.writing import find_tuple_axis, make_call_arguments_for_graph

VECTORS = ("shifts", "edge_cell_shift_vectors")  # images of edges, in space
_COUNTS = ("unit_shifts", "edge_cell_shift", "cell_shift", "cell_offsets", "pbc_shift")  # the same in cells
CELLS = ("cell", "lattice", "box")
BATCH, POINTERS, PERIODIC = "batch", "ptr", "pbc"
_WHOLE = 1e-4  # of a cell: how near to a whole number a count is


BATCHES = (BATCH, "idx_m", "batch_index", "batch_idx", "graph_index", "graph_idx", "segment_ids", "system_idx")
# Parts of names of what counts atoms, edges or graphs.
_SIZES = ("num", "n_", "natom", "nnode", "nedge", "size", "count", "len", "total")


@dataclass(frozen=True)
class ParsedGraphInputs:
    """A network call's arguments, each one's role, and the encoded atom graph."""

    values: TensorsByName
    roles: Mapping[str, str]
    graph: AtomGraph
    edges: EncodedEdges | None = None
    sign: float = 1.0  # -1 if images belong to the first end of an edge
    periodic: tuple[int, ...] = ()
    unclear: str = ""  # why edges, cells and copies of atoms cannot be changed
    unreadable: str = ""  # why atoms cannot be permuted

    def names_with_role(self, role: str) -> list[str]:
        return [name for name, found in self.roles.items() if found == role]

    @property
    def index_names(self) -> list[str]:
        """Names of indices of atoms or edges, except edge ends."""
        return [n for n, role in self.roles.items() if " by " in role and role.split()[0] in (ATOMS, EDGES)]

    @property
    def edge_end_names(self) -> list[str]:
        """Names of arguments with edge ends."""
        return [] if self.edges is None else list(self.edges.roles)

    @property
    def integer_valued_float_names(self) -> list[str]:
        """Names of floating arguments with counts or labels."""
        counts = {name for name, role in self.roles.items() if role.startswith("numbers of")}
        counts |= {*self.names_with_role("batch"), *self.names_with_role("pointers")}

        def is_label(name: str, x: Tensor) -> bool:
            return last_dict_key(name).lower() in SPECIES_NAMES and x.dim() == 1 and _are_whole_numbers(x)

        floating = {name: x for name, x in self.values.items() if x.is_floating_point()}
        return [name for name, x in floating.items() if name in counts or is_label(name, x)]

    @property
    def unrecognized_index_names(self) -> list[str]:
        """Names of possible indices without a known role."""
        reserved = (*BATCHES, POINTERS, PERIODIC)
        free = {n: self.values[n] for n, role in self.roles.items() if not role and last_dict_key(n) not in reserved}
        return [name for name, x in free.items() if is_index(x) and x.numel() > 1]

    def make_arguments_for_graph(self, graph: AtomGraph) -> TensorsByName:
        """Make the call's arguments for another graph."""
        in_order = self.edges is not None and self.edges.in_order
        return make_call_arguments_for_graph(self, sort_edges_by_first_atom(graph) if in_order else graph)


def count_rows(x: Tensor, rule: TransformationRule) -> int | None:
    """Number of rows; None if all axes rotate."""
    return x.shape[0] if x.dim() > rule.axes else None


def parse_graph_inputs(
    points: Tensor,
    point_roles: Mapping[str, str],
    arguments: TensorsByName,
    transformation_rules: Mapping[str, TransformationRule],
    index_kinds: Mapping[str, str],
    graph_count: int = 0,
) -> ParsedGraphInputs:
    """Assign a role to each argument, by ``index_kinds`` of integers."""
    x, roles = points, dict(point_roles)
    edges = find_edges_in_arguments(arguments, index_kinds, len(x))
    batch, read = _find_graph_of_each_atom_and_batch_role(arguments, index_kinds, len(x), graph_count)
    roles |= read
    cell = next(
        (n for n in arguments if last_dict_key(n) in CELLS and arguments[n].numel() % 9 == 0 and arguments[n].numel()),
        None,
    )
    cells = None if cell is None else arguments[cell].to(torch.float64).reshape(-1, 3, 3)
    number = max(int(batch.max()) + 1 if len(batch) else 1, 1 if cells is None else len(cells))
    if cell is not None and cells is not None:
        roles[cell] = "cell"
        cells = cells if len(cells) == number and bool((torch.linalg.det(cells).abs() > 1e-9).all()) else None
    own = torch.zeros(len(x), dtype=torch.int64)
    graph = AtomGraph(x, batch, torch.arange(len(x)), torch.arange(number), own, cells)
    if edges is not None:
        rows = torch.arange(edges.ends.shape[1])
        graph = replace(graph, ends=edges.ends, edges=rows, edge_twins=torch.zeros_like(rows))
        roles |= edges.roles
    for name, value in arguments.items():
        if name not in roles:
            kind = index_kinds.get(name, LABELS)
            roles[name] = _find_role_of_argument(
                name, value, transformation_rules.get(name, INVARIANT), graph, edges, kind
            )
    roles |= _find_roles_of_arguments_with_row_per_index_tuple(arguments, roles)
    return _add_cell_counts_of_edges(
        ParsedGraphInputs(
            arguments, roles, graph, edges, unclear=_reason_for_ambiguous_axes(arguments, roles, graph, edges)
        )
    )


def _find_graph_of_each_atom_and_batch_role(
    arguments: TensorsByName, index_kinds: Mapping[str, str], atom_count: int, graph_count: int
) -> tuple[Tensor, dict[str, str]]:
    # the graph of each atom: as said, by its name, as numbers of atoms, or as many as there are energies
    whole = {name: x for name, x in arguments.items() if is_index(x) and x.dim() == 1}
    rows = {name: x.long() for name, x in whole.items() if len(x) == atom_count}
    for name, x in rows.items():
        sorted_ = bool((x.diff() >= 0).all()) and len(x) and int(x[0]) == 0 and len(x.unique()) == int(x[-1]) + 1
        several = sorted_ and int(x[-1]) + 1 == graph_count > 1
        if last_dict_key(name) in BATCHES or index_kinds.get(name) == GRAPHS or several:
            return x, {name: "batch"}
    for name, x in arguments.items():
        if not x.numel() or not (
            last_dict_key(name) == POINTERS or (_is_name_of_sizes(name) and x.numel() == graph_count > 1)
        ):
            continue
        counts = x.flatten().long().diff() if last_dict_key(name) == POINTERS else x.flatten().long()
        if len(counts) and int(counts.min()) >= 0 and int(counts.sum()) == atom_count:
            return torch.repeat_interleave(torch.arange(len(counts)), counts), {}
    return torch.zeros(atom_count, dtype=torch.int64), {}


def _is_name_of_sizes(argument_name: str) -> bool:
    return any(part in last_dict_key(argument_name).lower() for part in _SIZES)


def _find_role_of_argument(
    argument_name: str,
    argument: Tensor,
    rule: TransformationRule,
    graph: AtomGraph,
    edges: EncodedEdges | None,
    index_kind: str,
) -> str:
    rows, atoms = count_rows(argument, rule), len(graph.points)
    if last_dict_key(argument_name) == POINTERS:
        return "pointers"
    if last_dict_key(argument_name) == PERIODIC:
        return GRAPHS if argument.dim() == 2 and rows == graph.graph_count else ""
    if counted := _find_role_of_atom_or_edge_count_argument(argument_name, argument, graph):
        return counted
    if edges is not None and rows is not None and edges.has_row_per_edge(argument):
        return _find_role_of_edge_argument(argument_name, argument, rule, graph, index_kind)
    if index_kind == ATOMS or (
        index_kind == EDGES and graph.ends is not None and int(argument.max()) < graph.ends.shape[1]
    ):
        of_tuples = rows not in (atoms, graph.graph_count) or find_tuple_axis(argument)
        where = "tuples" if of_tuples else ATOMS if rows == atoms else GRAPHS
        return f"{index_kind} by {where}" if argument.dim() else ""
    if rule is INVARIANT and argument.dim() > 1 and argument.shape[:2] == (atoms, atoms):
        return ATOMS if _has_one_hot_row_per_atom(argument) else "square"
    return {None: "", graph.graph_count: GRAPHS, atoms: ATOMS}.get(rows, "")


def _has_one_hot_row_per_atom(argument: Tensor) -> bool:
    # as many species as atoms: a matrix of neighbours is symmetric, without an atom that is its own
    if argument.dim() != 2 or not bool(((argument == 0) | (argument == 1)).all() & (argument.sum(1) == 1).all()):
        return False
    return bool(argument.diagonal().any()) or not torch.equal(argument, argument.T)


def _find_role_of_atom_or_edge_count_argument(argument_name: str, argument: Tensor, graph: AtomGraph) -> str:
    counts = torch.bincount(graph.batch, minlength=graph.graph_count)
    of_edges = counts if graph.ends is None else torch.bincount(graph.batch[graph.ends[0]], minlength=graph.graph_count)
    for role, numbers in (("numbers of atoms", counts), ("numbers of edges", of_edges)):
        alike = (
            argument.dim()
            and len(argument) == graph.graph_count
            and torch.equal(argument.flatten().double(), numbers.double())
        )
        if alike and (not argument.is_floating_point() or _is_name_of_sizes(argument_name)):
            return role
    if argument.dim() == 0 and is_index(argument) and _is_name_of_sizes(argument_name):
        every = {len(graph.points): "all atoms", int(of_edges.sum()): "all edges", graph.graph_count: "all graphs"}
        return every.get(int(argument), "")
    return ""


def _find_role_of_edge_argument(
    argument_name: str, argument: Tensor, rule: TransformationRule, graph: AtomGraph, index_kind: str
) -> str:
    is_vector = argument.dim() > 1 and argument.shape[-1] == 3
    if is_vector and last_dict_key(argument_name) in VECTORS and rule is not INVARIANT:
        return "vectors"
    if (
        is_vector
        and rule is INVARIANT
        and _are_whole_numbers(argument)
        and _may_be_cell_counts(argument_name, argument)
    ):
        return "counts"
    if is_index(argument) and ("batch" in last_dict_key(argument_name) or index_kind == GRAPHS):
        return f"{GRAPHS} by {EDGES}"
    return f"{index_kind} by {EDGES}" if index_kind in (ATOMS, EDGES) else EDGES


def _find_roles_of_arguments_with_row_per_index_tuple(
    arguments: TensorsByName, roles: Mapping[str, str]
) -> dict[str, str]:
    lengths = {
        len(arguments[n].movedim(find_tuple_axis(arguments[n]), 0))
        for n, role in roles.items()
        if role.endswith("by tuples")
    }
    return {
        n: "tuples" for n, role in roles.items() if not role and arguments[n].dim() and len(arguments[n]) in lengths
    }


def _may_be_cell_counts(argument_name: str, argument: Tensor) -> bool:
    return last_dict_key(argument_name) in _COUNTS + VECTORS or bool((argument < 0).any())


def _are_whole_numbers(x: Tensor) -> bool:
    return bool(((x - x.round()).abs() < _WHOLE).all())


def is_argument_of_cell_counts(argument_name: str, arguments: TensorsByName) -> bool:
    """Whether an argument of edge shifts counts cells, not vectors."""
    x = arguments[argument_name].double()
    if last_dict_key(argument_name) not in VECTORS or x.shape[-1:] != (3,) or not _are_whole_numbers(x):
        return False
    cells = [
        v.double().reshape(-1, 3, 3) for n, v in arguments.items() if last_dict_key(n) in CELLS and v.numel() % 9 == 0
    ]
    return not any(_are_whole_numbers(x @ torch.linalg.pinv(cell)) for found in cells for cell in found)


def _reason_for_ambiguous_axes(
    arguments: TensorsByName, roles: Mapping[str, str], graph: AtomGraph, edges: EncodedEdges | None
) -> str:
    rows, atoms = 0 if edges is None or edges.axes > 1 else edges.shape[0], len(graph.points)
    loose = [n for n, x in arguments.items() if roles[n] in (ATOMS, EDGES, GRAPHS) and x.is_floating_point()]
    if rows and rows in (atoms, graph.graph_count):
        return f"there are {rows} edges, and {atoms} atoms: give a call in which numbers tell axes apart"
    if (
        edges is not None
        and edges.shape == (2,)
        and any(role.startswith("ends") and last_dict_key(n) != EDGE_INDEX for n, role in roles.items())
    ):
        return "there are two edges: give another number of edges, or call their ends edge_index"
    if atoms == graph.graph_count and loose:
        return f"there are as many graphs as atoms: nobody can tell of which {loose[0]} is"
    return ""


def _add_cell_counts_of_edges(parsed: ParsedGraphInputs) -> ParsedGraphInputs:
    graph, counts, vectors = parsed.graph, parsed.names_with_role("counts"), parsed.names_with_role("vectors")
    if graph.ends is None or parsed.edges is None or not (counts or vectors):
        return parsed if graph.ends is not None else replace(parsed, periodic=_find_periodic_axes(parsed, None))
    if graph.cells is None:
        return replace(parsed, unclear=parsed.unclear or "edges have images, and there is no cell for each graph")
    if counts:
        found = parsed.edges.rows_of_edges(parsed.values[counts[0]]).to(torch.float64)
    else:
        inverse = torch.linalg.inv(graph.cells)[graph.batch[graph.ends[0]]]
        shifts = parsed.edges.rows_of_edges(parsed.values[vectors[0]]).to(torch.float64)
        found = torch.einsum("ei,eij->ej", shifts, inverse)
        if not _are_whole_numbers(found):
            return replace(parsed, unclear=parsed.unclear or f"{vectors[0]} are no whole numbers of cells")
    signs = {sign: replace(graph, counts=sign * found.round()) for sign in (1.0, -1.0)}
    longest = {sign: float(one.vectors.norm(dim=-1).max()) for sign, one in signs.items()}
    sign = 1.0 if longest[1.0] <= longest[-1.0] * (1 + 1e-6) else -1.0
    return replace(parsed, graph=signs[sign], sign=sign, periodic=_find_periodic_axes(parsed, found.round()))


def _find_periodic_axes(parsed: ParsedGraphInputs, edge_cell_counts: Tensor | None) -> tuple[int, ...]:
    if parsed.graph.cells is None:
        return ()
    said = next((x for n, x in parsed.values.items() if last_dict_key(n) == PERIODIC and x.numel() % 3 == 0), None)
    there = torch.ones(3, dtype=torch.bool) if said is None else said.bool().reshape(-1, 3).all(0)
    if edge_cell_counts is not None:
        there &= edge_cell_counts.ne(0).any(0)
    return tuple(there.nonzero().flatten().tolist())
