"""Gradients of results that a program serves are the network's, computed by programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
from e3nn.nn import BatchNorm
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import given, kind_of, twins
from tpgen.networks import step_program
from tpgen.networks.kinds import ENOUGH_CALLS
from tpgen.networks.libraries import library_of
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")

Way = Callable[[nn.Module, dict[str, Tensor]], list[Tensor | None]]


def _forces(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    result = network(data, forces=False)
    return [result["energy"], *torch.autograd.grad(result["energy"], data["positions"])]


def _rows(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    result = network(data, forces=False)
    return list(torch.autograd.grad(result["energies"].square().sum() + result["energy"], data["positions"]))


def _parameters(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(network(data, forces=False)["energy"].sin(), list(network.parameters())))


def _leaves(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    network.zero_grad()
    network(data, forces=False)["energy"].square().backward()
    return [data["positions"].grad, *(p.grad for p in network.parameters())]


def _forces_inside(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    network.zero_grad()
    result = network(data, training=True)
    (result["forces"].square().sum() + result["energy"]).backward()
    return [data["positions"].grad, *(p.grad for p in network.parameters())]


def _forces_outside(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    network.zero_grad()
    result = network(data, forces=False)
    (slope,) = torch.autograd.grad(result["energy"], data["positions"], create_graph=True)
    (slope.square().sum() + result["energy"].cos()).backward()
    return [slope, data["positions"].grad, *(p.grad for p in network.parameters())]


def _forces_outside_alone(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    result = network(data, forces=False)
    (slope,) = torch.autograd.grad(result["energies"].sum() / 3, data["positions"], create_graph=True)
    return [slope, *torch.autograd.grad(slope.sin().sum(), list(network.parameters()), allow_unused=True)]


def _forces_of_a_loss(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    energy = network(data, forces=False)["energy"]
    (slope,) = torch.autograd.grad(energy.exp(), data["positions"], create_graph=True)  # a cotangent with a graph
    return [slope, *torch.autograd.grad(slope.sin().sum(), list(network.parameters()), allow_unused=True)]


def _strained(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    positions = data["positions"].requires_grad_()
    energy = network({**data, "positions": positions + positions @ strain}, forces=False)["energy"]
    return [energy, *torch.autograd.grad(energy, (positions, strain), create_graph=True)]


def _of_an_embedding(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    embedding = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    moved = data["positions"] @ embedding
    loss = network({**data, "positions": moved}, forces=False)["energies"].square().sum() + moved.sin().sum()
    return list(torch.autograd.grad(loss, (embedding, moved, *network.parameters())))


def _recurrent(network: nn.Module, data: dict[str, Tensor]) -> list[Tensor | None]:
    network.zero_grad()
    x = data["positions"].requires_grad_()
    for _ in range(2):
        x = x + network({**data, "positions": x}, forces=False)["energies"]
    x.square().sum().backward()
    return [data["positions"].grad, *(p.grad for p in network.parameters())]


WAYS: dict[str, Way] = {
    "forces": _forces,
    "rows": _rows,
    "parameters": _parameters,
    "leaves": _leaves,
    "forces inside": _forces_inside,
    "forces outside": _forces_outside,
    "forces outside alone": _forces_outside_alone,
    "strained": _strained,
    "of an embedding": _of_an_embedding,
}


def assert_equal(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    for x, y in zip(found, wanted, strict=True):
        if y is None:
            assert x is None
        else:
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def learn(network: nn.Module, way: Way) -> None:
    """Steps of a caller, and programs of these."""
    for _ in range(2):
        way(network, given())
        tpgen.ready(network)
        way(network, given())
        tpgen.ready(network)
    assert not kind_of(network).refused


@pytest.mark.parametrize("way", WAYS)
def test_programs_compute_what_a_caller_differentiates(way: str, counted: list[int], recomputed: list[int]) -> None:
    stock, own = twins(when="auto")
    learn(own, WAYS[way])
    counted.clear()
    recomputed.clear()
    for atoms in (5, 6, 9):
        assert_equal(WAYS[way](own, given(atoms, atoms)), WAYS[way](stock, given(atoms, atoms)))
    assert (len(counted), len(recomputed)) == (3, 0)
    assert_equal(WAYS[way](own, given(1)), WAYS[way](stock, given(1)))  # a size that the program does not serve
    assert len(counted) == 3


@pytest.mark.parametrize("other", [*WAYS, "forces of a loss"])
@pytest.mark.parametrize("way", WAYS)
def test_callers_who_turn_to_another_way_get_the_same(way: str, other: str) -> None:
    stock, own = twins(when="auto")
    learn(own, WAYS[way])
    for _ in range(3):
        for each in (way, other):
            step = WAYS.get(each, _forces_of_a_loss)
            assert_equal(step(own, given(6)), step(stock, given(6)))
        tpgen.ready(own)


def test_results_that_come_back_as_inputs(counted: list[int], recomputed: list[int]) -> None:
    stock, own = twins(when="auto")
    learn(own, _of_an_embedding)
    for n in range(3):
        assert_equal(_recurrent(own, given(6, n)), _recurrent(stock, given(6, n)))
        tpgen.ready(own)
    counted.clear()
    recomputed.clear()
    assert_equal(_recurrent(own, given(6)), _recurrent(stock, given(6)))
    assert len(counted) == 2


class Two(nn.Module):
    """Energy of two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * y.exp()).sum()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_gradients_by_inputs_of_which_one_is_computed_from_the_other(order: int, counted: list[int]) -> None:
    def step(network: nn.Module) -> list[Tensor | None]:
        x = given(4)["positions"].requires_grad_()
        y = x.cos()
        found: list[Tensor | None] = []
        value = network(x, y)
        for _ in range(order):
            found += (slopes := torch.autograd.grad(value, (x, y), create_graph=True))
            value = sum(g.sin().sum() for g in slopes)
        return found

    stock, own = Two(), Two()
    serve(own, "auto")
    for _ in range(3):
        assert_equal(step(own), step(stock))
        tpgen.ready(own)
    assert counted or kind_of(own).refused


