"""Programs of networks that draw random numbers: dropout, noise, paths that are dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn.nn import Dropout
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tpgen
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import given, kind_of, served_calls
from tpgen.networks import step_program
from tpgen.networks.libraries import library_of
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")

Drawing = Callable[["Random", Tensor], Tensor]


class Random(nn.Module):
    """Energy of positions, between layers that draw."""

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.drawing = nn.Linear(3, 8), nn.Linear(8, 1), drawing
        self.irreps_dropout = Dropout("2x0e+2x1o", 0.4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drawing(self, self.first(x).sin())
        return self.last(self.drawing(self, hidden)).sin().sum()


def _pathwise(x: Tensor) -> Tensor:
    return x * x.new_empty(x.shape[0], 1).bernoulli_(0.6)


def _own_generator(x: Tensor) -> Tensor:
    return x + torch.rand(len(x), 1, dtype=x.dtype, generator=torch.Generator().manual_seed(1))


def _seeds(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return x + torch.rand(len(x), 1, dtype=x.dtype)


DRAWINGS: dict[str, Drawing] = {
    "dropout": lambda m, x: functional.dropout(x, 0.3, m.training),
    "in place": lambda m, x: functional.dropout(x + 1, 0.3, m.training, inplace=True),
    "dropout of columns": lambda m, x: functional.dropout1d(x, 0.3, m.training),
    "alpha dropout": lambda m, x: functional.alpha_dropout(x, 0.3, m.training),
    "e3nn's dropout": lambda m, x: m.irreps_dropout(x),
    "dropped paths": lambda m, x: _pathwise(x),
    "rand": lambda m, x: x * torch.rand(len(x), 1, dtype=x.dtype).round(),
    "noise": lambda m, x: x + torch.randn_like(x),
    "order": lambda m, x: x[torch.randperm(len(x))],
    "integers": lambda m, x: x + torch.randint(3, x.shape),
    "number": lambda m, x: x * torch.rand(()),
    "Gumbel": lambda m, x: functional.gumbel_softmax(x, dim=-1),
    "after a mask": lambda m, x: functional.dropout(x[x[:, 0] < 2], 0.3),
}
UNFOLLOWED: dict[str, Drawing] = {
    "a generator": lambda m, x: _own_generator(x),
    "seeds": lambda m, x: _seeds(x),
    "repeated": lambda m, x: checkpoint(functional.dropout, x, 0.3, use_reentrant=False),
    "by values": lambda m, x: x + torch.bernoulli(x.sigmoid()),
}


def _step(network: nn.Module, atoms: int, seed: int = 0) -> list[Any]:
    """Energy, forces, gradients of a loss of both, and the next random numbers."""
    torch.manual_seed(seed)
    x = given(atoms, atoms)["positions"].requires_grad_()
    energy = network(x)
    following = torch.rand(3)
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    loss = slope.square().sum() + energy
    return [energy, slope, *torch.autograd.grad(loss, list(network.parameters()), allow_unused=True), following]


def _twins(drawing: Drawing) -> tuple[Random, Random]:
    stock, own = Random(drawing).double(), Random(drawing).double()
    serve(own, "auto")
    return stock, own


def _with_programs(drawing: Drawing) -> tuple[Random, Random]:
    stock, own = _twins(drawing)
    for _ in range(2):
        _step(own, 5)
        tpgen.ready(own)
    assert not kind_of(own).refused
    return stock, own


def _compare(found: list[Any], wanted: list[Any]) -> None:
    for x, y in zip(found, wanted, strict=True):
        if y is None:
            assert x is None
        else:
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DRAWINGS)
def test_programs_draw_the_numbers_of_the_network(name: str, counted: list[int]) -> None:
    stock, own = _with_programs(DRAWINGS[name])
    counted.clear()
    for atoms in (5, 8, 12):
        _compare(_step(own, atoms, seed=atoms), _step(stock, atoms, seed=atoms))
    assert len(counted) == 3
    _compare(_step(own, 1), _step(stock, 1))  # a size that the program does not serve


def test_builds_draw_nothing() -> None:
    _, own = _twins(DRAWINGS["dropout"])
    _step(own, 5)
    before = torch.get_rng_state()
    tpgen.ready(own)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_network_computes_other_passes_by_the_same_numbers(recomputed: list[int]) -> None:
    found = []
    for network in _with_programs(DRAWINGS["dropout"]):
        torch.manual_seed(2)
        x = given(6)["positions"].requires_grad_()
        energy = network(x)
        following = torch.rand(3)
        (first,) = torch.autograd.grad(energy, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), x, create_graph=True)
        found.append([*torch.autograd.grad(second.sin().sum(), (x, *network.parameters())), following, torch.rand(3)])
    _compare(*found)
    assert recomputed


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_the_network_serves_draws_that_programs_do_not_follow(name: str, counted: list[int]) -> None:
    stock, own = _twins(UNFOLLOWED[name])
    for n in range(4):
        _compare(_step(own, 5 + n, seed=n), _step(stock, 5 + n, seed=n))
        tpgen.ready(own)
    assert "random numbers" in kind_of(own).refused
    assert not counted


def test_steps_and_trainings_draw_as_the_network() -> None:
    network = Random(DRAWINGS["dropout"]).double()
    step = tpgen.compile_step(network)
    training = tpgen.compile_training(network, lambda network, x: network(x).square())
    for atoms in (5, 8, 12):
        x = given(atoms, atoms)["positions"]
        found = []
        for call in (step, network, training, lambda x: network(x).square()):
            torch.manual_seed(atoms)
            found.append([call(x).detach(), torch.rand(2)])
        _compare(found[0], found[1])
        _compare(found[2], found[3])


@needs_compiler
def test_compiled_programs_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_program, "library_of", library_of)
    stock, own = _with_programs(DRAWINGS["dropout"])
    with served_calls() as calls:
        _compare(_step(own, 9), _step(stock, 9))
    assert calls
