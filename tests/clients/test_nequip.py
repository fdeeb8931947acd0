"""NequIP itself: its model, the modifier that it finds by itself, both of its compilers, its calculator, dynamics."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tpgen
from benchmarks.networks import Case, nequip
from tests.clients.checks import assert_same, carbon, check_everything, compare_dynamics, results
from tpgen.conversion import species
from tpgen.nn import matmul


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_model_is_converted_and_equal() -> None:
    check_everything(nequip(27, torch.float64, features=4))


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


def modified(model: nn.Module) -> nn.Module:
    from nequip.model.modify_utils import modify

    return modify(deepcopy(model), [{"modifier": "enable_tpgen"}])


def test_training_compiles_a_converted_model() -> None:
    """NequIP compiles what it trains, energies to forces, for batches of two structures and more."""
    from nequip.data import AtomicDataDict
    from nequip.model.utils import override_model_compile_mode

    stock = small()
    with override_model_compile_mode("compile"):
        compiled = small().model
    compiled.load_state_dict(stock.model.state_dict())
    compiled = modified(compiled)
    batch = AtomicDataDict.batched_from_list([stock.batch, stock.batch])

    def run(network: nn.Module, training: bool) -> dict[str, torch.Tensor]:
        found = network.train(training)(dict(batch))
        return {"energy": found["total_energy"], "forces": found["forces"], "stress": found["stress"]}

    two = Case(stock.model, run, batch, 2 * stock.edges)
    found, wanted = (
        {name.removeprefix("gradient of "): x for name, x in results(two, network).items()}
        for network in (compiled, stock.model)
    )
    assert compiled._compiled_cache[0], "NequIP has compiled"
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-8, atol=1e-8 * float(x.abs().max()))


def test_nequip_compile_packages_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself; its model comes from here, as a checkpoint takes a training run to make."""
    from nequip.data import AtomicDataDict as keys
    from nequip.integrations.ase import NequIPCalculator
    from nequip.scripts import compile as program

    case = small()
    batch = {k: v for k, v in case.batch.items() if k not in (keys.BATCH_KEY, keys.NUM_NODES_KEY)}
    monkeypatch.setattr(program, "load_saved_model", lambda *_, **__: (deepcopy(case.model).eval(), batch))
    file = tmp_path / "fast.nequip.pt2"
    asked = ["--mode", "aotinductor", "--device", "cpu", "--target", "ase", "--modifiers", "enable_tpgen"]
    program.main(["in.nequip.zip", str(file), *asked])
    names = file.read_bytes()
    assert b"nequip_custom_ops_libs" in names, "what loads the file imports tpgen by itself"
    assert b"tpgen::product" in names or b"tpgen.product" in names
    packaged = NequIPCalculator.from_compiled_model(str(file), device="cpu")
    energies = []
    for calculator in (packaged, calculator_of(case.model)):
        atoms = carbon()
        atoms.calc = calculator
        energies.append((atoms.get_potential_energy(), atoms.get_forces()))
    assert energies[0][0] == pytest.approx(energies[1][0], rel=1e-10)
    assert abs(energies[0][1] - energies[1][1]).max() < 1e-10


def calculator_of(model: nn.Module) -> Any:
    from nequip.integrations.ase import NequIPCalculator
    from nequip.integrations.utils import basic_transforms

    model = model.eval()
    names = model.metadata["type_names"].split()
    transforms = basic_transforms(model.metadata, model.metadata["r_max"], names, {name: name for name in names})
    return NequIPCalculator(model, "cpu", transforms=transforms)


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
    check_everything(nequip(27, torch.float64, features=4))


def test_a_model_built_in_float32_is_measured_and_proven() -> None:
    torch.set_default_dtype(torch.float32)
    case, reports = nequip(27, torch.float32, features=2, l_max=1, layers=2), []
    inputs = (dict(case.batch),)
    tpgen.convert(case.model.train(), measure=inputs, prove=inputs, report=reports.append)
    assert reports[0].proof.holds
    assert [t.task for t in reports[0].times.tasks] == ["call", "call and gradients"]
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}
