"""The adapter for SevenNet, on stand-ins of its modules; tests/clients runs SevenNet itself."""

from __future__ import annotations

import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.machine import KERNEL
from tests.networks.conversion.networks import check_conversion
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.projects.sevennet import SevenNetConvolution

WHERE = "sevenn.nn.convolution"


class IrrepsConvolution(nn.Module):
    """What the adapter sees of SevenNet's stock convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = o3.TensorProduct(
            "3x0e+3x1o", "0e+1o", "3x1o", [(0, 1, 0, "uvu", True), (1, 0, 0, "uvu", True)], shared_weights=False
        )
        self.weight_nn = nn.Linear(2, self.convolution.weight_numel)

    def forward(self, x: Tensor, harmonics: Tensor, radial: Tensor, edges: Tensor) -> Tensor:
        message = self.convolution(x[edges[1]], harmonics, self.weight_nn(radial))
        return message.new_zeros(len(x), message.shape[1]).index_add(0, edges[0], message)


class IrrepsScatterGatterFusedConvolution(nn.Module):
    """And of the one that hands nodes and edges to its product."""

    def forward(self, x: Tensor, harmonics: Tensor, radial: Tensor, edges: Tensor) -> Tensor:
        if edges.numel() == 0:
            return x.new_zeros(len(x), self._out_dim)
        source, target = edges[1].int(), edges[0].int()
        return self.convolution(x, harmonics, self.weight_nn(radial), source, target)


IrrepsConvolution.__module__ = IrrepsScatterGatterFusedConvolution.__module__ = WHERE


@pytest.fixture(autouse=True)
def _sevenn(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(IrrepsScatterGatterFusedConvolution=IrrepsScatterGatterFusedConvolution)
    monkeypatch.setitem(sys.modules, WHERE, held)


def arguments(edges: int = 11) -> tuple[Tensor, ...]:
    return torch.randn(5, 12), torch.randn(edges, 4), torch.randn(edges, 2), torch.randint(5, (2, edges))


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_the_convolution_takes_nodes_and_edges(strategy: str) -> None:
    close = {"rtol": 1e-5, "atol": 1e-5}
    check_conversion(
        IrrepsConvolution, arguments(), IrrepsScatterGatterFusedConvolution, (deepcopy,), close=close, strategy=strategy
    )
    network = convert(IrrepsConvolution(), strategy=strategy)
    assert type(network.convolution) is SevenNetConvolution
    assert network(*arguments(0)).eq(0).all()


def test_a_version_without_the_plug_in_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, WHERE, SimpleNamespace())
    network = nn.Sequential(IrrepsConvolution())
    with pytest.warns(UserWarning, match=r"'0': of a version of sevenn without IrrepsScatterGatterFusedConvolution"):
        convert(network, strategy="grouped")
    assert not isinstance(network[0].convolution, SevenNetConvolution)
    network[0](*arguments())


def _hook(module: IrrepsConvolution) -> None:
    module.convolution.register_forward_hook(lambda _, given, out: out * len(given[0]))


def _replace(module: IrrepsConvolution) -> None:
    forward = module.forward
    module.forward = lambda *given: 2 * forward(*given)


@pytest.mark.parametrize(
    "change, why",
    [(_hook, "hooks on convolution, which see edges"), (_replace, "its forward is replaced on the instance")],
)
def test_a_convolution_that_somebody_changed_gathers_as_before(change, why: str) -> None:
    network, given = nn.Sequential(IrrepsConvolution()), arguments()
    change(network[0])
    wanted = network[0](*given)
    with pytest.warns(UserWarning, match=rf"'0': {why}"):
        convert(network, strategy="grouped")
    assert type(network[0]) is IrrepsConvolution
    torch.testing.assert_close(network[0](*given), wanted, rtol=1e-5, atol=1e-5)
