"""Laws of copies and batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import torch
from torch import Tensor

from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason, NotCompared
from tpgen.tools.verification.graphs import (
    AtomGraph,
    add_distant_copy,
    double_cell_along_axis,
    join_graphs,
    select_atoms,
    select_graph_of_batch,
)
from tpgen.tools.verification.indices import GRAPHS
from tpgen.tools.verification.laws import GotAndExpectedByPart, compare_or_give_reason, pair_results
from tpgen.tools.verification.padding import UnknownPadding
from tpgen.tools.verification.reading import ParsedGraphInputs, count_rows
from tpgen.tools.verification.subject import INVARIANT, ModuleUnderTest, TensorsByName, last_dict_key
from tpgen.tools.verification.systems import (
    call_network_detached,
    call_on_graph,
    compare_on_one_atom_crystal,
    decode_species_of_atoms,
    require_parsed_graph_inputs,
    strain_and_shrink_graph,
)

FAR = 100.0  # how many times as far as their size two copies of a system are from each other
MANY, _EDGES, _COPIES, _PLACES = "many copies", 4_200, 255, 7
MANY_GRAPHS, _ATOMS = "many graphs", 500
ALIKE = 1e-11  # how alike results are that do not depend on how far
GAP = (
    "a graph without atoms between two: the network leaves it out, and energies of later ones move up; it may be meant"
)
UNLIKE, ONE_SPECIES, LONE = "graphs of unlike sizes", "beside a graph of the {} species", "beside a lone atom"
APART = "energies do not add up: atoms know of others that no edge joins, or far away, which may be meant"


_INTENSIVE = "the same of two systems as of one, which may be meant: say irreps_out={{{!r}: 'energy'}} of an energy"


def compare_copies_of_system(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of a doubled cell, or two distant copies, with one system's."""
    found, name = _compare_doubled_system_with_single(subject), subject.energy or ""
    pair = found.get(name)
    if not (subject.by_elimination and isinstance(pair, tuple) and torch.allclose(2 * pair[0], pair[1], rtol=1e-4)):
        return found
    others = {part: outcome for part, outcome in found.items() if part.rpartition(", ")[2] != name}
    return {**others, name: _INTENSIVE.format(last_dict_key(name))}


