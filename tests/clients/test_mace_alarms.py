"""MACE with an atom that flew away, and with weights that are no numbers."""

from __future__ import annotations

import pytest
import torch

from tests.clients.alarms import check_cell, check_places, check_weights, spline, step

from benchmarks.networks import Case, mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

OUTPUTS = ["energy", "forces", "stress"]
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def small(dtype: torch.dtype = torch.float64) -> Case:
    torch.set_default_dtype(dtype)
    return mace(27, dtype, "8x0e+8x1o")


@dtypes
def test_an_atom_anywhere(dtype: torch.dtype) -> None:
    check_places(small(dtype), "positions")


def test_an_atom_anywhere_in_a_program() -> None:
    check_places(small(), "positions", step(OUTPUTS))


def test_an_atom_anywhere_by_splines() -> None:
    check_places(small(), "positions", spline, 1e-5)


def test_cells() -> None:
    check_cell(small(), "cell")


def test_weights() -> None:
    check_weights(small())
