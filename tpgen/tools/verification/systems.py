"""The laws of systems: the same atoms, cells and edges said otherwise, twice, or beside others give what they must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from tpgen.tools.verification.findings import NotCompared, Outcome, Pair
from tpgen.tools.verification.graphs import (
    AtomGraph,
    alone,
    apart,
    exchanged,
    joined,
    on_a_line,
    repeated_graph,
    sheared,
    spacing,
    with_atoms,
    with_edges,
)
from tpgen.tools.verification.indices import GRAPHS
from tpgen.tools.verification.laws import Outcomes, pairs, tried
from tpgen.tools.verification.potentials import at_points
from tpgen.tools.verification.reading import Reading, rows_read
from tpgen.tools.verification.subject import STILL, Named, Subject, another_order

NODE_ENERGIES = ("node_energy", "node_energies", "atomic_energy", "atomic_energies")
VIRIALS = ("virial", "virials")
FAR = 100.0  # how many times as far as their size two copies of a system are from each other
ALIKE = 1e-11  # how alike results are that do not depend on how far
STRAIN = 0.06  # of another graph's cell
UNLIKE, ONE_SPECIES = "graphs of unlike sizes", "beside a graph of the {} species"

APART = "energies do not add up: atoms know of others that no edge joins, which may be meant"
NO_BATCH = "no tensor named batch says which graph an atom is in"
NO_EDGES = "no integers say which atoms edges join: call them edge_index, or src and dst, or say so by irreps_in"
_HAVE: dict[str, tuple[Callable[[Reading], bool], str]] = {
    "edges": (
        lambda r: r.graph.ends is not None,
        "no integers say which atoms edges join: call them edge_index, or src and dst, or say so by irreps_in",
    ),
    "cell": (lambda r: bool(r.periodic), "no cell with a volume, and images of edges in it, is among the inputs"),
    "plane": (lambda r: len(r.periodic) > 1, "no cell that repeats along two vectors is among the inputs"),
    "edges or cell": (lambda r: bool(r.periodic) or r.graph.ends is not None, "there are no edges, and no cell"),
    "batch": (
        lambda r: bool(r.named("batch")) or r.graph.number > 1,
        "no tensor named batch says which graph an atom is in",
    ),
    "axes": (lambda r: not r.unclear, ""),
}


def needs(*parts: str) -> Callable[[Subject], str]:
    """Why a law that needs so much of a call's arguments cannot be compared; empty where it can."""

    def lacking(subject: Subject) -> str:
        if subject.points is None:
            return "no input is said to be points"
        reading = subject.reading
        if not isinstance(reading, Reading):
            return str(reading)
        if reading.unreadable:
            return reading.unreadable
        return next((why or reading.unclear for there, why in map(_HAVE.__getitem__, parts) if not there(reading)), "")

    return lacking


def read(subject: Subject) -> Reading:
    assert isinstance(subject.reading, Reading)
    return subject.reading


def taken(subject: Subject, values: Named) -> Named:
    """The results of a call of another size, which a network need not take."""
    try:
        return {name: y.detach() for name, y in subject(values).items()}
    except NotCompared:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0][:120]
        raise NotCompared(f"the network does not take it: {type(error).__name__}: {said}") from error


def _moved(subject: Subject, name: str, y: Tensor, rows: int, order: Tensor) -> Tensor:
    """A result in another order of atoms or edges, if it has a row for each."""
    return y[order] if rows_read(y, subject.result_frame(name)) == rows else y


def permuted_atoms(subject: Subject) -> tuple[Named, Named]:
    """Results of the atoms of each graph in another order, and the results in it."""
    reading = read(subject)
    order = another_order(len(reading.graph.points))
    order = order[torch.argsort(reading.graph.batch[order], stable=True)]
    got, straight = subject(reading.written(with_atoms(reading.graph, order))), subject(subject.given)
    return got, {name: _of_atoms(subject, name, y, got[name], order) for name, y in straight.items()}


