"""Lines of docs/foundation_models.md for MACE, with files of small models, against stock."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from ase import units
from ase.calculators.lj import LennardJones
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from mace.calculators import MACECalculator

import tpgen
from tests.clients.checks import carbon
from tests.clients.pages import (
    FOUNDATIONS,
    calculators,
    check_calculator,
    check_comparison_by_hand,
    check_proof,
    results,
    snippets,
)
from tests.clients.test_mace import assert_same_weights, mark_names, trained_by_both, write_training_set

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

SINGLE = 1e-5  # relative, in float32
TRAINING = [
    "--batch_size=4", "--max_num_epochs=1", "--device=cpu", "--default_dtype=float64", "--energy_key=REF_energy",
    "--forces_key=REF_forces", "--lr=0.001",
]  # fmt: skip
TUNED = {
    "alone": [],
    "with LoRA": ["--lora=True"],
    "with heads": ["--multiheads_finetuning=True", "--pt_train_file=replay.xyz", "--E0s={6:0.0}"],
}


class Dispersion(LennardJones):
    """In the place of torch-dftd's calculator: it holds a network, too."""

    def __init__(self, **_: Any) -> None:
        super().__init__(sigma=1.4, epsilon=0.01, rc=3.0)
        self.dftd_module = torch.nn.Linear(2, 2)


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the page names, and what stands for torch-dftd."""
    monkeypatch.chdir(tmp_path)
    model = mace(8, torch.float64, "8x0e+8x1o").model
    torch.save(model, "my.model")
    with torch.no_grad():
        for p in model.parameters():
            p *= 1.1
    torch.save(model, "other.model")
    scales = {"atomic_inter_scale": [1.0, 1.1], "atomic_inter_shift": [0.0, 0.1]}
    energies = np.array([[0.0, 1, 2, 3], [1, 2, 3, 4]])
    torch.save(
        mace(8, torch.float64, "8x0e", heads=["default", "omat"], atomic_energies=energies, **scales).model,
        "heads.model",
    )
    torch.set_default_dtype(torch.float32)  # as a user has it: heads are masked in it
    module: Any = ModuleType("torch_dftd.torch_dftd3_calculator")
    module.TorchDFTD3Calculator = Dispersion
    monkeypatch.setitem(sys.modules, "torch_dftd", ModuleType("torch_dftd"))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("made", calculators("MACE"))
def test_each_calculator_is_converted_and_equal(made: str) -> None:
    single = made.startswith("mace_mp")  # whose default is float32
    for line, limit in ((made, SINGLE if single else 1e-12), (made.replace(")", ', default_dtype="float64")'), 1e-12)):
        calculator = check_calculator("MACE", line, carbon(), limit)
        check_comparison_by_hand("MACE", line, calculator, carbon(), limit)


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("made", calculators("MACE"))
def test_each_calculator_is_proven_with_atoms(made: str) -> None:
    names: dict[str, Any] = {}
    exec(snippets(FOUNDATIONS, "MACE")[0].partition("\ncalculator = ")[0], names)
    calculator = check_proof(eval(made, names), carbon())
    assert not any(model._forward_pre_hooks for model in getattr(calculator, "models", ()))


@pytest.mark.usefixtures("_files")
def test_a_sum_is_restored_and_heads_differ() -> None:
    (made,) = (made for made in calculators("MACE") if "dispersion" in made)
    calculator = check_calculator("MACE", made, carbon(), SINGLE)
    mace_alone, dispersion = calculator.mixer.calcs
    assert mark_names(mace_alone.models[0])
    tpgen.restore(calculator)
    assert not mark_names(mace_alone.models[0])
    assert type(dispersion.dftd_module) is torch.nn.Linear
    energies = [
        results(MACECalculator(model_paths="heads.model", device="cpu", head=h), carbon())["energy"]
        for h in ("default", "omat")
    ]
    assert abs(energies[0] - energies[1]) > 1


@pytest.mark.usefixtures("_files")
def test_optimisers_and_dynamics_go_as_with_stock() -> None:
    found = []
    for change in (lambda calculator: calculator, tpgen.convert):
        atoms = carbon()
        atoms.calc = change(MACECalculator(model_paths="my.model", device="cpu"))
        BFGS(atoms, logfile=None).run(fmax=1e-6, steps=3)
        VelocityVerlet(atoms, 0.5 * units.fs).run(3)
        found.append(atoms.get_positions())
    assert abs(found[1] - found[0]).max() <= 1e-10


@pytest.mark.usefixtures("_files")
def test_phonons_are_those_of_stock() -> None:
    from ase.phonons import Phonons

    found = []
    for change in (lambda calculator: calculator, tpgen.convert):
        calculator = change(MACECalculator(model_paths="my.model", device="cpu"))
        results(calculator, carbon())
        tpgen.ready(calculator)
        phonons = Phonons(carbon(), calculator, supercell=(1, 1, 1), delta=0.01, name=change.__name__)
        phonons.run()
        phonons.read()
        found.append(phonons.get_force_constant())
    assert abs(found[1] - found[0]).max() <= 1e-9 * abs(found[0]).max()


@pytest.mark.usefixtures("_files")
def test_compile_mode_builds_a_stock_model_anew() -> None:
    model = tpgen.convert(torch.load("my.model", weights_only=False))
    calculator = MACECalculator(models=[model], device="cpu", default_dtype="float64", compile_mode="default")
    assert mark_names(model)
    assert not mark_names(calculator.models[0])


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("kind", TUNED)
def test_fine_tuning_gives_the_losses_of_stock(kind: str) -> None:
    (line,) = snippets(FOUNDATIONS, "MACE", "sh")
    program, command, *arguments = shlex.split(line)
    assert (program, command) == ("tpgen", "mace-run-train")
    write_training_set(Path("train.xyz"))
    write_training_set(Path("replay.xyz"))
    output, losses = trained_by_both(Path(), [*arguments, *TRAINING, *TUNED[kind]])
    assert "modules compute with tpgen" in output
    assert len(losses[0]) > 2
    assert_same_weights(Path(), "tuned.model", 1e-7)
