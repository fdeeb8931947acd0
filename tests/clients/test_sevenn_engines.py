"""SevenNet in TorchSim, converted, against stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_sim as ts
from sevenn import calculator

from benchmarks.engines import crystal
from benchmarks.networks import sevenn
from tests.clients.torchsim_checks import check_batches, check_relaxed
from tpgen.base.errors import InputError
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


def test_a_step_stays_in_the_wrapper_and_refuses_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper gives objects of its own where a step takes tensors: nothing is dropped in silence."""
    torch.set_default_dtype(torch.float32)
    step = compile_step(convert(sevenn(27, torch.float32, hidden="8x0e+4x1e", layers=2).model))
    model = wrapped(step, monkeypatch)
    assert model.model is step
    with pytest.raises(InputError, match="AtomGraphDataBatch"):
        model(ts.initialize_state([crystal(27, 0)], model.device, model.dtype))
