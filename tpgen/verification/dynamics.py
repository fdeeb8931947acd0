"""The laws of potentials: forces are the slope of the energy, and a trajectory keeps its energy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tpgen.verification.derivatives import draws
from tpgen.verification.findings import Outcome, Pair
from tpgen.verification.laws import Outcomes
from tpgen.verification.reading import Reading
from tpgen.verification.subject import Named, Subject

_DIRECTIONS = 4
APPROACH = 1 / 3  # of the shortest edge: how near an atom is brought to another
SHORTEST, LONGEST, NOISE = 1e-4, 1e-2, 1e-8  # of a step, and what rounding may make of the slope
SHORTER = 3.0  # how many times another step is shorter
_WEIGHTS = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}  # of central differences of sixth order
ASIDE = 5e-2  # of a trajectory's beginning, where forces vanish
DRIFT = 1e-3  # of the energy that a trajectory exchanges: what it may gain or lose
FINER = 4  # how many times shorter the steps are that tell whether a drift comes of them
COLLAPSE, FEW = 10.0, 4  # times the first largest force, and steps that are enough to compare
FALLING = f"forces grow to more than {COLLAPSE:.0f} times those of the first step, as where points fall into each other"
STEPS, REACH = 24, 1e-3  # of a trajectory: steps, and how far the largest force moves a point in the first


def forces(subject: Subject) -> Outcomes:
    """The forces along a direction, and how much the energy falls along it: as given, and with two atoms close."""
    exact = subject.in_float64()
    found = {"": _slopes(exact)}
    if (pair := nearest(exact)) is not None:
        atom, edge = pair
        found["two atoms close"] = _slopes(replace(exact, given=with_point(exact, atom, (APPROACH - 1.0) * edge)))
    return found


def _slopes(subject: Subject) -> Pair:
    name = subject.points or ""
    points = subject.given[name]
    own = subject(subject.given)[subject.forces or ""]
    got, expected = [], []
    for seed in range(_DIRECTIONS):
        along = draws({name: points}, seed=300 + seed)[name]
        got.append((own * along).sum().detach())
        expected.append(-slope(partial(_along, subject, along), got[-1], -got[-1]))
    return torch.stack(got), torch.stack(expected)


def nearest(subject: Subject) -> tuple[int, Tensor] | None:
    """An atom, and the shortest edge to it from another, in space."""
    if not isinstance(subject.reading, Reading) or len(subject.reading.graph.points) < 2:
        return None
    graph = subject.reading.graph
    if graph.ends is None:
        first, second = torch.triu_indices(len(graph.points), len(graph.points), 1)
        edges = graph.points[second] - graph.points[first]
    else:
        other = graph.ends[0] != graph.ends[1]
        second, edges = graph.ends[1][other], graph.vectors[other]
    if not len(edges):
        return None
    shortest = int(edges.norm(dim=-1).argmin())
    return int(second[shortest]), edges[shortest]


def with_point(subject: Subject, atom: int, step: Tensor) -> Named:
    """The operands with one atom moved."""
    points = subject.given[subject.points or ""].clone()
    points[atom] += step
    return {**subject.given, subject.points or "": points}


def _along(subject: Subject, along: Tensor, step: float) -> Tensor:
    name = subject.points or ""
    return _total_energy(subject, subject({**subject.given, name: subject.given[name] + step * along}))


def slope(f: Callable[[float], Tensor], about: Tensor, claimed: Tensor | None = None) -> Tensor:
    """The derivative of a function of one number at 0, which is ``about`` so large.

    A step is as short as rounding of the function's values lets it be: where it goes over a cutoff, at which higher
    derivatives jump, a longer one sees more of that.  Where it is not the derivative that is claimed, shorter steps are
    tried, and the nearest to the claim is taken: of a large energy the first step is long, and rounding of the others
    is less than `rounding.floors` allows.

    >>> found = slope(lambda t: torch.tensor(2.0 + t, dtype=torch.float64).exp(), torch.tensor(7.0))
    >>> round(found.item(), 6) == round(torch.tensor(2.0, dtype=torch.float64).exp().item(), 6)
    True
    """
    rounding = torch.finfo(torch.float64).eps * float(f(0.0).abs())
    step = min(max(rounding / (NOISE * max(float(about.abs()), 1e-12)), SHORTEST), LONGEST)
    found = _difference(f, step)
    while claimed is not None and float((found - claimed).abs()) > NOISE * float(about.abs()) and step > SHORTEST:
        step = max(step / SHORTER, SHORTEST)
        found = min(found, _difference(f, step), key=lambda x: float((x - claimed).abs()))
    return found


def _difference(f: Callable[[float], Tensor], step: float) -> Tensor:
    return torch.stack([w * (f(n * step) - f(-n * step)) for n, w in _WEIGHTS.items()]).sum() / step


def _total_energy(subject: Subject, found: Named) -> Tensor:
    """The energy among a call's results, summed and detached."""
    return found[subject.energy or ""].sum().detach()


