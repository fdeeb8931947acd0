"""Layers with weights of elements, deployed: loaded by a Python without tpgen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.elsewhere import NETWORK, run_without_tpgen

pytestmark = [pytest.mark.slow, needs_compiler]

LOAD = f"""{NETWORK}
found = [network(*inputs) for inputs in given]
x, index = given[0]
try:
    network(x, index + 1)
except RuntimeError as error:
    print(error)
"""


class Network(nn.Module):
    """A layer by element between two that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        ends = "8x0e+8x1o", "16x0e+4x1o"
        self.layers = nn.ModuleList([tpgen.Linear(*ends), tpgen.Linear(ends[1], ends[0], num_elements=3, biases=True)])
        nn.init.normal_(self.layers[1].bias)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x).sin(), index=index)


def test_a_deployed_layer_finds_the_weights_of_elements(tmp_path: Path) -> None:
    network, folder = Network().requires_grad_(False), tmp_path / "network"
    cases = [(torch.randn(n, 32), torch.arange(n) % 3) for n in (6, 11)]
    tpgen.deploy(network, cases[0], folder)
    results, said = run_without_tpgen(folder, LOAD, cases)
    assert "index holds an index out of range" in "".join(said)
    for found, inputs in zip(results, cases, strict=True):
        torch.testing.assert_close(found, network(*inputs))
