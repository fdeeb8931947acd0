"""The first program of README.md, as it stands there: a calculator of MACE's, converted in its place."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from ase.build import molecule
from mace.calculators import MACECalculator

import tpgen
from tests.clients.pages import snippets

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

CALLED = """
from ase.build import molecule
water, stock = molecule("H2O"), MACECalculator(model_paths="my.model", device="cpu")
import numpy as np
found = [(calculator.calculate(water), calculator.results["forces"])[1] for calculator in (stock, calculator)]
print("forces differ by", np.abs(found[1] - found[0]).max() / np.abs(found[0]).max())
"""


def test_a_calculator_is_converted_in_its_place(tmp_path: Path) -> None:
    (program,) = snippets("README.md")
    torch.save(mace(8, torch.float64, "8x0e+8x1o").model, tmp_path / "my.model")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program + CALLED], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "0 modules compute" not in done.stdout
    assert "tpgen kernel" in done.stdout
    assert float(done.stdout.rpartition("forces differ by")[2]) < 1e-12


def test_all_models_of_a_committee_are_converted() -> None:
    one = mace(8, torch.float64, "8x0e+8x1o").model
    other = deepcopy(one)
    with torch.no_grad():
        for x in other.parameters():
            x *= 1.1
    found = []
    for change in (lambda calculator: calculator, tpgen.convert):
        calculator = change(MACECalculator(models=deepcopy([one, other]), device="cpu", default_dtype="float64"))
        calculator.calculate(molecule("H2O"))
        found.append(calculator.results)
    assert all(tpgen.conversion_report(model).replaced for model in calculator.models)
    wanted, results = found
    assert wanted["energy_var"] > 0
    for name in ("energy", "energies", "forces", "forces_comm"):
        assert np.abs(results[name] - wanted[name]).max() <= 1e-10 * np.abs(wanted[name]).max(), name
