"""The laws of potentials: forces are the slope of the energy, and a trajectory keeps its energy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.verification.derivatives import draws
from tpgen.verification.laws import Outcomes
from tpgen.verification.subject import Named, Subject

STEP, DIRECTIONS = 5e-5, 4
STEPS, REACH = 24, 1e-3  # of a trajectory: steps, and how far the largest force moves a point in the first


def is_potential(subject: Subject) -> bool:
    return subject.points is not None and subject.energy is not None


def has_forces(subject: Subject) -> bool:
    return is_potential(subject) and subject.forces is not None


def forces(subject: Subject) -> Outcomes:
    """The forces along a direction, and how much the energy falls along it."""
    exact, name = subject.in_float64(), subject.points or ""
    points = exact.given[name]
    own = exact(exact.given)[exact.forces or ""]
    got, expected = [], []
    for seed in range(DIRECTIONS):
        along = draws({name: points}, seed=300 + seed)[name]
        at = [_energy(exact, exact({**exact.given, name: points + n * STEP * along})) for n in (-2, -1, 1, 2)]
        got.append((own * along).sum().detach())
        expected.append(-(8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * STEP))
    return {"": (torch.stack(got), torch.stack(expected))}


def _energy(subject: Subject, found: Named) -> Tensor:
    return found[subject.energy or ""].sum().detach()


@dataclass(frozen=True)
class Trajectory:
    """What a trajectory gains in kinetic energy, and what it loses in potential energy, at each of `STEPS` times."""

    gained: Tensor
    lost: Tensor


def conservation(subject: Subject) -> Outcomes:
    """What is gained in kinetic energy is lost in potential energy, in the limit of short steps.

    Points of mass one, moved by the velocity Verlet rule, whose error is even in the step: two trajectories, one of
    half the step, give the limit.
    """
    exact = subject.in_float64()
    coarse, fine = _moved(exact, 1), _moved(exact, 2)
    gained, lost = ((4 * f - c) / 3 for f, c in ((fine.gained, coarse.gained), (fine.lost, coarse.lost)))
    return {"": (gained, lost)}


def _moved(subject: Subject, finer: int) -> Trajectory:
    x = subject.given[subject.points or ""].clone()
    energy, force = _at(subject, x)
    pace = (REACH / force.abs().max().clamp(min=1e-12)).sqrt()  # in which the largest force moves a point that far
    v = REACH / pace * draws({"v": x}, seed=400)["v"]
    kinetic, potential, step = v.square().sum() / 2, energy, pace / finer
    gained, lost = [], []
    for number in range(STEPS * finer):
        v = v + 0.5 * step * force
        x = x + step * v
        energy, force = _at(subject, x)
        v = v + 0.5 * step * force
        if (number + 1) % finer == 0:
            gained.append(v.square().sum() / 2 - kinetic)
            lost.append(potential - energy)
    return Trajectory(torch.stack(gained), torch.stack(lost))


def _at(subject: Subject, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energy and forces at some points; the slope where the potential gives no forces."""
    name = subject.points or ""
    if subject.forces is not None:
        found = subject({**subject.given, name: x})
        return _energy(subject, found), found[subject.forces].detach()
    x = x.detach().requires_grad_()
    energy = subject({**subject.given, name: x})[subject.energy or ""].sum()
    (slope,) = torch.autograd.grad(energy, x)
    return energy.detach(), -slope
