"""Laws of atoms, cells and edges."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor

from tpgen.tools.verification import laws
from tpgen.tools.verification.derivatives import draw_normal_tensors
from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason, NotCompared, largest_difference
from tpgen.tools.verification.graphs import (
    AtomGraph,
    move_atoms_to_other_cells,
    place_atoms_on_line,
    select_atoms,
    select_edges,
    select_graph_of_batch,
    shear_lattice,
    shortest_distance,
)
from tpgen.tools.verification.laws import GotAndExpectedByPart, compare_or_give_reason, pair_results, prefix_part_names
from tpgen.tools.verification.potentials import compute_energy_and_forces
from tpgen.tools.verification.reading import PERIODIC, ParsedGraphInputs, count_rows
from tpgen.tools.verification.subject import ModuleUnderTest, TensorsByName, draw_derangement, last_dict_key

NODE_ENERGIES = ("node_energy", "node_energies", "atomic_energy", "atomic_energies", "energies")
STRAIN = 0.06  # of another graph's cell
CRYSTAL, EDGE = "of one atom", 0.9  # and the edge of its cube, by the distance of the nearest points
DENSE, CROWD, ASIDE = "of many neighbours", 60, 0.5  # atoms, and how far they are from those that they repeat
CLOSE = 0.08  # the distance of two points that are close, by that of the nearest
EQUAL_SPECIES = "results do not tell {} {} from {}: both may share a row of an embedding, or it is meant"
_MOST_SPECIES = 4  # of which each is put in the place of each other one


def require_parsed_graph_inputs(subject: ModuleUnderTest) -> ParsedGraphInputs:
    """Parsed graph inputs, which must exist."""
    assert isinstance(subject.parsed, ParsedGraphInputs)
    return subject.parsed


def call_network_detached(subject: ModuleUnderTest, arguments: TensorsByName) -> TensorsByName:
    """Call a network; return detached results, or raise `NotCompared` on failure."""
    try:
        return {name: y.detach() for name, y in subject(arguments).items()}
    except NotCompared:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0][:120]
        raise NotCompared(f"the network does not take it: {type(error).__name__}: {said}") from error


def call_on_graph(subject: ModuleUnderTest, graph: AtomGraph) -> TensorsByName:
    """Call a network on another graph."""
    return call_network_detached(subject, require_parsed_graph_inputs(subject).make_arguments_for_graph(graph))


def _reorder_rows_of_result(
    subject: ModuleUnderTest, result_name: str, result: Tensor, row_count: int, row_order: Tensor
) -> Tensor:
    # A result in another order of atoms or edges, if it has a row for each.
    return result[row_order] if count_rows(result, subject.result_rule(result_name)) == row_count else result


def call_with_permuted_atoms(subject: ModuleUnderTest) -> tuple[TensorsByName, TensorsByName]:
    """Permute each graph's atoms; return results, and expected results."""
    parsed = require_parsed_graph_inputs(subject)
    order = _move_isolated_atoms_to_end_of_order(parsed.graph, draw_derangement(len(parsed.graph.points)))
    order = order[torch.argsort(parsed.graph.batch[order], stable=True)]
    got, straight = subject(parsed.make_arguments_for_graph(select_atoms(parsed.graph, order))), subject(subject.given)
    return got, _reorder_results_by_atoms(subject, straight, got, order)


def decode_species_of_atoms(integers_or_one_hot: Tensor) -> Tensor | None:
    """Each atom's species, from integers or one-hot rows."""
    if not integers_or_one_hot.is_floating_point():
        return integers_or_one_hot.flatten()
    single = (
        integers_or_one_hot.dim() == 2
        and bool(((integers_or_one_hot == 0) | (integers_or_one_hot == 1)).all())
        and bool((integers_or_one_hot.sum(1) == 1).all())
    )
    return integers_or_one_hot.argmax(1) if single else None