def _of_atoms(subject: Subject, name: str, y: Tensor, got: Tensor, order: Tensor) -> Tensor:
    """A result in another order of atoms: its rows, or rows and columns where it has both for each atom."""
    moved = _moved(subject, name, y, len(order), order)
    if y.shape[:2] != (len(order), len(order)) or subject.result_frame(name).axes or got.shape != y.shape:
        return moved
    square = moved[:, order]
    return square if _distance(got, square) < _distance(got, moved) else moved


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def edges(subject: Subject) -> Outcomes:
    """Edges in another order give results in it."""
    reading = read(subject)
    assert reading.graph.edges is not None
    order = another_order(len(reading.graph.edges))
    got, straight = subject(reading.written(with_edges(reading.graph, order))), subject(subject.given)
    return pairs(got, {name: _moved(subject, name, y, len(order), order) for name, y in straight.items()})


def images(subject: Subject) -> Outcomes:
    """A point exchanged for its image in another cell, with the images of its edges: the same results."""
    reading = read(subject)
    return pairs(
        subject(reading.written(exchanged(reading.graph, list(reading.periodic)))),
        subject(reading.written(reading.graph)),
    )


def basis(subject: Subject) -> Outcomes:
    """A lattice by another of its cells, with the same results."""
    reading = read(subject)
    axis, other = reading.periodic[:2]
    return pairs(subject(reading.written(sheared(reading.graph, axis, other))), subject(subject.given))


def copies(subject: Subject) -> Outcomes:
    """A cell twice as long, or two copies without an edge between: twice the energy, and the forces of each atom."""
    reading, straight = read(subject), taken(subject, subject.given)
    if reading.periodic:
        if reading.indices:
            raise NotCompared(f"nobody can tell in which of two cells the indices {', '.join(reading.indices)} are")
        return _compared_copies(subject, straight, repeated_graph(reading.graph, reading.periodic[0]))
    exact = subject.in_float64()
    points = reading.graph.points
    far, straight = FAR * (1.0 + float((points - points[:1]).norm(dim=-1).max())), taken(exact, exact.given)
    near, further = (_compared_copies(exact, straight, apart(reading.graph, n * far)) for n in (1, 2))
    if any(_differ(near[name][0], further[name][0]) for name in near):
        raise NotCompared("the network sees points that no edge joins")
    return near | _beside_another(exact, far)


def _beside_another(subject: Subject, far: float) -> dict[str, Outcome]:
    """A system and a far one, without an edge between, of a single species: the sum of both energies, or a word."""
    reading, energy = read(subject), subject.energy
    if energy is None or reading.named("batch") or GRAPHS in reading.roles.values() or reading.graph.number > 1:
        return {}  # of graphs, the law of batches says so
    found: dict[str, Outcome] = {}
    for part, pure in _of_one_species(reading, reading.graph).items():
        parts = [reading.graph, replace(pure, points=pure.points + far)]
        try:
            together = _joined(subject, parts)[energy].sum()
            alone = sum(taken(subject, reading.written(one))[energy].sum() for one in parts)
        except NotCompared as why:
            return {part: str(why)}
        found[part] = APART if _differ(together, torch.as_tensor(alone)) else (together, torch.as_tensor(alone))
    return found


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or bool((one - other).abs().max() > ALIKE * (1.0 + other.abs().max()))


def _compared_copies(subject: Subject, straight: Named, twice: AtomGraph) -> dict[str, Pair]:
    expected = _expected_twice(subject, straight, twice)
    once = read(subject).written(twice)
    found = [taken(subject, values) for values in _grown(subject, once)]
    missing = [name for name in expected if found[0][name].shape != expected[name].shape]
    if missing or not expected:
        return {name: (found[0][name], expected[name]) for name in expected}
    errors = [sum(float((one[name] - y).abs().max()) for name, y in expected.items() if y.numel()) for one in found]
    best = found[errors.index(min(errors))]
    return pairs({name: best[name] for name in expected}, expected)


