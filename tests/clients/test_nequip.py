"""NequIP itself: its model, the modifier that it finds by itself, both of its compilers, its calculator, dynamics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tpgen
from benchmarks.networks import Case, nequip
from tests.clients.checks import assert_same, check_everything, check_float32, compare_dynamics, results
from tests.clients.nequip_checks import calculator_of, check_compiled_training, check_packaged
from tpgen.conversion import species
from tpgen.nn import matmul, silu


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_model_is_converted_and_equal() -> None:
    check_everything(nequip(27, torch.float64, features=4))


def test_float32_is_within_its_rounding() -> None:
    torch.set_default_dtype(torch.float32)
    check_float32(nequip(27, torch.float32, features=8))


def test_the_modifier_is_found_by_name() -> None:
    from nequip.model.modify_utils import get_all_modifiers, modify

    case = nequip(27, torch.float64, features=4)
    wanted = results(case, case.model)
    assert "enable_tpgen" in get_all_modifiers(case.model)
    model = modify(case.model, [{"modifier": "enable_tpgen"}])
    assert "TpgenTensorProductScatter" in {type(m).__name__ for m in model.modules()}
    assert_same(results(case, model), wanted)


def small() -> Case:
    """What compiles in some ten seconds."""
    return nequip(27, torch.float64, features=2, l_max=1, layers=2)


def test_training_compiles_a_converted_model() -> None:
    check_compiled_training(small)


def test_nequip_compile_packages_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_packaged(small(), "product", tmp_path, monkeypatch)


def test_energies_are_conserved() -> None:
    compare_dynamics(calculator_of, small().model)


def test_a_converted_model_scripts() -> None:
    from e3nn.util import jit

    case = nequip(27, torch.float64, features=4)
    wanted = case.run(case.model, False)
    torch.testing.assert_close(case.run(jit.script(tpgen.convert(case.model).model), False), wanted)


def test_few_atoms_and_many_have_the_same_self_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(species, "WORTH", 0)
    monkeypatch.setattr(matmul, "WORTH", 0)
    monkeypatch.setattr(silu, "WORTH", 0)
    check_everything(nequip(27, torch.float64, features=4))


def test_a_model_built_in_float32_is_measured_and_proven() -> None:
    torch.set_default_dtype(torch.float32)
    case, reports = nequip(27, torch.float32, features=2, l_max=1, layers=2), []
    inputs = (dict(case.batch),)
    tpgen.convert(case.model.train(), measure=inputs, prove=inputs, report=reports.append)
    assert reports[0].proof.holds
    assert [t.task for t in reports[0].times.tasks] == ["call", "call and gradients"]
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}
