"""Copies of networks: those to call leave torch's tracer alone, as other threads call modules meanwhile."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn
from torch.fx import graph_module

from tpgen.networks.conversion.convert import convert
from tpgen.networks.copies import copy_of, copy_to_call


class Network(nn.Module):
    """Two products that share their weights, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "2x0e+1o")
        self.second = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "2x0e+1o")
        self.second.weight = self.first.weight
        self.layer = o3.Linear("2x0e+1o", "3x0e")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(self.second(self.first(x, y), y))


def test_parameters_of_a_scripted_copy_are_leaves() -> None:
    network = nn.Sequential(torch.jit.script(nn.Linear(2, 3)), nn.Linear(3, 1))
    network[1].bias.requires_grad_(False)
    copied = copy_of(network)
    assert all(x.is_leaf for x in copied.parameters())
    assert [x.requires_grad for x in copied.parameters()] == [True, True, True, False]


def test_a_copy_to_call_traces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network, given = convert(Network(), program=False), (torch.randn(4, 5), torch.randn(4, 4))
    monkeypatch.setattr(graph_module, "_deserialize_graph_module", lambda *_: pytest.fail("traced"))
    copy = copy_to_call(network)
    assert torch.equal(copy(*given), network(*given))
    assert copy.first.weight is copy.second.weight
    assert copy.first.weight is not network.first.weight
    assert {*network.state_dict()} == {*copy.state_dict()}
    for module, other in zip(network.modules(), copy.modules(), strict=True):
        shares = set(getattr(module, "__codegen__", ()))
        assert all((module._modules[n] is other._modules[n]) == (n in shares) for n in module._modules)
        assert not {id(x) for x in module._buffers.values()} & {id(x) for x in other._buffers.values()} - {id(None)}
