"""Weights of edges by splines in the place of e3nn's net: when, how close, and when they are made anew."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tests.machine import needs_compiler
from tpgen.base.errors import OptionError, TpgenError
from tpgen.functions.bessel import CutBessel, cut_bessel
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.operations import splines

SHAPE = CutBessel(math.sqrt(2 / 5), 5.0, 6)


class Weights(nn.Module):
    """Weights of edges made from lengths, as networks make them once they are converted."""

    def __init__(self, shape: CutBessel = SHAPE) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shape, self.net = shape, FullyConnectedNet([8, 16, 24], nn.functional.silu).double()
        self.register_buffer("frequencies", torch.arange(1, 9, dtype=torch.float64) * math.pi / 5)

    def forward(self, lengths: Tensor) -> Tensor:
        return self.net(cut_bessel(lengths, self.frequencies, self.shape)[0])


def lengths(most: float = 5.5) -> Tensor:
    return torch.linspace(0.4, most, 50, dtype=torch.float64).unsqueeze(1).requires_grad_()


def is_splined(network: nn.Module) -> bool:
    """Whether splines were made by now."""
    return any("steps" in row.now for row in conversion_report(network).replaced)


def difference(network: nn.Module, stock: nn.Module, r: Tensor) -> float:
    """The largest difference of weights, and of gradients by lengths, each relative to the largest."""
    found, wanted = network(r), stock(r)
    g = torch.randn_like(wanted)
    pairs = (found.detach(), wanted.detach()), [torch.autograd.grad(y, r, g)[0] for y in (found, wanted)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@needs_compiler
def test_weights_follow_the_net() -> None:
    stock = Weights()
    network = convert(deepcopy(stock), radial="spline")
    assert not is_splined(network)
    assert "cubic splines of lengths (made at the first call" in str(conversion_report(network))
    for change in (lambda p: None, lambda p: p.data.mul_(1.3), lambda p: p.data.copy_(p.data.flip(0))):
        for p in (*stock.net.parameters(), *network.net.parameters()):
            change(p)
        assert 0 < difference(network, stock, lengths()) < 1e-5
    assert is_splined(network)
    assert 0 < difference(network.float(), stock.float(), lengths().detach().float().requires_grad_()) < 1e-4
    restore(network)
    assert difference(network, stock, lengths().detach().float().requires_grad_()) == 0


@needs_compiler
def test_tables_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = splines.make_spline
    monkeypatch.setattr(splines, "make_spline", lambda *given: made.append(0) or make(*given))
    network = convert(Weights(), radial="spline")
    for _ in range(3):
        network(lengths())
    assert len(made) == 1


@needs_compiler
def test_nets_are_called_where_splines_are_not_for() -> None:
    stock = Weights(CutBessel(math.sqrt(2 / 5), 5.0, 6, ends=False))
    network = convert(deepcopy(stock), radial="spline")
    assert difference(network, stock, lengths()) < 1e-12  # beyond the cutoff, from where functions go on
    assert not is_splined(network)
    assert 0 < difference(network, stock, lengths(4.9)) < 1e-5
    rows = torch.rand(4, 8, dtype=torch.float64)  # of whatever
    torch.testing.assert_close(network.net(rows), stock.net(rows), rtol=1e-12, atol=1e-12)
    r = lengths(4.9)
    torch.testing.assert_close(torch.func.jvp(network, (r,), (r,)), torch.func.jvp(stock, (r,), (r,)))


@needs_compiler
def test_training_is_refused() -> None:
    network = convert(Weights(), radial="spline")
    with pytest.raises(TpgenError, match=r"no gradients of parameters. Train the network as tpgen.restore\(network\)"):
        network(lengths()).sum().backward()
    for p in network.parameters():
        p.requires_grad_(False)
    network(lengths()).sum().backward()


@needs_compiler
def test_a_proof_is_of_the_network_without_splines() -> None:
    network = convert(Weights(), radial="spline", prove=(lengths(),), measure=(lengths().detach(),))
    assert network(lengths()).requires_grad
    assert is_splined(network)
    report = conversion_report(network, prove=(lengths(),), measure=(lengths().detach(),))
    assert report.proof.holds
    assert is_splined(network)
    away = {d.what: d.relative for d in report.proof.splined}
    assert away.keys() == {"output", "gradient of input[0]"}
    assert all(0 < x < 1e-5 for x in away.values())
    assert "with splines, for which there is no limit" in str(report)


@needs_compiler
def test_the_report_says_where_no_table_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    network = convert(Weights(), radial="spline")
    network(lengths())
    assert "; its net in programs of compile_step and deploy" in str(conversion_report(network))
    assert 0 < splines.find_largest_spline_error(network) < 1e-6
    monkeypatch.setattr(splines, "SLOPE_ERROR", 1e-12)
    assert difference(network, Weights(), lengths()) < 1e-12
    assert "its net: no splines of lengths have slopes within 1e-12; cubic splines" in str(conversion_report(network))
    assert splines.find_largest_spline_error(network) == 0


def test_wrong_options() -> None:
    with pytest.raises(OptionError, match="unknown radial 'splines': did you mean 'spline'"):
        convert(Weights(), radial="splines")
    with pytest.raises(OptionError, match="there is none here; leave radial out"):
        convert(nn.ModuleList([o3.Linear("1o", "1o")]), radial="spline")
