"""Trained models that SevenNet's package brings along, converted and deployed, against stock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sevenn
import torch
from ase.build import bulk
from ase.data import chemical_symbols
from click.testing import CliRunner
from sevenn import _keys as keys
from sevenn.calculator import SevenNetCalculator  # noqa: F401 (the page's lines name it)
from sevenn.util import model_from_checkpoint

from benchmarks import networks
from benchmarks.networks import Case
from tests.clients.checks import check_deployed
from tests.clients.pages import calculators, check_calculator, check_comparison_by_hand, check_proof
from tpgen.networks.conversion.convert import conversion_report, convert, find_swaps_and_kept_modules
from tpgen.networks.conversion.swap import ClassSwap
from tpgen.tools.cli.app import main

FILES = Path(sevenn.__file__).parent.glob("pretrained_potentials/*/*.pth")
SMALLEST = min(FILES, key=lambda file: (file.stat().st_size, file))


def trained(atoms: int, dtype: torch.dtype) -> Case:
    """The trained model, and a lattice of the first four of its elements."""
    torch.set_default_dtype(torch.float32)  # in which it was trained
    case = networks.sevenn(atoms, dtype, "8x0e+4x1e")
    model = model_from_checkpoint(str(SMALLEST))[0].to(dtype).eval()
    model.set_is_batch_data(False)
    if dtype == torch.float64:
        model.get_submodule("onehot_idx_to_onehot").register_forward_hook(networks._widen)
    numbers = {place: number for number, place in model.type_map.items()}
    case.batch[keys.ATOMIC_NUMBERS] = torch.tensor([numbers[n] for n in case.batch[keys.NODE_FEATURE].tolist()])
    torch.set_default_dtype(dtype)
    return replace(case, model=model)


def test_energies_forces_and_stress_are_those_of_stock() -> None:
    case = trained(64, torch.float64)
    with torch.no_grad():
        for found in find_swaps_and_kept_modules(case.model, {}):
            if isinstance(found, ClassSwap) and found.exact:
                found.exact()  # the file has couplings of float32
    wanted = case.run(case.model, False)
    found = case.run(convert(case.model), False)
    assert conversion_report(case.model).replaced
    assert not conversion_report(case.model).kept
    for name, x in wanted.items():
        assert x.abs().max() > 0.01, name
        assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name


@pytest.mark.parametrize("made", calculators("SevenNet"))
def test_each_calculator_of_the_page_is_converted_and_equal(made: str) -> None:
    torch.set_default_dtype(torch.float32)
    atoms = bulk("NaCl", "rocksalt", 5.64, cubic=True)
    atoms.rattle(0.1, seed=0)
    calculator = check_calculator("SevenNet", made, atoms, 1e-5, program=False)
    assert calculator.modal == ("PBE" if "modal" in made else None)
    check_comparison_by_hand("SevenNet", made, calculator, atoms, 1e-5)


@pytest.mark.parametrize("made", calculators("SevenNet")[:2])
def test_a_calculator_is_proven_with_atoms(made: str) -> None:
    torch.set_default_dtype(torch.float32)
    atoms = bulk("NaCl", "rocksalt", 5.64, cubic=True)
    atoms.rattle(0.1, seed=0)
    check_proof(eval(made), atoms)


@pytest.mark.slow
def test_the_file_is_deployed_by_one_line(tmp_path: Path) -> None:
    cases = {atoms: trained(atoms, torch.float32) for atoms in (27, 16)}
    done = CliRunner().invoke(main, ["deploy", "--sevenn", str(SMALLEST), "--out", f"{tmp_path}/potential"])
    assert done.exit_code == 0, done.output
    model = cases[27].model
    elements = [chemical_symbols[number] for number, _ in sorted(model.type_map.items(), key=lambda item: item[1])]
    check_deployed(tmp_path / "potential", model, cases, elements, 1e-5)
