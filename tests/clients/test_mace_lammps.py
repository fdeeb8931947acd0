"""MACE in LAMMPS: ranks and ghosts, as its Python interface has them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.clients.projects import BLOCKS
from tests.clients.ranks import assert_ranks_agree
from tests.clients.test_mace import tpgen
from tpgen.networks.conversion.operations.splines import has_splined_nets

from benchmarks.networks import lattice, mace  # isort: skip  (after tpgen)


@pytest.mark.parametrize(
    ("block", "radial", "limit"), [*((b, "net", 1e-10) for b in BLOCKS), (BLOCKS[0], "spline", 1e-5)]
)
def test_ranks_compute_what_one_of_stock_does(
    tmp_path: Path, block: str, radial: str, limit: float, rows: list[int]
) -> None:
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    structure, model = lattice(48, torch.float64), mace(48, torch.float64, "8x0e+8x1o", block).model
    torch.save(model, tmp_path / "my.model")
    tpgen("mace-convert", "--lammps", "--radial", radial, tmp_path / "my.model", tmp_path / "fast.pt")
    model.lammps_mliap = True
    stock = LAMMPS_MLIAP_MACE(model)
    fast = partial(torch.load, tmp_path / "fast.pt", weights_only=False)
    assert_ranks_agree(structure, structure.species, partial(deepcopy, stock), fast, limit, rows)
    assert bool(rows) == (block in BLOCKS[:4])  # nets of the others get more than lengths
    assert has_splined_nets(fast().model) == (radial == "spline")
    made, all_rows = fast(), torch.ones(3, 2)
    made.build_model_once(SimpleNamespace(elems=[0]))
    assert all(part.truncate_ghosts(all_rows, 3) is all_rows for part in made.model.model.interactions)
