"""The law of company: a graph has the same results beside others as alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from tpgen.verification.findings import NotCompared, Outcome
from tpgen.verification.graphs import AtomGraph, alone, joined, repeated_graph
from tpgen.verification.laws import Outcomes, named
from tpgen.verification.reading import Reading
from tpgen.verification.subject import Named, Subject
from tpgen.verification.systems import another, read, taken

UNLIKE, ONE_SPECIES = "graphs of unlike sizes", "beside a graph of one species"


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
        found |= _case(subject, UNLIKE, [parts[0], _unlike(reading, parts[0])])
    pure = _of_one_species(reading, parts[0])
    return found if pure is None else found | _case(subject, ONE_SPECIES, [parts[0], pure])


def _case(subject: Subject, name: str, parts: list[AtomGraph]) -> dict[str, Outcome]:
    """Other graphs than were given, which a network need not take alone."""
    try:
        return named(name, _together(subject, parts))
    except NotCompared as why:
        return {name: str(why)}


def _together(subject: Subject, parts: list[AtomGraph]) -> dict[str, Outcome]:
    each = [taken(subject, read(subject).written(one)) for one in parts]
    try:
        together = _joined(subject, parts)
    except NotCompared as why:
        if _takes(subject, [parts[0], parts[0]]):
            return {"": Refused(f"of two graphs each is taken alone, and two that are alike together; {why}")}
        raise
    return _side_by_side(subject, together, each)


def _joined(subject: Subject, parts: list[AtomGraph]) -> Named:
    together = parts[0]
    for one in parts[1:]:
        together = joined(together, one)
    return taken(subject, read(subject).written(together))


def _takes(subject: Subject, parts: list[AtomGraph]) -> bool:
    try:
        _joined(subject, parts)
    except NotCompared:
        return False
    return True


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


def _of_one_species(reading: Reading, graph: AtomGraph) -> AtomGraph | None:
    """The graph with the atom of the largest species in all places; None where all are of one, or nobody says it."""
    for name in reading.named("atoms"):
        kinds = reading.values[name]
        if kinds.is_floating_point() or kinds.numel() != len(reading.graph.points):
            continue
        own = kinds.flatten()[graph.atoms]
        if bool((own != own[0]).any()):
            return replace(graph, atoms=graph.atoms[own.argmax()].expand_as(graph.atoms))
    return None
