"""SevenNet with an atom that flew away, and with weights that are no numbers."""

from __future__ import annotations

import pytest
import sevenn._keys as keys
import torch
from torch import Tensor

from benchmarks.networks import Case, sevenn
from tests.clients.alarms import check_cell, check_places, check_weights, spline, step

OUTPUTS = ["inferred_total_energy", "inferred_force", "inferred_stress"]
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def small(dtype: torch.dtype = torch.float64) -> Case:
    return sevenn(27, dtype, "8x0e+4x1e", layers=3)


def vectors(batch: dict[str, Tensor]) -> None:
    positions, (src, dst) = batch[keys.POS], batch[keys.EDGE_IDX]
    batch[keys.EDGE_VEC] = positions[dst] - positions[src] + batch[keys.CELL_SHIFT] @ batch[keys.CELL]


@dtypes
def test_an_atom_anywhere(dtype: torch.dtype) -> None:
    check_places(small(dtype), keys.POS, renew=vectors)


def test_an_atom_anywhere_in_a_program() -> None:
    check_places(small(), keys.POS, step(OUTPUTS), renew=vectors)


def test_an_atom_anywhere_by_splines() -> None:
    check_places(small(), keys.POS, spline, 1e-5, vectors)


def test_cells() -> None:
    check_cell(small(), keys.CELL, vectors)


def test_weights() -> None:
    check_weights(small())