def _grown(subject: Subject, values: Named) -> list[Named]:
    """Arguments whose numbers of a whole graph stay, and grow with it, as a charge does: nobody says which."""
    roles = read(subject).roles
    whole = [
        name for name in subject.given if roles[name] in ("graphs", "") and subject.turns.get(name, STILL) is STILL
    ]
    return [values, {**values, **{name: 2 * values[name] for name in whole}}] if whole else [values]


def _expected_twice(subject: Subject, straight: Named, twice: AtomGraph) -> Named:
    """The results of a system and its copy, as far as it is known how they grow."""
    atoms, found = len(twice.atoms) // 2, {}
    for name, y in straight.items():
        of_atoms = rows_read(y, subject.result_frame(name)) == atoms
        if (
            (name == subject.energy and not of_atoms)
            or name in VIRIALS
            or (name == subject.stress and subject.is_virial)
        ):
            found[name] = 2 * y
        elif name == subject.stress:
            found |= {name: y} if read(subject).periodic else {}
        elif of_atoms and (atoms != twice.number or name == subject.forces):
            found[name] = y[twice.atoms]
    return found


def another(graph: AtomGraph) -> AtomGraph:
    """A graph of other numbers: a cell of another shape, an atom less, and the shorter half of the edges."""
    strain = torch.eye(3, dtype=graph.points.dtype)
    strain += STRAIN * torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.2, 0.1], [0.0, 0.0, -0.5]]).to(strain)
    cells = None if graph.cells is None else graph.cells @ strain
    found = replace(graph, points=graph.points @ strain, cells=cells)
    if len(graph.points) > 2:
        found = with_atoms(found, torch.arange(len(found.points) - 1))
    return found if found.ends is None else shorter(found)


def shorter(graph: AtomGraph) -> AtomGraph:
    """The shorter half of the edges, of which an edge and its way back are one."""
    lengths = graph.vectors.norm(dim=-1)
    return with_edges(graph, lengths <= lengths.median() * (1 + 1e-6)) if len(lengths) else graph


def finite(subject: Subject) -> Outcomes:
    """Results are numbers for atoms without edges, and for points on a line."""
    reading, graph = read(subject), read(subject).graph
    cases: dict[str, AtomGraph] = {}
    if graph.ends is not None:
        cases["an atom without edges"] = with_edges(graph, (graph.ends != 0).all(0))
        cases["no edges"] = with_edges(graph, torch.zeros(graph.ends.shape[1], dtype=torch.bool))
    if len(graph.points) > 2:
        cases |= {f"on a line along {'xyz'[axis]}": on_a_line(graph, axis, spacing(graph)) for axis in range(3)}
    found: dict[str, Outcome] = {}
    for name, case in cases.items():
        found |= tried(name, lambda graph=case: _numbers(subject, reading.written(graph)))  # type: ignore[misc]
    return found or {"": "there are no edges, and less than three points"}


def _numbers(subject: Subject, values: Named) -> dict[str, Pair]:
    """Whether the entries of results are numbers; of a potential without forces, whether slopes are."""
    found = taken(subject, values)
    if subject.energy is not None and subject.forces is None:
        found = {**found, "slopes": at_points(subject, values)[1]}
    return are_numbers(found)


def are_numbers(found: Named) -> dict[str, Pair]:
    """Whether each entry of results is a number, beside that it must be."""
    return {name: (y.isfinite().double(), torch.ones(y.shape).double()) for name, y in found.items() if y.numel()}


def summed_systems(subject: Subject) -> Outcomes:
    """Energies of atoms add up to the energy of their graph."""
    found = subject(subject.given)
    graph, energy = read(subject).graph, found[subject.energy or ""]
    outcomes: dict[str, Pair | str] = {}
    for name in node_energies(subject):
        y = found[name]
        if y.numel() != len(graph.points) or energy.numel() not in (1, graph.number):
            outcomes[name] = f"its shape is {tuple(y.shape)}, where one number for each atom is summed"
            continue
        sums = torch.zeros(graph.number, dtype=torch.float64).index_add(0, graph.batch, y.flatten())
        outcomes[name] = (sums if energy.numel() == graph.number else sums.sum().reshape(1), energy.flatten())
    return outcomes


