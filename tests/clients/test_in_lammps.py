"""Converted models in LAMMPS itself, on one rank and two, against stock: of the project of this environment."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.lammps import WRITERS, run, write
from benchmarks.networks import lattice

PROJECT = next(name for name in WRITERS if find_spec(name))
SMALL = {"mace": {"hidden": "8x0e+8x1o"}, "nequip": {"features": 8, "l_max": 1}, "sevenn": {"hidden": "8x0e+4x1e+4x2e"}}
DTYPE, LIMIT = (torch.float32, 2e-5) if PROJECT == "sevenn" else (torch.float64, 1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_forces_and_dynamics_are_those_of_stock(tmp_path: Path, ranks: int) -> None:
    write(tmp_path, PROJECT, lattice(64, torch.float64), DTYPE, **SMALL[PROJECT])
    wanted, found = run(tmp_path, "stock.pt", 1, 2), run(tmp_path, "fast.pt", ranks, 2)
    assert wanted.forces.abs().max() > 0.01
    assert abs(found.energy - wanted.energy) <= LIMIT * abs(wanted.energy)
    assert (found.forces - wanted.forces).abs().max() <= LIMIT * wanted.forces.abs().max()
