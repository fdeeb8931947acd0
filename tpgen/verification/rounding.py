"""Bounds of what rounding alone may do to a result: of forces that vanish, no share says anything."""

from __future__ import annotations

import torch

from tpgen.verification.dynamics import LONGEST
from tpgen.verification.graphs import AtomGraph
from tpgen.verification.periodic import strained_energy
from tpgen.verification.reading import Reading
from tpgen.verification.subject import Named, Subject

UNITS, OF_SLOPES = 4096, 64  # of the last place: of sums of many edges and layers, and of one difference of energies
STRETCHES = (-0.1, 0.1)  # how the energy that edges have is seen, without that of atoms alone
SLOPE = "slope"


def floors(subject: Subject, found: Named) -> dict[str, float]:
    """Errors that are rounding: of forces the energy's over the shortest edge, of a stress over the volume.

    That of slopes by differences comes of the whole energy.
    """
    if subject.energy is None or not isinstance(subject.reading, Reading):
        return {}
    graph, energy = subject.reading.graph, found[subject.energy].detach().sum()
    try:
        energies = [strained_energy(subject, torch.eye(3, dtype=torch.float64), stretch) for stretch in STRETCHES]
        bonds = sum(float((each - energy).abs()) for each in energies)
    except Exception:  # a law that needs other lengths says so
        return {}
    unit = UNITS * torch.finfo(subject.dtype).eps * bonds
    volume = 1.0 if graph.cells is None else float(torch.linalg.det(graph.cells).abs().min())
    scales = {subject.forces: 1.0 / max(spacing(graph), 1e-3), subject.stress: 1.0 / volume}
    slopes = OF_SLOPES * torch.finfo(torch.float64).eps * float(energy.abs()) / LONGEST
    return {SLOPE: slopes, **{name: unit * scale for name, scale in scales.items() if name is not None}}


def spacing(graph: AtomGraph) -> float:
    """The length of the shortest edge, or the distance of the nearest points; one where there is neither."""
    if graph.ends is not None and graph.ends.shape[1]:
        return float(graph.vectors.norm(dim=-1).min())
    return float(torch.pdist(graph.points).min()) if len(graph.points) > 1 else 1.0
