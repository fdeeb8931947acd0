"""What NequIP's own tools must make of a converted model, its or an extension's."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.networks import Case
from tests.clients.checks import carbon, results
from tpgen.networks.conversion.convert import convert, restore


def modified(model: nn.Module) -> nn.Module:
    from nequip.model.modify_utils import modify

    return modify(deepcopy(model), [{"modifier": "enable_tpgen"}])


def check_compiled_training(make: Callable[[], Case]) -> None:
    """NequIP compiles what it trains, energies to forces, for batches of two structures and more."""
    from nequip.data import AtomicDataDict
    from nequip.model.utils import override_model_compile_mode

    stock = make()
    with override_model_compile_mode("compile"):
        compiled = make().model
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
    with pytest.warns(UserWarning, match="NequIP compiled at its first call, and goes on so"):
        convert(restore(compiled))


def check_packaged(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself; its model comes from here, as a checkpoint takes a training run to make."""
    from nequip.data import AtomicDataDict as keys
    from nequip.integrations.ase import NequIPCalculator
    from nequip.scripts import compile as program

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