def _compare_doubled_system_with_single(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    parsed, straight = require_parsed_graph_inputs(subject), call_network_detached(subject, subject.given)
    if parsed.periodic:
        if parsed.index_names:
            raise NotCompared(f"nobody can tell in which of two cells the indices {', '.join(parsed.index_names)} are")
        found = _compare_doubled_graph_with_single_graph(
            subject, straight, double_cell_along_axis(parsed.graph, parsed.periodic[0])
        )
        return {**found, **compare_on_one_atom_crystal(subject, _compare_energy_of_doubled_cell)}
    exact = subject.with_float64_copy()
    points = parsed.graph.points
    far = FAR * (1.0 + float((points - points[:1]).norm(dim=-1).max()))
    straight = call_network_detached(exact, exact.given)
    near, further = (
        _compare_doubled_graph_with_single_graph(exact, straight, add_distant_copy(parsed.graph, n * far))
        for n in (1, 2)
    )
    same = [name for name, (got, expected) in near.items() if got.shape == expected.shape]
    if any(_differs_beyond_rounding(*(one[name][0] - one[name][1] for one in (near, further))) for name in same):
        how = "no edge joins" if parsed.graph.ends is not None else f"are {far:.0f} away"
        raise NotCompared(f"the network sees points that {how}")
    many = compare_or_give_reason(MANY, lambda: _compare_energy_of_many_copies_with_one(exact, far))
    return near | many | _compare_energy_beside_distant_one_species_graph(exact, far)


def _compare_energy_of_many_copies_with_one(subject: ModuleUnderTest, distance: float) -> dict[str, GotAndExpected]:
    # the energy of so many copies that they have more edges than a small system has: some branch, or cut into chunks
    graph, energy = require_parsed_graph_inputs(subject).graph, subject.energy
    edges = 0 if graph.ends is None else graph.ends.shape[1]
    if (
        energy is None
        or not edges
        or graph.graph_count > 1
        or _find_possibly_extensive_arguments(subject) & subject.given.keys()
    ):
        return {}
    count = min(_EDGES // edges, _COPIES) | 1  # odd: chunks are powers of two
    places = torch.cartesian_prod(*[torch.arange(_PLACES)] * 3)  # near enough to be exact
    parts = [replace(graph, points=graph.points + distance * place.to(graph.points)) for place in places[:count]]
    once = call_network_detached(subject, subject.given)[energy].sum()
    last = call_on_graph(subject, reduce(join_graphs, parts))[energy].sum() - (count - 1) * once
    return {energy: (last.reshape(1), once.reshape(1))}


def _compare_energy_of_doubled_cell(subject: ModuleUnderTest, crystal: AtomGraph) -> dict[str, GotAndExpected]:
    # the energy of a cell twice as long
    twice, once = (call_on_graph(subject, graph) for graph in (double_cell_along_axis(crystal, 0), crystal))
    energy = subject.energy
    return {} if energy is None else {energy: (twice[energy].sum().reshape(1), 2 * once[energy].sum().reshape(1))}


def _compare_energy_beside_distant_one_species_graph(
    subject: ModuleUnderTest, distance: float
) -> dict[str, GotAndExpectedOrReason]:
    # A system and a far one, without an edge between, of a single species: the sum of both energies, or a word.
    parsed, energy = require_parsed_graph_inputs(subject), subject.energy
    if energy is None or {"batch", GRAPHS} & {*parsed.roles.values()} or parsed.graph.graph_count > 1:
        return {}  # of graphs, the law of batches says so
    found: dict[str, GotAndExpectedOrReason] = {}
    for part, pure in _make_graphs_of_one_species(parsed, parsed.graph).items():
        parts = [parsed.graph, replace(pure, points=pure.points + distance)]
        try:
            together = call_on_graph(subject, reduce(join_graphs, parts))[energy].sum()
            each = [call_on_graph(subject, one)[energy].sum() for one in parts]
        except NotCompared as why:
            return {part: str(why)}
        separate = torch.stack(each).sum()
        found[part] = APART if _differs_beyond_rounding(together, separate) else (together, separate)
    return found


def _differs_beyond_rounding(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or bool((one - other).abs().max() > ALIKE * (1.0 + other.abs().max()))


def _compare_doubled_graph_with_single_graph(
    subject: ModuleUnderTest, single_results: TensorsByName, doubled_graph: AtomGraph
) -> dict[str, GotAndExpected]:
    expected = _compute_expected_results_of_doubled_graph(subject, single_results, doubled_graph)
    once = require_parsed_graph_inputs(subject).make_arguments_for_graph(doubled_graph)
    found = [
        call_network_detached(subject, values)
        for values in _make_arguments_with_and_without_doubled_extensives(subject, once)
    ]
    missing = [name for name in expected if found[0][name].shape != expected[name].shape]
    if missing or not expected:
        return {name: (found[0][name], expected[name]) for name in expected}
    errors = [sum(float((one[name] - y).abs().max()) for name, y in expected.items() if y.numel()) for one in found]
    best = found[errors.index(min(errors))]
    return pair_results({name: best[name] for name in expected}, expected)


def _find_possibly_extensive_arguments(subject: ModuleUnderTest) -> set[str]:
    # arguments that may be numbers of a whole graph, which grow with it, as a charge does: nobody says which
    roles = require_parsed_graph_inputs(subject).roles
    return {
        name
        for name in subject.given
        if roles[name] in ("graphs", "") and subject.turns.get(name, INVARIANT) is INVARIANT
    }


def _make_arguments_with_and_without_doubled_extensives(
    subject: ModuleUnderTest, arguments: TensorsByName
) -> list[TensorsByName]:
    # with the numbers of a whole graph as they are, and as of two
    whole = _find_possibly_extensive_arguments(subject)
    return [arguments, {**arguments, **{name: 2 * arguments[name] for name in whole}}] if whole else [arguments]


def _compute_expected_results_of_doubled_graph(
    subject: ModuleUnderTest, single_results: TensorsByName, doubled_graph: AtomGraph
) -> TensorsByName:
    # The results of a system and its copy, as far as it is known how they grow.
    atoms, points, found = len(doubled_graph.atoms) // 2, require_parsed_graph_inputs(subject).graph.points, {}
    for name, y in single_results.items():
        of_atoms = count_rows(y, subject.result_rule(name)) == atoms
        if name == subject.virial or (name == subject.energy and not of_atoms):
            found[name] = 2 * y
        elif name == subject.stress:
            found |= {name: y} if require_parsed_graph_inputs(subject).periodic else {}
        elif of_atoms and (atoms != doubled_graph.graph_count or name == subject.forces):
            moves = subject.result_rule(name).moves
            found[name] = y[doubled_graph.atoms] + (
                doubled_graph.points - points[doubled_graph.atoms] if moves else 0.0
            )
    return found


class Refused(Exception):
    """A network rejects a batch of graphs accepted alone."""


def compare_batch(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of batched graphs with each graph's alone."""
    parsed = require_parsed_graph_inputs(subject)
    cell = next((parsed.values[name] for name in parsed.names_with_role("cell")), None)
    if cell is not None and cell.shape == (3, 3) and not parsed.names_with_role("pointers"):
        raise NotCompared("a cell (3, 3) is of one graph: give it as (1, 3, 3), or two graphs")
    graph = parsed.graph
    if graph.ends is None and graph.graph_count == 1:
        raise NotCompared("the network makes its own edges: give two graphs")
    parts = [select_graph_of_batch(graph, n) for n in range(graph.graph_count)]
    given = parts if len(parts) > 1 else [graph, strain_and_shrink_graph(graph)]
    found = _compare_batch_with_single_graphs(subject, given)
    first = parts[0]
    batches: dict[str, list[AtomGraph]] = {}
    if len({len(one.points) for one in given}) == 1:
        batches[UNLIKE] = [first, _make_graph_of_other_size(parsed, first)]
    batches |= {part: [first, other] for part, other in _make_graphs_of_one_species(parsed, first).items()}
    if len(first.points) > 1:
        lone = select_atoms(first, torch.zeros(1, dtype=torch.int64))
        batches |= {LONE: [first, lone], f"{LONE}, which comes first": [lone, first]}
    for part, batch in batches.items():
        found |= compare_or_give_reason(part, partial(_compare_batch_with_single_graphs, subject, batch))
    found |= compare_or_give_reason(MANY_GRAPHS, lambda: _compare_large_batch_with_single_graphs(subject, given))
    return found | _compare_energies_with_gap_in_graph_numbers(subject, given[:2])


def _compare_large_batch_with_single_graphs(
    subject: ModuleUnderTest, graphs: list[AtomGraph]
) -> dict[str, GotAndExpectedOrReason]:
    # so many that some branch, or cut them into chunks; a network may have room for less
    atoms = sum(len(one.points) for one in graphs)
    parts = graphs * (_ATOMS // max(atoms, 1) | 1)
    each = [call_on_graph(subject, one) for one in graphs]
    together = call_on_graph(subject, reduce(join_graphs, parts))
    return _compare_results_with_single_graphs(subject, together, each * (len(parts) // len(graphs)))


def _compare_energies_with_gap_in_graph_numbers(
    subject: ModuleUnderTest, two_graphs: list[AtomGraph]
) -> dict[str, GotAndExpectedOrReason]:
    # The same graphs with a number between theirs that no atom has.
    parsed, energy = require_parsed_graph_inputs(subject), subject.energy
    batches, empty = parsed.names_with_role("batch"), select_atoms(two_graphs[0], torch.zeros(0, dtype=torch.int64))
    if energy is None or len(batches) != 1 or parsed.index_names:
        return {}
    try:
        values = parsed.make_arguments_for_graph(reduce(join_graphs, two_graphs))
        straight = call_network_detached(subject, values)[energy]
        with_gap = parsed.make_arguments_for_graph(reduce(join_graphs, (two_graphs[0], empty, two_graphs[1])))
        found = call_network_detached(subject, with_gap)[energy]
    except NotCompared as why:
        return {"a gap": f"of a graph without atoms: {why}"}
    if straight.shape[:1] != (2,):
        return {}
    if found.shape[:1] == (3,):
        return {"a gap": (found[::2], straight)}
    counts_graphs = {"cell", "pointers", GRAPHS} & set(parsed.roles.values())
    return {"a gap": (found, torch.zeros(3, *straight.shape[1:])) if counts_graphs else GAP}


def _compare_batch_with_single_graphs(
    subject: ModuleUnderTest, graphs: list[AtomGraph]
) -> dict[str, GotAndExpectedOrReason]:
    each = [call_on_graph(subject, one) for one in graphs]
    try:
        together = call_on_graph(subject, reduce(join_graphs, graphs))
    except UnknownPadding:
        raise
    except NotCompared as why:
        try:
            call_on_graph(subject, reduce(join_graphs, [graphs[0], graphs[0]]))
        except NotCompared:
            raise why from None
        return {"": Refused(f"of two graphs each is taken alone, and two that are alike together; {why}")}
    return _compare_results_with_single_graphs(subject, together, each)


def _compare_results_with_single_graphs(
    subject: ModuleUnderTest, joined_results: TensorsByName, single_results: list[TensorsByName]
) -> dict[str, GotAndExpectedOrReason]:
    found: dict[str, GotAndExpectedOrReason] = {}
    for name, y in joined_results.items():
        ys = [one[name] for one in single_results]
        if y.numel() == 1 and name == subject.energy:
            found[name] = (y.reshape(1), torch.stack([one.sum() for one in ys]).sum().reshape(1))
        elif y.numel() == sum(one.numel() for one in ys):
            rows = [one if one.dim() == y.dim() else one.unsqueeze(0) for one in ys]
            lost = next((one for one, row in zip(ys, rows, strict=True) if row is not one), None)
            found[name] = (y, torch.cat(rows)) if lost is None else (lost, y[:1])
        else:
            found[name] = f"its shape is {tuple(y.shape)}: nobody can tell of which graph it is"
    return found


def _make_graph_of_other_size(parsed: ParsedGraphInputs, graph: AtomGraph) -> AtomGraph:
    # A graph of another number of atoms, as far as one can be made.
    found = strain_and_shrink_graph(graph)
    fewer = len(found.points) < len(graph.points)
    return found if fewer or not parsed.periodic else double_cell_along_axis(graph, parsed.periodic[0])


def _make_graphs_of_one_species(parsed: ParsedGraphInputs, graph: AtomGraph) -> dict[str, AtomGraph]:
    # The graph with an atom of the largest, or smallest, species in all places; none where all are of one.
    for name in parsed.names_with_role("atoms"):
        kinds = decode_species_of_atoms(parsed.values[name])
        if kinds is None or len(kinds) != len(parsed.graph.points):
            continue
        own = kinds[graph.atoms]
        if bool((own != own[0]).any()):
            places = {"largest": own.argmax(), "smallest": own.argmin()}
            return {
                ONE_SPECIES.format(which): replace(graph, atoms=graph.atoms[place].expand_as(graph.atoms))
                for which, place in places.items()
            }
    return {}