def _remark_on_species_with_equal_results(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    parsed = require_parsed_graph_inputs(subject)
    for name in parsed.names_with_role("atoms"):
        species = decode_species_of_atoms(parsed.values[name])
        if species is None or len(species) != len(parsed.graph.points):
            continue
        with suppress(NotCompared):
            straight = call_network_detached(subject, subject.given)
            for one, other in combinations(species.unique().tolist()[:_MOST_SPECIES], 2):
                atoms = parsed.graph.atoms.clone()
                atoms[species[atoms] == one] = int((species == other).nonzero()[0])
                found = call_on_graph(subject, replace(parsed.graph, atoms=atoms))
                if all(torch.equal(x, found[key]) for key, x in straight.items()):
                    return {"species": EQUAL_SPECIES.format(name, one, other)}
    return {}


def compare_permuted_systems(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of permuted rows or atoms; remark on species with equal results."""
    found = dict(laws.compare_permutations(subject))
    if not isinstance(subject.parsed, ParsedGraphInputs):
        return found
    found |= _remark_on_species_with_equal_results(subject)
    graph = subject.parsed.graph
    if graph.ends is None:
        crowd = make_dense_graph(subject.parsed)
        if crowd is not None:
            found |= compare_or_give_reason(DENSE, lambda: _compare_permuted_atoms_of_dense_graph(subject, crowd))
        return found
    atom = int((graph.batch == graph.batch[-1]).nonzero()[0])  # the first of the last graph
    lone = select_edges(graph, (graph.ends != atom).all(0))
    with suppress(NotCompared):
        straight = call_on_graph(subject, lone)
        order = torch.arange(len(graph.points))
        order = torch.cat([order[:atom], order[atom + 1 :], order[atom : atom + 1]])
        got = call_on_graph(subject, select_atoms(lone, order))
        last = pair_results(got, _reorder_results_by_atoms(subject, straight, got, order))
        found |= prefix_part_names("an atom without edges last", last)
    return found


def _compare_permuted_atoms_of_dense_graph(
    subject: ModuleUnderTest, dense_graph: AtomGraph
) -> dict[str, GotAndExpected]:
    # of so many neighbours that a list of the nearest, or first, would leave some out
    exact, order = subject.with_float64_copy(), draw_derangement(len(dense_graph.points))
    straight, got = (call_on_graph(exact, one) for one in (dense_graph, select_atoms(dense_graph, order)))
    return pair_results(got, _reorder_results_by_atoms(exact, straight, got, order))


def make_dense_graph(parsed: ParsedGraphInputs) -> AtomGraph | None:
    """Repeat atoms to a dense graph; None for networks that take edges."""
    if parsed.graph.ends is not None or parsed.index_names or parsed.unrecognized_index_names or parsed.unclear:
        return None
    one = select_graph_of_batch(parsed.graph, 0)
    again = torch.arange(len(one.points)).repeat(-(-CROWD // len(one.points)))
    draw = draw_normal_tensors({"": one.points[again]}, seed=33)[""]
    return replace(select_atoms(one, again), points=one.points[again] + ASIDE * shortest_distance(one) * draw)


def _move_isolated_atoms_to_end_of_order(graph: AtomGraph, atom_order: Tensor) -> Tensor:
    # An order in which atoms without an edge come last, if the last atom has one: some count atoms by their edges.
    if graph.ends is None:
        return atom_order
    joined = torch.zeros(len(atom_order), dtype=torch.bool).index_fill(0, graph.ends.flatten(), True)
    return torch.cat([atom_order[joined[atom_order]], atom_order[~joined[atom_order]]]) if joined[-1] else atom_order


def _reorder_results_by_atoms(
    subject: ModuleUnderTest, results: TensorsByName, results_of_permuted_atoms: TensorsByName, atom_order: Tensor
) -> TensorsByName:
    return {
        name: _reorder_result_by_atoms(subject, name, y, results_of_permuted_atoms[name], atom_order)
        for name, y in results.items()
    }


def _reorder_result_by_atoms(
    subject: ModuleUnderTest, result_name: str, result: Tensor, result_of_permuted_atoms: Tensor, atom_order: Tensor
) -> Tensor:
    # A result in another order of atoms: its rows, or rows and columns where it has both for each atom.
    moved = _reorder_rows_of_result(subject, result_name, result, len(atom_order), atom_order)
    if (
        result.shape[:2] != (len(atom_order), len(atom_order))
        or subject.result_rule(result_name).axes
        or result_of_permuted_atoms.shape != result.shape
    ):
        return moved
    square = moved[:, atom_order]
    return (
        square
        if largest_difference(result_of_permuted_atoms, square) < largest_difference(result_of_permuted_atoms, moved)
        else moved
    )


def compare_edge_orders(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of permuted edges with permuted results."""
    parsed = require_parsed_graph_inputs(subject)
    assert parsed.graph.edges is not None
    order = draw_derangement(len(parsed.graph.edges))
    got, straight = subject(parsed.make_arguments_for_graph(select_edges(parsed.graph, order))), subject(subject.given)
    expected = {name: _reorder_rows_of_result(subject, name, y, len(order), order) for name, y in straight.items()}
    return pair_results(got, expected)


def compare_moved_images(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results before and after atoms move to periodic images."""
    parsed = require_parsed_graph_inputs(subject)
    graph, axes = parsed.graph, list(parsed.periodic)
    straight, numbers = subject(parsed.make_arguments_for_graph(graph)), torch.arange(len(graph.points))
    first, every = (torch.zeros(len(numbers), 3) for _ in range(2))
    first[0, axes] = 1
    every[:, axes] = (numbers[:, None] // 2 ** torch.arange(3)).remainder(2)[:, axes].to(every)
    found, moved = (
        pair_results(subject(parsed.make_arguments_for_graph(move_atoms_to_other_cells(graph, steps))), straight)
        for steps in (first, every)
    )
    found = {**found, **prefix_part_names("all atoms", moved)}
    said = [name for name, x in parsed.values.items() if last_dict_key(name) == PERIODIC and x.numel() % 3 == 0]
    if parsed.graph.ends is not None or len(said) != 1:
        return found
    return {
        **found,
        **compare_or_give_reason("an open side", lambda: _compare_longer_cell_along_open_axis(subject, said[0])),
    }


def _compare_longer_cell_along_open_axis(subject: ModuleUnderTest, pbc_argument_name: str) -> dict[str, GotAndExpected]:
    # a vector along which the cell does not repeat may be longer
    parsed = require_parsed_graph_inputs(subject)
    graph, axis = parsed.graph, parsed.periodic[0]
    assert graph.cells is not None
    longer = graph.cells.clone()
    longer[:, axis] *= 1.5
    said = parsed.values[pbc_argument_name].clone()
    said.view(-1, 3)[:, axis] = 0
    one, two = (
        call_network_detached(
            subject, {**parsed.make_arguments_for_graph(replace(graph, cells=cells)), pbc_argument_name: said}
        )
        for cells in (longer, graph.cells)
    )
    names = [name for name in two if name == subject.energy or name == subject.forces]
    return pair_results({name: one[name] for name in names}, {name: two[name] for name in names})


def compare_lattice_bases(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results for other basis vectors of a lattice."""
    parsed = require_parsed_graph_inputs(subject)
    axis, other = parsed.periodic[:2]
    sheared_results = subject(parsed.make_arguments_for_graph(shear_lattice(parsed.graph, axis, other)))
    found = pair_results(sheared_results, subject(subject.given))
    return {**found, **compare_on_one_atom_crystal(subject, _compare_crystal_in_sheared_lattice_basis)}


def compare_on_one_atom_crystal(
    subject: ModuleUnderTest, compare: Callable[[ModuleUnderTest, AtomGraph], GotAndExpectedByPart]
) -> dict[str, GotAndExpectedOrReason]:
    """Run a comparison on a one-atom cubic crystal, unless the network takes edges."""
    parsed = require_parsed_graph_inputs(subject)
    graph = parsed.graph
    if graph.ends is not None or len(parsed.periodic) < 3 or graph.graph_count > 1:
        return {}
    cube = EDGE * shortest_distance(graph) * torch.eye(3, dtype=graph.points.dtype)[None]
    crystal = replace(select_atoms(graph, torch.zeros(1, dtype=torch.int64)), cells=cube)
    return compare_or_give_reason(CRYSTAL, lambda: compare(subject, crystal))


def _compare_crystal_in_sheared_lattice_basis(
    subject: ModuleUnderTest, crystal: AtomGraph
) -> dict[str, GotAndExpected]:
    # far from a cube
    axes = [(0, 1), (0, 1), (1, 2), (1, 2), (0, 2)]
    other = reduce(lambda found, pair: shear_lattice(found, *pair), axes, crystal)
    got, expected = (call_on_graph(subject, graph) for graph in (other, crystal))
    return pair_results(got, expected)


def strain_and_shrink_graph(graph: AtomGraph) -> AtomGraph:
    """Strain the cell, drop one atom, and keep shorter edges."""
    strain = torch.eye(3, dtype=graph.points.dtype)
    strain += STRAIN * torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.2, 0.1], [0.0, 0.0, -0.5]]).to(strain)
    cells = None if graph.cells is None else graph.cells @ strain
    found = replace(graph, points=graph.points @ strain, cells=cells)
    if len(graph.points) > 2:
        found = select_atoms(found, torch.arange(len(found.points) - 1))
    return found if found.ends is None else keep_shorter_edges(found)


