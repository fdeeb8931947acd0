"""SevenNet in TorchSim, converted, against stock."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch_sim as ts
from sevenn import calculator

from benchmarks.engines import crystal
from benchmarks.networks import sevenn
from tests.clients.torchsim_checks import check_batches, check_relaxed
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step


def wrapped(network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    # a name that TorchSim 0.3 imports, and SevenNet 0.13 has no more
    monkeypatch.setattr(calculator, "torch_script_type", torch.jit.ScriptModule, raising=False)
    from torch_sim.models.sevennet import SevenNetModel

    return SevenNetModel(network, device="cpu")


def test_batches_and_autobatchers_of_torchsim(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    network = sevenn(27, torch.float32, hidden="8x0e+4x1e", layers=2).model
    check_batches(lambda given: wrapped(given, monkeypatch), network, "converted", 2e-5)
    check_relaxed(lambda given: wrapped(given, monkeypatch), network, "converted")


def test_a_step_takes_the_objects_of_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    network = sevenn(27, torch.float32, hidden="8x0e+4x1e", layers=2).model
    step = compile_step(convert(deepcopy(network)))
    stock, model = wrapped(network, monkeypatch), wrapped(step, monkeypatch)
    assert model.model is step
    for size in (0, 1):
        found, wanted = (m(ts.initialize_state([crystal(27, size)], m.device, m.dtype)) for m in (model, stock))
        assert found.keys() == wanted.keys()
        for name, x in wanted.items():
            torch.testing.assert_close(found[name].detach(), x.detach(), rtol=2e-5, atol=2e-5)
    assert step._program is not None
