"""Recipes of docs/engines.md, run as they stand there, against stock."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch_sim as ts
from ase import units
from ase.md.verlet import VelocityVerlet
from torch_sim.models.mace import MaceModel

from tests.clients.pages import section, snippets
from tpgen.networks.conversion.convert import conversion_report

from benchmarks.networks import mace  # isort: skip  (after tpgen)
from tests.clients.torchsim_checks import NETWORKS, check_batches, check_relaxed  # isort: skip
from benchmarks.engines import HIDDEN, ROWS, crystal, measure  # isort: skip

PAGE = "docs/engines.md"


def recipe(title: str, **given: Any) -> dict[str, Any]:
    """What the program under a title defines, where some names are given."""
    (program,) = snippets(PAGE, title)
    exec(program, given)
    return given


def stock() -> Any:
    return mace(27, torch.float32, "8x0e+8x1o").model.float()


def test_dynamics_in_ase_follow_those_of_stock() -> None:
    from mace.calculators import MACECalculator

    torch.set_default_dtype(torch.float32)
    model = stock()
    whole = MACECalculator(models=[deepcopy(model)], device="cpu", default_dtype="float32")
    found = []
    for calculator in (whole, recipe("ASE", model=model)["calculator"]):
        atoms = crystal(27)
        atoms.calc = calculator
        VelocityVerlet(atoms, 0.5 * units.fs).run(10)
        found.append((atoms.get_positions(), atoms.get_forces(), atoms.get_stress()))
    assert conversion_report(calculator).replaced
    for wanted, x in zip(*found, strict=True):
        np.testing.assert_allclose(x, wanted, atol=1e-4 * abs(wanted).max(), rtol=0)


def test_batches_in_torchsim_follow_those_of_stock() -> None:
    torch.set_default_dtype(torch.float32)
    systems = [crystal(n, seed) for n, seed in ((27, 0), (36, 1), (27, 2))]
    given = recipe("TorchSim", mace=stock(), atoms=systems)
    whole = MaceModel(stock(), device=torch.device("cpu"), dtype=torch.float32)
    assert conversion_report(given["model"].model).replaced
    state = ts.initialize_state(systems, torch.device("cpu"), torch.float32)
    wanted, found = whole(state), given["model"](state)
    for name in ("energy", "forces", "stress"):
        assert (found[name] - wanted[name]).abs().max() <= 2e-5 * wanted[name].abs().max()
    assert given["final"].positions.isfinite().all()
    assert (given["final"].positions - state.positions).abs().max() > 1e-3


@pytest.mark.parametrize("kind", NETWORKS)
def test_batches_and_autobatchers_of_torchsim(kind: str) -> None:
    torch.set_default_dtype(torch.float32)

    def wrap(network: Any) -> MaceModel:
        return MaceModel(network, device=torch.device("cpu"), dtype=torch.float32)

    check_batches(wrap, stock(), kind)
    check_relaxed(wrap, stock(), kind)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_page_is_measured(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    row = replace(ROWS[name], atoms=min(ROWS[name].atoms, 27), systems=min(ROWS[name].systems, 2))
    found = measure(row, "8x0e+8x1o", seconds=0.0)
    assert 0 < found.forces < 2e-5
    assert found.row.startswith(f"| {row.engine} | MACE 8x0e+8x1o | {row.said} | ")


def test_rows_of_the_page_can_be_measured() -> None:
    measured = {(row.engine, f"MACE {HIDDEN}", row.said) for row in ROWS.values()}
    shown = re.findall(r"^\| (ASE|TorchSim) \| (MACE \S+) \| (.*?) \|", section(PAGE), re.MULTILINE)
    assert len(shown) >= 3
    assert set(shown) <= measured
