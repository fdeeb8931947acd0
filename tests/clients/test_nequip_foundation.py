"""Lines of docs/foundation_models.md for NequIP and Allegro, with models that their programs train, against stock."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import numpy
import pytest
import torch
from ase.build import bulk
from nequip.integrations.ase import NequIPCalculator

from tests.clients.nequip_programs import packaged, trained
from tests.clients.pages import (
    FOUNDATIONS,
    calculators,
    check_calculator,
    check_comparison_by_hand,
    check_proof,
    section,
    snippets,
)


@pytest.mark.parametrize("made", calculators("NequIP and Allegro"))
@pytest.mark.parametrize("model", ["nequip", "allegro"])
def test_each_calculator_is_converted_and_equal(
    made: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(trained(model), tmp_path / "best.ckpt")
    copy(packaged(model), tmp_path / "my.nequip.zip")
    monkeypatch.chdir(tmp_path)
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, rng=numpy.random.RandomState(0))
    calculator = check_calculator("NequIP and Allegro", made, atoms, 1e-12)
    assert isinstance(calculator, NequIPCalculator)
    assert any(isinstance(transform, torch.nn.Module) for transform in calculator.transforms), "which stay"
    check_comparison_by_hand("NequIP and Allegro", made, calculator, atoms, 1e-12)


@pytest.mark.parametrize("model", ["nequip", "allegro"])
def test_a_calculator_is_proven_with_atoms(model: str) -> None:
    made = NequIPCalculator._from_saved_model(str(trained(model)), chemical_species_to_atom_type_map=True)
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, rng=numpy.random.RandomState(0))
    check_proof(made, atoms)


def test_the_readme_has_the_line_of_the_page() -> None:
    (program,) = snippets(FOUNDATIONS, "NequIP and Allegro")
    (row,) = [line for line in section("README.md").splitlines() if line.startswith("| [NequIP")]
    assert f"`{program.splitlines()[-1]}`" in row
