"""Converted and deployed models in LAMMPS itself, against stock: those of the projects of this environment."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.lammps import WAYS, has_packages, run, write
from benchmarks.networks import allegro, lattice, mace, nequip, sevenn

SMALL = {
    "mace": {"hidden": "8x0e+8x1o"},
    "nequip": {"features": 8, "l_max": 1},
    "sevenn": {"hidden": "8x0e+4x1e+4x2e"},
    "allegro": {"features": 8, "scalars": 16, "l_max": 1},
}
CASES = {"mace": mace, "nequip": nequip, "sevenn": sevenn, "allegro": allegro}


def precision(project: str) -> tuple[torch.dtype, float]:
    return (torch.float32, 2e-5) if project == "sevenn" else (torch.float64, 1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("project", [name for name in ("mace", "nequip", "sevenn") if find_spec(name)])
def test_forces_and_dynamics_are_those_of_stock(tmp_path: Path, project: str, ranks: int) -> None:
    dtype, limit = precision(project)
    write(tmp_path, project, lattice(64, torch.float64), dtype, **SMALL[project])
    wanted, found = run(tmp_path, WAYS["stock"], 1, 2), run(tmp_path, WAYS["converted"], ranks, 2)
    assert wanted.forces.abs().max() > 0.01
    assert abs(found.energy - wanted.energy) <= limit * abs(wanted.energy)
    assert (found.forces - wanted.forces).abs().max() <= limit * wanted.forces.abs().max()


DEPLOYED = [
    (project, ranks)
    for project, ranks in (("mace", 1), ("nequip", 1), ("sevenn", 1), ("allegro", 1), ("allegro", 2))
    if has_packages() and find_spec(project)
]


@pytest.mark.parametrize(("project", "ranks"), DEPLOYED)
def test_forces_without_python_are_those_of_stock(tmp_path: Path, project: str, ranks: int) -> None:
    dtype, limit = precision(project)
    case = CASES[project](64, dtype, **SMALL[project])
    write(tmp_path, project, lattice(64, torch.float64), dtype, deploys=True, **SMALL[project])
    wanted = case.run(case.model, False)
    found = run(tmp_path, WAYS["deployed allegro" if project == "allegro" else "deployed"], ranks, 2)
    assert abs(found.energy - wanted["energy"].item()) <= limit * abs(found.energy)
    assert (found.forces - wanted["forces"]).abs().max() <= limit * wanted["forces"].abs().max()