def node_energies(subject: Subject) -> list[str]:
    """Results that are the energies of atoms."""
    return [name for name in subject.outcomes if name in NODE_ENERGIES]


class Refused(Exception):
    """Graphs that a network takes alone, and not together, although it takes others so."""


def batch(subject: Subject) -> Outcomes:
    """Graphs together, and each alone: those that are given, of unlike sizes, and beside one of a single species."""
    reading = read(subject)
    cell = next((reading.values[name] for name in reading.named("cell")), None)
    if cell is not None and cell.shape == (3, 3) and not reading.named("pointers"):
        raise NotCompared("a cell (3, 3) is of one graph: give it as (1, 3, 3), or two graphs")
    graph = reading.graph
    if graph.ends is None and graph.number == 1:
        raise NotCompared("the network makes its own edges: give two graphs")
    parts = [alone(graph, n) for n in range(graph.number)]
    given = parts if len(parts) > 1 else [graph, another(graph)]
    found = _together(subject, given)
    if len({len(one.points) for one in given}) == 1:
        found |= tried(UNLIKE, lambda: _together(subject, [parts[0], _unlike(reading, parts[0])]))
    for part, pure in _of_one_species(reading, parts[0]).items():
        found |= tried(part, lambda other=pure: _together(subject, [parts[0], other]))  # type: ignore[misc]
    return found


def _together(subject: Subject, parts: list[AtomGraph]) -> dict[str, Outcome]:
    each = [taken(subject, read(subject).written(one)) for one in parts]
    try:
        together = _joined(subject, parts)
    except NotCompared as why:
        try:
            _joined(subject, [parts[0], parts[0]])
        except NotCompared:
            raise why from None
        return {"": Refused(f"of two graphs each is taken alone, and two that are alike together; {why}")}
    return _side_by_side(subject, together, each)


def _joined(subject: Subject, parts: list[AtomGraph]) -> Named:
    return taken(subject, read(subject).written(reduce(joined, parts)))


def _side_by_side(subject: Subject, together: Named, each: list[Named]) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for name, y in together.items():
        ys = [one[name] for one in each]
        if y.numel() == 1 and name == subject.energy:
            found[name] = (y.reshape(1), torch.stack([one.sum() for one in ys]).sum().reshape(1))
        elif y.numel() == sum(one.numel() for one in ys):
            found[name] = (y.flatten(), torch.cat([one.flatten() for one in ys]))
        else:
            found[name] = f"its shape is {tuple(y.shape)}: nobody can tell of which graph it is"
    return found


def _unlike(reading: Reading, graph: AtomGraph) -> AtomGraph:
    """A graph of another number of atoms, as far as one can be made."""
    found = another(graph)
    fewer = len(found.points) < len(graph.points)
    return found if fewer or not reading.periodic else repeated_graph(graph, reading.periodic[0])


def _of_one_species(reading: Reading, graph: AtomGraph) -> dict[str, AtomGraph]:
    """The graph with an atom of the largest, or smallest, species in all places; none where all are of one."""
    for name in reading.named("atoms"):
        kinds = _species(reading.values[name])
        if kinds is None or len(kinds) != len(reading.graph.points):
            continue
        own = kinds[graph.atoms]
        if bool((own != own[0]).any()):
            places = {"largest": own.argmax(), "smallest": own.argmin()}
            return {
                ONE_SPECIES.format(which): replace(graph, atoms=graph.atoms[place].expand_as(graph.atoms))
                for which, place in places.items()
            }
    return {}


def _species(x: Tensor) -> Tensor | None:
    """What each atom is, as integers or as rows with a single one; None where a tensor says no such thing."""
    if not x.is_floating_point():
        return x.flatten()
    single = x.dim() == 2 and bool(((x == 0) | (x == 1)).all()) and bool((x.sum(1) == 1).all())
    return x.argmax(1) if single else None
