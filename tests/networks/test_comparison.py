"""Programs that take longer than their networks serve no call."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import assert_same, given, kind_of, twins
from tpgen.networks import comparison
from tpgen.networks.served import serve
from tpgen.networks.step_program import GradientPrograms

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.delenv("TPGEN_PROGRAM")
    monkeypatch.setattr(comparison, "SHARE_OF_NETWORK", request.param)
    return request.param


@pytest.mark.parametrize("share", [0, inf], indirect=True)
@pytest.mark.parametrize("training", [False, True])
def test_the_faster_one_serves(training: bool, share: float, counted: list[int]) -> None:
    stock, own = twins(when="auto")
    for network in (stock, own):
        energy = network(given(), training=training)["energy"]
        if training:
            energy.backward()
    tpgen.ready(own)
    assert ("the network" in kind_of(own).refused) == (share == 0)
    assert_same(own(given(), training=training), stock(given(), training=training))
    assert bool(counted) == (share == inf)


@pytest.mark.parametrize("when", [True, "auto"])
def test_programs_that_are_asked_for_serve(when: object, monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    """By ``program=True``, or by `tpgen.ready` where none is built by itself."""
    monkeypatch.setattr(comparison, "SHARE_OF_NETWORK", 0)
    _, own = twins(when=when)
    own(given())
    tpgen.ready(own)
    own(given())
    assert counted


class Keeps(nn.Module):
    """Has statistics, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))


@pytest.mark.parametrize("share", [0, inf], indirect=True)
def test_a_comparison_leaves_no_trace(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    run_all = GradientPrograms.run_all
    monkeypatch.setattr(GradientPrograms, "run_all", lambda *of: (passes.append(0), run_all(*of))[1])
    network, x = Keeps(), torch.randn(5, 3)
    serve(network, "auto")
    network(x).sum().backward()
    held = {name: value.clone() for name, value in (*network.state_dict().items(), ("random", torch.get_rng_state()))}
    gradients = [p.grad.clone() for p in network.parameters()]
    tpgen.ready(network)
    assert 0 < len(passes) <= comparison._ROUNDS
    found = {**network.state_dict(), "random": torch.get_rng_state()}
    assert all(torch.equal(found[name], value) for name, value in held.items())
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), gradients, strict=True))