@pytest.mark.parametrize("warm", [False, True], ids=["the network's call", "a program's call"])
def test_the_tensors_of_a_call_are_freed_by_a_backward_pass(warm: bool, counted: list[int]) -> None:
    _, own = twins(when="auto")
    if warm:
        learn(own, _of_an_embedding)
    moved = given()["positions"] @ torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    alive = ref(moved)
    energy = own({**given(), "positions": moved}, forces=False)["energy"]
    del moved
    energy.backward()
    assert alive() is None
    assert len(counted) >= warm


def test_the_next_program_serves_both_ways(counted: list[int], recomputed: list[int]) -> None:
    stock, own = twins(when="auto")
    learn(own, _forces)
    _leaves(own, given())
    assert len(recomputed) == 1
    tpgen.ready(own)
    counted.clear()
    for way in (_forces, _leaves, _rows, _parameters):
        assert_equal(way(own, given(7)), way(stock, given(7)))
    assert (len(counted), len(recomputed)) == (3, 2), "rows are another pass, before the next program"


def test_a_program_is_built_after_enough_steps(counted: list[int]) -> None:
    _, own = twins()
    for _ in range(ENOUGH_CALLS):
        _leaves(own, given())
    assert not counted
    _leaves(own, given())
    assert len(counted) == 1


def test_training_takes_the_same_steps() -> None:
    stock, own = twins(when="auto")
    learn(own, _forces_inside)
    for network in (stock, own):
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
        for n in range(5):
            optimiser.zero_grad()
            result = network(given(6, n), training=True)
            (result["forces"].square().sum() + result["energy"]).backward()
            optimiser.step()
    assert_equal(list(own.parameters()), list(stock.parameters()))


def test_a_graph_that_is_kept_is_passed_twice(recomputed: list[int]) -> None:
    _, own = twins(when="auto")
    learn(own, _leaves)
    own.zero_grad()
    energy = own(given(), forces=False)["energy"]
    energy.backward(retain_graph=True)
    once = [p.grad.clone() for p in own.parameters() if p.grad is not None]
    energy.backward()
    assert_equal([p.grad for p in own.parameters()], [2 * x for x in once])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        energy.backward()
    assert not recomputed


def test_third_derivatives_are_the_networks(recomputed: list[int]) -> None:
    found = []
    for network in twins(when="auto"):
        if "_tpgen_calls" in vars(network):
            learn(network, _forces_outside)
        data = given(6)
        energy, x = network(data, forces=False)["energy"], data["positions"]
        (first,) = torch.autograd.grad(energy, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), x, create_graph=True)
        found.append(
            [first, second, *torch.autograd.grad(second.sin().sum(), (x, *network.parameters()), allow_unused=True)]
        )
    assert_equal(*found)
    assert recomputed


def test_batched_gradients_are_the_networks() -> None:
    found = []
    for network in twins(when="auto"):
        if "_tpgen_calls" in vars(network):
            learn(network, _rows)
        data = given(4)
        energies = network(data, forces=False)["energies"]
        rows = torch.autograd.grad(energies.flatten(), data["positions"], torch.eye(4).double(), is_grads_batched=True)
        found.append(list(rows))
    assert_equal(*found)


