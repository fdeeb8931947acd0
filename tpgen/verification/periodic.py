"""The laws of strain: stress is the slope of the energy by it, and energy and forces have no step where edges grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tpgen.verification import dynamics
from tpgen.verification.dynamics import at_points, slope
from tpgen.verification.findings import Pair
from tpgen.verification.laws import Outcomes, pairs
from tpgen.verification.subject import FRAMES, Named, Subject, another_order, short

STRAINED = (FRAMES["cartesian_points"], FRAMES["cartesian_vectors"])
STRETCH, GRID, HALVINGS, PLACES = 2.0, 96, 24, 2  # how far the smooth law stretches, and how closely it looks where


def strained(subject: Subject, strain: Tensor) -> Named:
    """The operands in a space that is strained: every point and vector."""
    by = torch.eye(3, dtype=torch.float64) + strain
    found = subject.turns
    return {name: x @ by.T if found.get(name) in STRAINED else x for name, x in subject.given.items()}


def stress(subject: Subject) -> Outcomes:
    """Stress times volume, and how much the energy grows under strain; of a virial, how much it falls."""
    exact = subject.in_float64()
    name, cell = exact.stress or "", exact.given.get(exact.cell or "")
    found = exact(exact.given)[name].detach()
    if found.shape[-2:] != (3, 3):
        return {"": f"{name} has shape {tuple(found.shape)}, where (3, 3) or one for each graph is compared"}
    if name == "stress" and (cell is None or cell.shape[-1] != 3 or cell.numel() % 9):
        return {"": "there is no cell among the inputs, whose volume the stress is for"}
    each = found.reshape(-1, 3, 3)
    if name == "stress":
        assert cell is not None
        volumes = torch.linalg.det(cell.reshape(-1, 3, 3)).abs()
        got = (each * volumes.reshape(-1, 1, 1)).sum(0)
    else:
        got = -each.sum(0)
    return {"": (got, _by_strain(exact, got.abs().max())), "symmetric": (each, each.transpose(-1, -2))}


def _by_strain(subject: Subject, about: Tensor) -> Tensor:
    """The derivative of the energy by symmetric strain."""
    found = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(i + 1):
            along = torch.zeros(3, 3, dtype=torch.float64)
            along[i, j] += 0.5
            along[j, i] += 0.5
            found[i, j] = found[j, i] = slope(partial(_energy, subject, along), about)
    return found


def _energy(subject: Subject, along: Tensor, strain: float) -> Tensor:
    return subject(strained(subject, strain * along))[subject.energy or ""].sum().detach()


SHIFTS = ("shifts", "edge_cell_shift_vectors")  # of edges, in space
UNITS = ("unit_shifts", "edge_cell_shift", "cell_shift")  # the same in cells


def has_images(subject: Subject) -> bool:
    """Whether edges have shifts, and one tensor of integers says their ends."""
    return dynamics.is_potential(subject) and subject.cell is not None and len(_edges(subject)) == 1


def images(subject: Subject) -> Outcomes:
    """A point exchanged for its image in the next cell, with the shifts of its edges: the same results.

    Which end of an edge a shift belongs to is for the network to say, so the nearer of both ways counts.
    """
    (ends,) = _edges(subject).values()
    straight = subject(subject.given)
    found = [subject(_exchanged(subject, ends, sign)) for sign in (1.0, -1.0)]
    apart = [sum(float((y - straight[n]).detach().abs().max()) for n, y in one.items() if y.numel()) for one in found]
    return pairs(found[apart.index(min(apart))], straight)


def _edges(subject: Subject) -> dict[str, Tensor]:
    rows = {subject.given[name].shape[0] for name in subject.given if short(name) in SHIFTS}
    return {n: x for n, x in subject.fixed.items() if x.dim() == 2 and x.shape[0] == 2 and x.shape[1] in rows}


def _exchanged(subject: Subject, ends: Tensor, sign: float) -> Named:
    """The operands with the first point moved by the first vector of the cell."""
    vector = subject.given[subject.cell or ""].reshape(-1, 3)[0]
    points = subject.given[subject.points or ""].clone()
    points[0] += vector
    source, target = ((end == 0).to("cpu", torch.float64).unsqueeze(-1) for end in ends)
    moved = {name: x + sign * (source - target) * vector for name, x in subject.given.items() if short(name) in SHIFTS}
    unit = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    cells = {name: x + sign * (source - target) * unit for name, x in subject.given.items() if short(name) in UNITS}
    return {**subject.given, **moved, **cells, subject.points or "": points}


def has_edges(subject: Subject) -> bool:
    """Whether one tensor of integers says the ends of edges, and nothing else can mean edges by their numbers."""
    if subject.points is None or not (ends := _ends(subject)):
        return False
    points, edges = len(subject.given[subject.points]), ends[0].shape[1]
    others = [x for x in subject.fixed.values() if x is not ends[0]]
    return len(ends) == 1 and edges not in (points, 2) and all(x.dim() < 2 and x.numel() <= points for x in others)


def edges(subject: Subject) -> Outcomes:
    """Edges in another order give results in it."""
    number = _ends(subject)[0].shape[1]
    order = another_order(number)
    fixed = {n: x[:, order.to(x.device)] if x.dim() == 2 else x for n, x in subject.fixed.items()}
    given = {n: x[order] if x.dim() and x.shape[0] == number else x for n, x in subject.given.items()}
    got = subject.called(subject.module, {**subject.own(given), **fixed})
    straight = subject(subject.given)
    return pairs(got, {n: y[order] if y.dim() and y.shape[0] == number else y for n, y in straight.items()})


def _ends(subject: Subject) -> list[Tensor]:
    return [x for x in subject.fixed.values() if x.dim() == 2 and x.shape[0] == 2 and x.shape[1] > 1]


def smooth(subject: Subject) -> Outcomes:
    """Energy and forces while all lengths grow to twice as much: the jump that is left between places ever closer.

    On a grid, the places of the sharpest bends are looked at: each is halved towards its larger difference.  That of a
    function without a step goes to zero with the interval.
    """
    exact = subject.in_float64()

    grid = torch.linspace(1.0, STRETCH, GRID, dtype=torch.float64).tolist()
    there = [_stretched(exact, place) for place in grid]
    found: dict[str, Pair | str] = {}
    for n, name in enumerate(("energy", "forces")):
        values = torch.stack([x[n] for x in there])
        found[name] = _steps(lambda by, n=n: _stretched(exact, by)[n], grid, values)  # type: ignore[misc]
    return found


def _stretched(subject: Subject, by: float) -> tuple[Tensor, ...]:
    """Energy and forces, flat, where all lengths are so much larger."""
    strain = (by - 1.0) * torch.eye(3, dtype=torch.float64)
    return tuple(x.flatten() for x in at_points(subject, strained(subject, strain)))


def _steps(f: Callable[[float], Tensor], grid: list[float], values: Tensor) -> Pair:
    """The steps that are left where a function bends most, beside how much it changes in all."""
    bends = values.diff(n=2, dim=0).abs().amax(-1)
    range_ = (values.amax(0) - values.amin(0)).max()
    left = []
    for n in bends.topk(PLACES).indices.tolist():
        for low in (n, n + 1):  # the bend is seen from both sides
            left.append(_step(f, (grid[low], grid[low + 1]), (values[low], values[low + 1])))
    return torch.stack([range_, range_ + torch.stack(left).max()]), torch.stack([range_, range_])


def _step(f: Callable[[float], Tensor], ends: tuple[float, float], at: tuple[Tensor, Tensor]) -> Tensor:
    (a, b), (low, high) = ends, at
    for _ in range(HALVINGS):
        c = 0.5 * (a + b)
        middle = f(c)
        if (middle - low).abs().max() > (high - middle).abs().max():
            b, high = c, middle
        else:
            a, low = c, middle
    return (high - low).abs().max()
