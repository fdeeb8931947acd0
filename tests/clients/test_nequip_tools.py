"""What NequIP's own tools make of a converted model, its or Allegro's: modifiers and both of its compilers."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from nequip.data import AtomicDataDict as keys
from nequip.integrations.ase import NequIPCalculator
from nequip.model.modify_utils import get_all_modifiers, modify
from nequip.model.utils import override_model_compile_mode
from nequip.scripts import compile as program
from torch import nn

from benchmarks.networks import Case, nequip
from tests.clients.checks import assert_same, carbon, nequip_calculator, results
from tests.clients.projects import PROJECTS
from tpgen.networks.conversion.convert import convert, restore

CLASSES = {"nequip": "TpgenTensorProductScatter", "allegro": "TpgenContracter"}
both = pytest.mark.parametrize("project", [name for name in CLASSES if name in PROJECTS])


def modified(model: nn.Module) -> nn.Module:
    return modify(deepcopy(model), [{"modifier": "enable_tpgen"}])


@both
def test_the_modifier_is_found_by_name(project: str) -> None:
    case = PROJECTS[project].make(27, torch.float64)
    wanted = results(case, case.model)
    assert "enable_tpgen" in get_all_modifiers(case.model)
    model = modified(case.model)
    assert CLASSES[project] in {type(m).__name__ for m in model.modules()}
    assert_same(results(case, model), wanted)


def small() -> Case:
    """What compiles in some ten seconds."""
    return nequip(27, torch.float64, features=2, l_max=1, layers=2)


def test_training_compiles_a_converted_model() -> None:
    """NequIP compiles what it trains, energies to forces, for batches of two structures and more."""
    stock = small()
    with override_model_compile_mode("compile"):
        compiled = small().model
    compiled.load_state_dict(stock.model.state_dict())
    compiled = modified(compiled)
    batch = keys.batched_from_list([stock.batch, stock.batch])

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
    with pytest.warns(UserWarning, match="NequIP compiled at its first call, and goes on so"):
        convert(restore(compiled))


@both
def test_nequip_compile_packages_a_converted_model(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program itself; its model comes from here, as a checkpoint takes a training run to make."""
    case = small() if project == "nequip" else PROJECTS[project].make(27, torch.float64)
    batch = {k: v for k, v in case.batch.items() if k not in (keys.BATCH_KEY, keys.NUM_NODES_KEY)}
    monkeypatch.setattr(program, "load_saved_model", lambda *_, **__: (deepcopy(case.model).eval(), batch))
    file = tmp_path / "fast.nequip.pt2"
    asked = ["--mode", "aotinductor", "--device", "cpu", "--target", "ase", "--modifiers", "enable_tpgen"]
    program.main(["in.nequip.zip", str(file), *asked])
    names = file.read_bytes()
    assert b"nequip_custom_ops_libs" in names, "what loads the file imports tpgen by itself"
    assert any(b"tpgen" + dots + b"form" in names for dots in (b"::", b"."))
    packaged = NequIPCalculator.from_compiled_model(str(file), device="cpu")
    energies = []
    for calculator in (packaged, nequip_calculator(case.model)):
        atoms = carbon()
        atoms.calc = calculator
        energies.append((atoms.get_potential_energy(), atoms.get_forces()))
    assert energies[0][0] == pytest.approx(energies[1][0], rel=1e-10)
    assert abs(energies[0][1] - energies[1][1]).max() < 1e-10