class Pooled(nn.Module):
    """Energies of molecules, whose number is found by values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, molecule: Tensor) -> Tensor:
        rows = self.last(self.body(x).tanh())
        return rows.new_zeros(int(molecule.max()) + 1, 1).index_add(0, molecule, rows)


def _molecules(network: nn.Module, x: Tensor, molecule: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    x = x.detach().requires_grad_()
    energies = network(x, molecule)
    (slope,) = torch.autograd.grad(energies.sum(), x, create_graph=True)
    (energies.square().mean() + slope.square().sum()).backward()
    return [energies, slope, *(p.grad for p in network.parameters())]


@needs_compiler
@pytest.mark.slow
def test_compiled_programs_take_any_sizes(
    counted: list[int], recomputed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_program, "library_of", library_of)
    stock, own = Pooled().double(), Pooled().double()
    serve(own, "auto")
    for molecules, atoms in ((3, 12), (3, 12), (4, 13), (2, 7), (5, 13)):
        generator = torch.Generator().manual_seed(atoms)
        x = torch.randn(atoms, 3, generator=generator, dtype=torch.float64)
        molecule = torch.arange(atoms) % molecules
        assert_equal(_molecules(own, x, molecule), _molecules(stock, x, molecule))
        tpgen.ready(own)
    assert not kind_of(own).refused
    assert (len(counted), len(recomputed)) == (4, 0)


class Heads(nn.Module):
    """Two heads, of which callers often differentiate one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.one, self.other = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.body(x).tanh()
        return self.one(rows).sum(), self.other(rows).sum()


def _heads() -> tuple[nn.Module, nn.Module]:
    stock, own = Heads().double(), Heads().double()
    serve(own, "auto")
    return stock, own


