"""SevenNet in TorchSim, converted and as a step, against stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sevenn import calculator

from benchmarks.networks import sevenn
from tests.clients.torchsim_checks import NETWORKS, check_batches, check_relaxed


@pytest.mark.parametrize("kind", NETWORKS)
def test_batches_and_autobatchers_of_torchsim(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a name that TorchSim 0.3 imports, and SevenNet 0.13 has no more
    monkeypatch.setattr(calculator, "torch_script_type", torch.jit.ScriptModule, raising=False)
    from torch_sim.models.sevennet import SevenNetModel

    torch.set_default_dtype(torch.float32)
    network = sevenn(27, torch.float32, hidden="8x0e+4x1e", layers=2).model

    def wrap(network: Any) -> Any:
        return SevenNetModel(network, device="cpu")

    check_batches(wrap, network, kind, 2e-5)
    check_relaxed(wrap, network, kind)