def keep_shorter_edges(graph: AtomGraph) -> AtomGraph:
    """Keep edges up to the median length."""
    lengths = graph.vectors.norm(dim=-1)
    return select_edges(graph, lengths <= lengths.median() * (1 + 1e-6)) if len(lengths) else graph


def check_finite_systems(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Check that isolated, close and collinear atoms give finite results."""
    graph = require_parsed_graph_inputs(subject).graph
    cases: dict[str, AtomGraph] = {}
    if graph.ends is not None:
        cases["an atom without edges"] = select_edges(graph, (graph.ends != 0).all(0))
        cases["one atom alone"] = select_atoms(graph, torch.zeros(1, dtype=torch.int64))
        cases["no edges"] = select_edges(graph, torch.zeros(graph.ends.shape[1], dtype=torch.bool))
    if len(graph.points) > 1:
        cases["two points close together"] = _move_two_points_close(graph)
        if graph.ends is None or graph.ends.shape[1]:  # a row of an edge, for what is given of edges besides
            cases["an atom between two alike"] = _make_graph_of_atom_between_two(graph)
    if len(graph.points) > 2:
        for axis, name in enumerate("xyz"):
            cases[f"on a line along {name}"] = place_atoms_on_line(graph, axis, shortest_distance(graph))
    found: dict[str, GotAndExpectedOrReason] = {}
    for name, case in cases.items():
        found |= compare_or_give_reason(name, lambda graph=case: _check_finite_results_on_graph(subject, graph))  # type: ignore[misc]
    return found or {"": "there are no edges, and less than three points"}


def _make_graph_of_atom_between_two(graph: AtomGraph) -> AtomGraph:
    # the last atom halfway between two of the first, where vectors cancel
    rows = torch.tensor([0, len(graph.points) - 1, 0])
    places = shortest_distance(graph) * torch.tensor([[-1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    points, same = places.to(graph.points), torch.zeros_like(rows)
    found = replace(graph, points=points, batch=same, atoms=graph.atoms[rows], twins=same)
    if graph.graph_count > 1:
        found = replace(found, graphs=graph.graphs[:1], cells=None if graph.cells is None else graph.cells[:1])
    if graph.ends is None or graph.edges is None or graph.edge_twins is None:
        return found
    ends = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    edges = torch.zeros(4, dtype=torch.int64)
    counts = None if graph.counts is None else graph.counts.new_zeros(4, 3)
    return replace(found, ends=ends, edges=edges, edge_twins=edges, counts=counts)


def _move_two_points_close(graph: AtomGraph) -> AtomGraph:
    # with the first point, or the first that an edge leads to another, close to the other
    one, other = 0, 1
    if graph.ends is not None and (joined := (graph.ends[0] != graph.ends[1]).nonzero().flatten()).numel():
        one, other = graph.ends[:, joined[0]].tolist()
    points = graph.points.clone()
    points[one] = points[other] + CLOSE * shortest_distance(graph) * torch.tensor([0.6, 0.48, 0.64]).to(points)
    return replace(graph, points=points)


def _check_finite_results_on_graph(subject: ModuleUnderTest, graph: AtomGraph) -> dict[str, GotAndExpected]:
    # Whether results are numbers, as many as there are atoms; of a potential without forces, whether slopes are.
    values = require_parsed_graph_inputs(subject).make_arguments_for_graph(graph)
    found, straight = call_network_detached(subject, values), subject(subject.given)
    atoms = len(require_parsed_graph_inputs(subject).graph.points)
    pairs = compare_finite_entries_with_ones(found)
    for name, y in straight.items():
        if (
            count_rows(y, subject.result_rule(name))
            == atoms
            not in (1, require_parsed_graph_inputs(subject).graph.graph_count)
        ):
            wanted = (len(graph.points), *y.shape[1:])
            pairs[name] = (found[name].isfinite().double(), torch.ones(wanted).double())
    if subject.energy is not None and subject.forces is None:
        pairs |= compare_finite_entries_with_ones({"slopes": compute_energy_and_forces(subject, values)[1]})
    return {name: pair for name, pair in pairs.items() if pair[1].numel()}


def compare_finite_entries_with_ones(results: TensorsByName) -> dict[str, GotAndExpected]:
    """Pair each result's mask of finite entries with ones."""
    return {name: (y.isfinite().double(), torch.ones(y.shape).double()) for name, y in results.items() if y.numel()}


def compare_summed_systems(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare sums of atomic energies with graph energies."""
    found = subject(subject.given)
    graph, energy = require_parsed_graph_inputs(subject).graph, found[subject.energy or ""]
    outcomes: dict[str, GotAndExpected | str] = {}
    for name in list_atomic_energy_results(subject):
        y = found[name]
        if y.numel() != len(graph.points) or energy.numel() not in (1, graph.graph_count):
            outcomes[name] = f"its shape is {tuple(y.shape)}, where one number for each atom is summed"
            continue
        sums = torch.zeros(graph.graph_count, dtype=torch.float64).index_add(0, graph.batch, y.flatten())
        outcomes[name] = (sums if energy.numel() == graph.graph_count else sums.sum().reshape(1), energy.flatten())
    return outcomes


def list_atomic_energy_results(subject: ModuleUnderTest) -> list[str]:
    return [name for name in subject.outcomes if name in NODE_ENERGIES]