def conservation(subject: Subject) -> Outcomes:
    """Kinetic energy gains what potential energy loses, in the limit of short steps.

    Points of mass one, moved by the velocity Verlet rule, whose error is even in the step: two trajectories, one of
    half the step, give the limit.  A drift that comes of the step is less in that of shorter ones; and where points
    fall into each other, for which no step is short enough, what is compared ends before.
    """
    exact = subject.in_float64()
    gained, lost, pushed = _limit(exact, 1)
    if bool((gained - lost).abs().max() <= DRIFT * lost.abs().max()):
        return {"": (gained, lost)}
    gained, lost, pushed = _limit(exact, FINER)
    calm = int(((pushed > COLLAPSE * pushed[0]).cumsum(0) == 0).sum())
    found: dict[str, Outcome] = {"": (gained[:calm], lost[:calm])} if calm >= FEW else {}
    return found | ({"later": FALLING} if calm < STEPS else {})


def _limit(subject: Subject, finer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gains and losses of a trajectory in the limit of short steps, and the larger of its forces."""
    (gain, loss, push), (gained, lost, pushed) = _moved(subject, 2 * finer), _moved(subject, finer)
    return (4 * gain - gained) / 3, (4 * loss - lost) / 3, torch.maximum(push, pushed)


def _moved(subject: Subject, finer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gains of a trajectory in kinetic energy, losses in potential energy, and largest forces, at `STEPS` times."""
    x = subject.given[subject.points or ""].clone()
    energy, force = _at(subject, x)
    if float(force.abs().max()) <= subject.floors.get(subject.forces or "", 0.0):  # there is no way down from here
        x = x + ASIDE * draws({"x": x}, seed=401)["x"]
        energy, force = _at(subject, x)
    pace = (REACH / force.abs().max().clamp(min=1e-12)).sqrt()  # in which the largest force moves a point that far
    v = REACH / pace * draws({"v": x}, seed=400)["v"]
    kinetic, potential, step = v.square().sum() / 2, energy, pace / finer
    gained, lost, pushed = [], [], []
    for number in range(STEPS * finer):
        v = v + 0.5 * step * force
        x = x + step * v
        energy, force = _at(subject, x)
        v = v + 0.5 * step * force
        if (number + 1) % finer == 0:
            gained.append(v.square().sum() / 2 - kinetic)
            lost.append(potential - energy)
            pushed.append(force.abs().max())
    return torch.stack(gained), torch.stack(lost), torch.stack(pushed)


def _at(subject: Subject, x: Tensor) -> tuple[Tensor, Tensor]:
    return at_points(subject, {**subject.given, subject.points or "": x})


def at_points(subject: Subject, given: Named) -> tuple[Tensor, Tensor]:
    """Energy and forces of the potential for these operands; forces by autograd where it returns none."""
    name = subject.points or ""
    if subject.forces is not None:
        found = subject(given)
        return _total_energy(subject, found), found[subject.forces].detach()
    x = given[name].detach().requires_grad_()
    energy = subject({**given, name: x})[subject.energy or ""].sum()
    (slope,) = torch.autograd.grad(energy, x)
    return energy.detach(), -slope
