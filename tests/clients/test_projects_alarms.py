"""Where stock says NaN or infinity, a converted network says so too, and all other numbers are stock's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import Case
from tests.clients.projects import PROJECTS, WITH_PAIRS, Project, every_project
from tests.nonfinite import compare
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step

# coordinates of one atom, whose edges stay those of the list that was made before it flew away
PLACES = (1e3, 1e6, 1e8, 1e10, 1e15, 1e20, 1e30, 1e38, 1e100, 1e160, 1e200, 1e300, math.inf, -math.inf, math.nan)
LIMITS = {torch.float32: 2e-4, torch.float64: 1e-10}
_ATOM = 3


class Compared:
    """A case, its converted network, and a line for each result that is not as stock's."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float64, **options: str) -> None:
        torch.set_default_dtype(dtype)
        self.project: Project = PROJECTS[name]
        self.case: Case = self.project.make(27, dtype)
        self.network: nn.Module = convert(deepcopy(self.case.model), **options)
        self.limit, self.lines = LIMITS[dtype], []

    def add(self, title: str, given: Mapping[str, Tensor] = {}) -> None:
        """Compare results with these in the batch."""
        batch, before = self.case.batch, dict(self.case.batch)
        try:
            batch.update(given)
            self.project.renew(batch)
            networks = self.network, self.case.model
            found, wanted = ({n: x.detach() for n, x in self.case.run(m, False).items()} for m in networks)
        finally:
            batch.update(before)
        self.lines += [f"{title}: {line}" for line in compare(found, wanted, self.limit)]


def check_places(compared: Compared) -> None:
    """One atom anywhere: energy, forces and stress are stock's, NaN where these are."""
    positions = compared.case.batch[compared.project.positions]
    largest = torch.finfo(positions.dtype).max
    for x in PLACES:
        if abs(x) <= largest or not math.isfinite(x):
            moved = positions.clone()
            moved[_ATOM, 0] = x
            compared.add(f"{x}", {compared.project.positions: moved})
    assert not compared.lines


@every_project
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_an_atom_anywhere(project: str, dtype: torch.dtype) -> None:
    check_places(Compared(project, dtype))


@every_project
def test_an_atom_anywhere_in_a_program(project: str) -> None:
    compared = Compared(project)
    compared.network = compile_step(compared.network.eval(), outputs=[*compared.project.outputs])
    check_places(compared)


@pytest.mark.parametrize("project", WITH_PAIRS)
def test_an_atom_anywhere_by_splines(project: str) -> None:
    compared = Compared(project, radial="spline")
    compared.network.eval()
    compared.limit = 1e-5
    check_places(compared)


@every_project
def test_a_cell_that_holds_nan_or_infinity(project: str) -> None:
    compared = Compared(project)
    name = compared.project.cell
    for x in (math.nan, math.inf):
        changed = compared.case.batch[name].clone()
        changed.view(-1)[0] = x
        compared.add(f"{x}", {name: changed})
    assert not compared.lines


@every_project
def test_nan_or_infinity_in_the_first_number_of_each_parameter(project: str) -> None:
    compared = Compared(project)
    ours = dict(compared.network.named_parameters())
    for name, p in compared.case.model.named_parameters():
        for x in (math.nan, math.inf):
            with _written(x, p, ours[name]):
                compared.add(f"{x} in {name}")
    assert not compared.lines


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
