"""What stock says with NaN or infinity, a converted network says so too, and all other numbers are stock's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from benchmarks.networks import Case
from tests.nonfinite import compare
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step

# coordinates of one atom, whose edges stay those of the list that was made before it flew away
PLACES = (1e3, 1e6, 1e8, 1e10, 1e15, 1e20, 1e30, 1e38, 1e100, 1e160, 1e200, 1e300, math.inf, -math.inf, math.nan)
LIMITS = {torch.float32: 2e-4, torch.float64: 1e-10}
_ATOM = 3
Networks = Callable[[Case], nn.Module]
Renew = Callable[[dict[str, Tensor]], None]


def converted(case: Case) -> nn.Module:
    return convert(deepcopy(case.model))


def spline(case: Case) -> nn.Module:
    return convert(deepcopy(case.model), radial="spline").eval()


def step(outputs: list[str]) -> Networks:
    return lambda case: compile_step(converted(case).eval(), outputs=outputs)


def check_places(
    case: Case, places: str, network: Networks = converted, limit: float | None = None, renew: Renew = lambda _: None
) -> None:
    """One atom anywhere: energy, forces and stress are stock's, NaN where these are.

    ``places`` names the positions; ``renew`` computes what of a batch is made of them.
    """
    positions = case.batch[places]
    largest, other = torch.finfo(positions.dtype).max, network(case)
    limit = limit or LIMITS[positions.dtype]
    lines = []
    for x in PLACES:
        if abs(x) <= largest or not math.isfinite(x):
            moved = positions.clone()
            moved[_ATOM, 0] = x
            lines += [f"{x}: {line}" for line in _differing(case, other, limit, renew, {places: moved})]
    assert not lines


def check_cell(case: Case, cell: str, renew: Renew = lambda _: None) -> None:
    """A cell that holds NaN or infinity."""
    other, lines = converted(case), []
    for x in (math.nan, math.inf):
        changed = case.batch[cell].clone()
        changed.view(-1)[0] = x
        limit = LIMITS[changed.dtype]
        lines += [f"{x}: {line}" for line in _differing(case, other, limit, renew, {cell: changed})]
    assert not lines


def check_weights(case: Case) -> None:
    """NaN or infinity in the first number of each parameter."""
    other, lines = converted(case), []
    ours = dict(other.named_parameters())
    for name, p in case.model.named_parameters():
        for x in (math.nan, math.inf):
            with _written(x, p, ours[name]):
                lines += [f"{x} in {name}: {line}" for line in _differing(case, other, LIMITS[p.dtype])]
    assert not lines


@contextmanager
def _written(number: float, *parameters: Tensor) -> Iterator[None]:
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.data.view(-1)[0] = number
    try:
        yield
    finally:
        for p, own in zip(parameters, before, strict=True):
            p.data.copy_(own)


def _differing(
    case: Case, other: nn.Module, limit: float, renew: Renew = lambda _: None, given: Mapping[str, Tensor] = {}
) -> list[str]:
    """A line for each result of a network that is not as stock's, with these in the batch."""
    before = dict(case.batch)
    try:
        case.batch.update(given)
        renew(case.batch)
        found, wanted = ({n: x.detach() for n, x in case.run(m, False).items()} for m in (other, case.model))
    finally:
        case.batch.update(before)
    return compare(found, wanted, limit)
