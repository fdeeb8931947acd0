"""NequIP and Allegro with an atom that flew away, and with weights that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from nequip.data import AtomicDataDict as keys

from benchmarks.networks import Case, allegro, nequip
from tests.clients.alarms import check_cell, check_places, check_weights, spline, step

OUTPUTS = [keys.TOTAL_ENERGY_KEY, keys.FORCE_KEY, keys.STRESS_KEY]
KINDS: dict[str, Callable[..., Case]] = {"nequip": partial(nequip, features=4, l_max=1, layers=2)}
if find_spec("allegro"):
    KINDS["allegro"] = partial(allegro, features=4, scalars=8, l_max=1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
kinds = pytest.mark.parametrize("kind", KINDS)


def small(kind: str, dtype: torch.dtype = torch.float64) -> Case:
    torch.set_default_dtype(dtype)
    return KINDS[kind](27, dtype)


@kinds
@dtypes
def test_an_atom_anywhere(kind: str, dtype: torch.dtype) -> None:
    check_places(small(kind, dtype), keys.POSITIONS_KEY)


@kinds
def test_an_atom_anywhere_in_a_program(kind: str) -> None:
    check_places(small(kind), keys.POSITIONS_KEY, step(OUTPUTS))


def test_an_atom_anywhere_by_splines() -> None:
    check_places(small("nequip"), keys.POSITIONS_KEY, spline, 1e-5)


@kinds
def test_cells(kind: str) -> None:
    check_cell(small(kind), keys.CELL_KEY)


@kinds
def test_weights(kind: str) -> None:
    check_weights(small(kind))
