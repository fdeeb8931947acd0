"""The laws of strain: stress is the slope of the energy by it, and energy and forces have no step where edges grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tpgen.verification.dynamics import APPROACH, at_points, nearest, slope, with_point
from tpgen.verification.findings import Pair
from tpgen.verification.laws import Outcomes, named
from tpgen.verification.reading import Reading
from tpgen.verification.subject import FRAMES, Named, Subject

SPACE = ("points", "cell", "vectors")
STRAINED = (FRAMES["cartesian_points"], FRAMES["cartesian_vectors"])
STRETCH, GRID, HALVINGS, PLACES = 2.0, 96, 24, 2  # how far the smooth law stretches, and how closely it looks where


def strained(subject: Subject, strain: Tensor) -> Named:
    """The operands in a space that is strained: points, cells, and images of edges; a field is none of them."""
    by = torch.eye(3, dtype=torch.float64) + strain
    roles = subject.reading.roles if isinstance(subject.reading, Reading) else {}
    bent = [n for n, how in subject.turns.items() if how in STRAINED and (how.moves or roles.get(n) in SPACE)]
    return {name: x @ by.T if name in bent else x for name, x in subject.given.items()}


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
    return {"": (got, _by_strain(exact, got)), "symmetric": (each, each.transpose(-1, -2))}


def _by_strain(subject: Subject, claimed: Tensor) -> Tensor:
    """The derivative of the energy by symmetric strain, beside what it is claimed to be."""
    found = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(i + 1):
            along = torch.zeros(3, 3, dtype=torch.float64)
            along[i, j] += 0.5
            along[j, i] += 0.5
            found[i, j] = found[j, i] = slope(
                partial(strained_energy, subject, along), claimed.abs().max(), claimed[i, j]
            )
    return found


def strained_energy(subject: Subject, along: Tensor, strain: float) -> Tensor:
    """The energy of all graphs in a space that is strained so much along a tensor."""
    return subject(strained(subject, strain * along))[subject.energy or ""].sum().detach()


def smooth(subject: Subject) -> Outcomes:
    """Look for jumps of energy and forces while all lengths are doubled, and while one atom leaves another.

    Each interval of a grid in which a curve bends most is halved again and again, towards its larger difference: what
    is left of it is the jump, and goes to zero where the function has none.
    """
    exact = subject.in_float64()
    found = _along_a_way(exact, partial(_stretched, exact), torch.linspace(1.0, STRETCH, GRID, dtype=torch.float64))
    pair = nearest(exact)
    if pair is None:
        return found
    way = torch.linspace(0.0, 1.0, GRID // 2, dtype=torch.float64)
    return found | named("one atom", _along_a_way(exact, partial(_away, exact, *pair), way))


def _along_a_way(subject: Subject, way: Callable[[float], Named], places: Tensor) -> dict[str, Pair]:
    """The steps of energy and forces on a way of operands."""

    def at(place: float) -> tuple[Tensor, ...]:
        return tuple(x.flatten() for x in at_points(subject, way(place)))

    grid = places.tolist()
    there = [at(place) for place in grid]
    found: dict[str, Pair] = {}
    for n, name in enumerate(("energy", "forces")):
        values = torch.stack([x[n] for x in there])
        found[name] = _steps(lambda place, n=n: at(place)[n], grid, values)  # type: ignore[misc]
    return found


def _stretched(subject: Subject, by: float) -> Named:
    """The operands with all lengths so much larger."""
    return strained(subject, (by - 1.0) * torch.eye(3, dtype=torch.float64))


def _away(subject: Subject, atom: int, edge: Tensor, place: float) -> Named:
    """The operands with one atom on a straight way, from close to its neighbour to another place."""
    aside = edge.norm() * torch.tensor([0.48, 0.64, 0.6], dtype=torch.float64)
    return with_point(subject, atom, (1 - place) * (APPROACH - 1.0) * edge + place * aside)


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
