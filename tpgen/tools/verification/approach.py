"""An atom approaching others."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tpgen.tools.verification.findings import NotCompared
from tpgen.tools.verification.graphs import AtomGraph, spacing
from tpgen.tools.verification.subject import Subject
from tpgen.tools.verification.systems import network_results, reading_of

_SKINS = (0.11, 0.19, 0.32, 0.54, 0.92)  # of lists of neighbours, by the reach, each 1.7 times as thick
_INSIDE = (0.97, 0.9, 0.75)  # where the atom arrives, by the reach
_LONGEST, _HALVINGS = 64.0, 9  # of the reach, by the distance of the nearest points, and of its bounds
_SAME = 1e-11  # results of an atom beyond the reach
_WAY = (0.48, 0.64, 0.6)


def departures_and_arrivals(subject: Subject) -> tuple[list[AtomGraph], list[AtomGraph]]:
    """Place the last atom beyond others' reach, and within."""
    reading = reading_of(subject)
    graph, way = reading.graph, torch.tensor(_WAY, dtype=torch.float64)
    if int((graph.batch == graph.batch[-1]).sum()) < 2:
        raise NotCompared("one atom alone has no neighbours")
    if reading.periodic:  # images are near wherever the atom is
        return [_with_last_atom(graph, graph.points[-1] + skin * spacing(graph) * way) for skin in _SKINS], [graph]
    others = graph.points[(graph.batch == graph.batch[-1]).nonzero().flatten()[:-1]]
    edge = others[(others @ way).argmax()]  # beyond this atom, none is nearer
    near, far = _bounds_of_reach(subject, edge, way)
    starts = [_with_last_atom(graph, edge + (far + skin * near) * way) for skin in _SKINS]
    return starts, [_with_last_atom(graph, edge + inside * near * way) for inside in _INSIDE]


def _with_last_atom(graph: AtomGraph, place: Tensor) -> AtomGraph:
    return replace(graph, points=torch.cat([graph.points[:-1], place[None]]))


def _bounds_of_reach(subject: Subject, edge: Tensor, way: Tensor) -> tuple[float, float]:
    # distances between which the last atom comes to know of others, by copies that remember nothing
    reading = reading_of(subject)

    def results_at(distance: float) -> Tensor:
        graph, exact = _with_last_atom(reading.graph, edge + distance * way), subject.in_float64()
        found = network_results(exact, reading.written(graph))
        numbers = [y for name, y in found.items() if subject.result_frame(name).axes == 0] or list(found.values())
        return torch.cat([y.flatten() for y in numbers])

    near, far = spacing(reading.graph), _LONGEST * spacing(reading.graph)
    apart = results_at(far)
    for _ in range(_HALVINGS):
        middle = (near * far) ** 0.5
        beyond = torch.allclose(results_at(middle), apart, rtol=_SAME, atol=_SAME)
        near, far = (near, middle) if beyond else (middle, far)
    return near, far
