"""nequip-train, nequip-package and nequip-compile with ``enable_tpgen``, of NequIP and Allegro, against stock."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from ase.build import bulk
from nequip.integrations.ase import NequIPCalculator
from nequip.model.saved_models.load_utils import load_saved_model
from nequip.utils.global_state import set_global_state

import tpgen
from tests.clients.checks import nequip_calculator
from tests.clients.nequip_programs import compiled, packaged, program, trained

MODELS = ("nequip", "allegro")
FILES = {"checkpoint": trained, "package": packaged}


def results(calculator: Any) -> list[Any]:
    """Energy, forces and stress of a shaken crystal."""
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, rng=numpy.random.RandomState(0))
    atoms.calc = calculator
    return [atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()]


def assert_equal(found: list[Any], wanted: list[Any], limit: float = 1e-10) -> None:
    for x, y in zip(found, wanted, strict=True):
        assert abs(x - y).max() <= limit * max(1.0, abs(y).max())


def stock(model: str, kind: str) -> torch.nn.Module:
    set_global_state()
    return load_saved_model(str(FILES[kind](model))).eval()


@pytest.mark.parametrize("model", MODELS)
def test_training_with_the_modifier_gives_the_weights_of_stock(model: str) -> None:
    found, wanted = (torch.load(trained(model, m), weights_only=False)["state_dict"] for m in (True, False))
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-8, atol=1e-8)
    loaded = stock(model, "checkpoint")
    assert not tpgen.conversion_report(loaded).replaced, "the modifier is not persistent"


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("model", MODELS)
def test_a_saved_model_is_converted_and_equal(model: str, kind: str) -> None:
    wanted = results(nequip_calculator(stock(model, kind)))
    converted = tpgen.convert(stock(model, kind))
    assert_equal(results(nequip_calculator(converted)), wanted)
    assert_equal(results(nequip_calculator(tpgen.restore(converted))), wanted)


@pytest.mark.parametrize("model", MODELS)
def test_a_package_is_compiled_with_the_modifier(model: str) -> None:
    assert "enable_tpgen" in program(
        "nequip-package", "info", "--get-modifiers", "model.nequip.zip", folder=packaged(model).parent
    )
    file = compiled(packaged(model))
    assert any(b"tpgen" + dots + b"form" in file.read_bytes() for dots in (b"::", b"."))
    calculator = NequIPCalculator.from_compiled_model(str(file), device="cpu", chemical_species_to_atom_type_map=True)
    assert_equal(results(calculator), results(nequip_calculator(stock(model, "package"))))
    with pytest.raises(tpgen.TpgenError, match="it runs a compiled package"):
        tpgen.convert(calculator)


def test_a_package_of_allegro_is_converted_by_its_own_classes() -> None:
    rows = tpgen.conversion_report(tpgen.convert(stock("allegro", "package"))).replaced
    assert "allegro.Contracter" in {row.was for row in rows}