def _first_head(network: nn.Module, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    network(x)[0].sin().backward()
    return [p.grad for p in network.parameters()]


def _both_heads(network: nn.Module, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    first, second = network(x)
    (first * second).backward()
    return [p.grad for p in network.parameters()]


def test_parameters_without_a_gradient_keep_none() -> None:
    stock, own = _heads()
    x = torch.randn(5, 3, dtype=torch.float64)
    for way in (_first_head, _both_heads, _first_head, _both_heads):
        for _ in range(2):
            assert_equal(way(own, x), way(stock, x))
            tpgen.ready(own)


def test_frozen_parameters_are_another_program(counted: list[int]) -> None:
    stock, own = _heads()
    x = torch.randn(5, 3, dtype=torch.float64)
    for _ in range(2):
        _both_heads(own, x)
    tpgen.ready(own)
    for network in (stock, own):
        network.body.requires_grad_(False)  # type: ignore[union-attr]
    for _ in range(3):
        assert_equal(_both_heads(own, x), _both_heads(stock, x))
        tpgen.ready(own)
    assert counted


def test_hooks_of_gradients_run_where_stock_runs_them() -> None:
    found = []
    for network in _heads():
        x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for _ in range(2):
            _first_head(network, x)
        tpgen.ready(network)
        runs: list[int] = []
        for n, p in enumerate(network.parameters()):
            p.register_hook(lambda _, n=n, runs=runs: runs.append(n))
            p.register_post_accumulate_grad_hook(lambda _, n=n, runs=runs: runs.append(10 + n))
        _first_head(network, x)
        found.append(sorted(runs))
    assert found[0] == found[1]


class Linear(nn.Module):
    """A gradient that is zero, whatever the cotangent."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.idle = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.ones(3).double())

    def forward(self, x: Tensor) -> Tensor:
        return (x.square() * self.weight).sum() + (0 * self.idle).sum()


def _linear(network: nn.Module, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(network(x), x, create_graph=True)
    slope.square().sum().backward()
    return [slope, x.grad, *(p.grad for p in network.parameters())]


def _idle(network: nn.Module, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    network(x).backward()
    return [p.grad for p in network.parameters()]


@pytest.mark.parametrize("way", [_linear, _idle])
def test_gradients_that_are_zero_are_no_none(way: Callable) -> None:
    stock, own = Linear(), Linear()
    serve(own, "auto")
    x = torch.randn(4, 3).double()
    for _ in range(3):
        assert_equal(way(own, x), way(stock, x))
        tpgen.ready(own)
    assert kind_of(own).program is not None


class Shared(nn.Module):
    """Two parameters of equal gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.zeros(3).double())

    def forward(self, x: Tensor) -> Tensor:
        return (x * (self.one + self.other)).sum(0)


def test_gradients_share_no_memory(recomputed: list[int]) -> None:
    network = Shared()
    serve(network, "auto")
    x = torch.ones(1, 3).double()

    def step() -> None:
        network.zero_grad()
        network(x).sum().backward()

    for _ in range(2):
        step()
    tpgen.ready(network)
    step()
    assert network.one.grad is not None
    network.one.grad.mul_(2)
    torch.testing.assert_close(network.other.grad, torch.ones(3).double())
    torch.testing.assert_close(x, torch.ones(1, 3).double())
    assert not recomputed


class Aside(Heads):
    """Keeps a tensor that callers read, and put into their loss."""

    aside: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = super().forward(x)
        self.aside = found[0] * found[1]
        return found


def _aside(network: Any, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    one, _ = network(x)
    (one + network.aside.square()).backward()
    return [network.aside, *(p.grad for p in network.parameters())]


def test_tensors_that_a_network_keeps_are_never_old(counted: list[int], recomputed: list[int]) -> None:
    stock, own = Aside().double(), Aside().double()
    serve(own, "auto")
    x = torch.randn(5, 3, dtype=torch.float64)
    for n in range(4):
        assert_equal(_aside(own, n * x), _aside(stock, n * x))
        tpgen.ready(own)
    counted.clear(), recomputed.clear()
    assert_equal(_aside(own, 7 * x), _aside(stock, 7 * x))
    assert (len(counted), len(recomputed)) == (1, 0)


def test_a_program_that_is_built_within_a_call_leaves_what_the_call_kept(counted: list[int]) -> None:
    stock, own = Aside().double(), Aside().double()
    serve(own, True)
    x = torch.randn(5, 3, dtype=torch.float64)
    for n in range(ENOUGH_CALLS + 3):
        assert_equal(_aside(own, n * x), _aside(stock, n * x))
    assert counted, "the tenth call has built a program"


class Norms(nn.Module):
    """Two kinds of batch norm, whose buffers each call in training changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.norm = nn.Linear(3, 6), nn.BatchNorm1d(6)
        self.other = tpgen.convert(nn.Sequential(BatchNorm("3x0e+1x1o")))

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.norm(self.body(x)).sin()).exp().sum()


def _loss(network: nn.Module, x: Tensor) -> list[Tensor | None]:
    network.zero_grad()
    network(x).sin().backward()
    return [*(p.grad for p in network.parameters()), *network.buffers()]


def test_batch_norms_count_each_call_once(counted: list[int], recomputed: list[int]) -> None:
    stock, own = Norms().double(), Norms().double()
    serve(own, "auto")
    x = torch.randn(8, 3, dtype=torch.float64)
    for n in range(1, 5):
        assert_equal(_loss(own, n * x), _loss(stock, n * x))
        tpgen.ready(own)
    assert len(counted) >= 2
    recomputed.clear()
    assert_equal(_loss(own, x[:5]), _loss(stock, x[:5]))
    assert not recomputed
    for network in (own, stock):  # a pass that the network computes changes no buffer
        (slope,) = torch.autograd.grad(network(x).sin(), list(network.parameters())[:1], create_graph=True)
        slope.sum().backward()
    assert recomputed
    assert_equal(list(own.buffers()), list(stock.buffers()))


def _refused(network: nn.Module, step: Callable[[nn.Module], Any]) -> str:
    for _ in range(2):
        step(network)
        tpgen.ready(network)
    return kind_of(network).refused


def _retained(network: nn.Module) -> None:
    one, other = network(torch.randn(5, 3, dtype=torch.float64))
    one.retain_grad()
    (one * other).backward()


def _within(network: Any) -> None:
    seen: list[Tensor] = []
    hook = network.body.register_forward_hook(lambda _module, _given, found: seen.append(found))
    one, _ = network(torch.randn(5, 3, dtype=torch.float64))
    hook.remove()
    torch.autograd.grad(one, seen[0])


@pytest.mark.parametrize("step", [_retained, _within])
def test_gradients_within_the_network_are_left_to_the_network(step: Callable[[nn.Module], Any]) -> None:
    _, own = _heads()
    assert "differentiated" in _refused(own, step)
    step(own)


def test_copies_learn_their_own_passes(counted: list[int]) -> None:
    stock, own = twins(when="auto")
    learn(own, _forces_outside)
    counted.clear()
    other = copy.deepcopy(own)
    assert_equal(_forces_outside(other, given(6)), _forces_outside(stock, given(6)))
    assert not counted
