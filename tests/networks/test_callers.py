"""Callers differentiate results of programs in many ways, and get what the network gives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.utils.parametrizations import spectral_norm

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.test_gradients import assert_equal
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")

Found = list[Tensor | None]


class Energy(nn.Module):
    """Energy, and what it is computed from; a parameter is idle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.shift, self.idle = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = (x - self.mean) @ self.body.weight.t()
        rows = self.last((hidden + self.body.bias).tanh() + self.shift)
        return {"energy": rows.sin().sum(), "rows": rows, "hidden": hidden}


class Running(Energy):
    """Writes into a buffer, and computes with what it wrote."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.mean.lerp_(x.detach().mean(0), 0.5)
        return super().forward(x)


class Spectral(Energy):
    def __init__(self) -> None:
        super().__init__()
        spectral_norm(self.body)


class Strained(Energy):
    """Returns a tensor that callers differentiate by, and a parameter."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        strain = x.new_zeros(3, 3).requires_grad_()
        return {**super().forward(x + x @ strain), "strain": strain, "idle": self.idle}


class Attribute(Energy):
    """Computes with a tensor that is no parameter and requires a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1).double().requires_grad_()

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"energy": super().forward(x)["energy"] * self.scale}


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(count), dtype=torch.float64).requires_grad_()


def gradients(network: nn.Module, *others: Tensor) -> Found:
    return [None if x.grad is None else x.grad.clone() for x in (*others, *network.parameters())]


def call(network: nn.Module) -> Any:
    network.zero_grad()
    return network(rows())


def differentiate(network: nn.Module) -> Any:
    call(network)["energy"].backward()


def differentiate_twice(network: nn.Module) -> Any:
    network.zero_grad()
    x = rows()
    energy = network(x)["energy"]
    (slope,) = grad(energy, x, create_graph=True)
    (slope.square().sum() + energy).backward()


LEARNED: list[Callable[[nn.Module], Any]] = [call, differentiate, differentiate_twice]


def compare(step: Callable[[Any], Found], learned: Callable[[nn.Module], Any], made: type[nn.Module] = Energy) -> None:
    """A step after programs of others, and once more after the next program."""
    stock, own = made().double(), made().double()
    serve(own, "auto")
    for _ in range(2):
        for network in (own, stock):
            learned(network)
        tpgen.ready(own)
    for _ in range(2):
        found, wanted = step(own), step(stock)
        assert_equal([*found, *own.buffers()], [*wanted, *stock.buffers()])
        tpgen.ready(own)


def _batched_second(network: nn.Module) -> Found:
    x = rows()
    (slope,) = grad(network(x)["energy"], x, create_graph=True)
    return list(grad(slope.flatten(), x, torch.eye(15).double(), is_grads_batched=True))


def _by_the_energy(network: nn.Module) -> Found:
    x = rows()
    energy = network(x)["energy"]
    (slope,) = grad(energy, x, create_graph=True)
    (none,) = grad(slope.sum(), energy, allow_unused=True, retain_graph=True)
    return [none, *grad(energy, x, retain_graph=True), *grad(slope.sum(), x)]


def _interrupted(network: nn.Module) -> Found:
    def interrupt(_: Tensor) -> None:
        raise KeyboardInterrupt

    x = rows()
    energy = network(x)["energy"]
    (slope,) = grad(energy, x, create_graph=True)
    hook = energy.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        (slope.square().sum() + energy).backward(retain_graph=True)
    hook.remove()
    network.zero_grad()
    x.grad = None
    energy.backward()
    return gradients(network, x)


def _negated_in_place(network: nn.Module) -> Found:
    network.zero_grad()
    x = rows()
    (slope,) = grad(network(x)["energy"], x, create_graph=True)
    slope.neg_().square().sum().backward()
    return gradients(network, x)


def _scaled_in_place(network: nn.Module) -> Found:
    result = call(network)
    with torch.no_grad():
        result["hidden"].zero_()
    result["energy"].backward()
    return gradients(network)


def _frozen_since(network: Any) -> Found:
    energy = call(network)["energy"]
    network.body.requires_grad_(False)
    energy.backward()
    network.body.requires_grad_(True)
    return gradients(network)


def _bias_written(network: Any) -> Found:
    energy = call(network)["energy"]
    with torch.no_grad():
        network.last.bias.add_(0)
    energy.backward()
    return gradients(network)


def _double(parameter: Any) -> None:
    parameter.grad.mul_(2)


def _fused_optimiser(network: nn.Module) -> Found:
    hooks = [p.register_post_accumulate_grad_hook(_double) for p in network.parameters()]
    differentiate(network)
    for hook in hooks:
        hook.remove()
    return gradients(network)


def _tied(network: Any) -> Found:
    network.shift = network.body.bias
    differentiate_twice(network)
    return gradients(network)


def _hooked_since(network: nn.Module) -> Found:
    network.zero_grad()
    x, calls = rows(), list[Tensor]()
    energy = network(x)["energy"]
    hooks = [leaf.register_hook(lambda g: calls.append(g) or 3 * g) for leaf in (x, next(network.parameters()))]
    tpgen.ready(network)
    (slope,) = grad(energy, x, create_graph=True)
    (slope.square().sum() + energy).backward()
    for hook in hooks:
        hook.remove()
    return [*calls, *gradients(network, x)]


def _two_calls(network: nn.Module) -> Found:
    network.zero_grad()
    first, second, single = (network(rows(count)) for count in (5, 6, 1))
    (first["energy"] * second["rows"].square().sum() + single["energy"]).backward()
    return gradients(network)


STEPS = [
    _scaled_in_place,
    _hooked_since,
    *(_batched_second, _by_the_energy, _interrupted, _negated_in_place, _frozen_since, _fused_optimiser, _two_calls),
]


@pytest.mark.parametrize("learned", LEARNED)
@pytest.mark.parametrize("step", STEPS)
def test_gradients_are_the_networks(step: Callable, learned: Callable) -> None:
    compare(step, learned)


@pytest.mark.parametrize("learned", LEARNED)
@pytest.mark.parametrize("made", [Running, Spectral])
def test_a_pass_computes_with_the_buffers_of_its_call(made: type[nn.Module], learned: Callable) -> None:
    compare(_two_calls, learned, made)


def _by_strain(network: nn.Module) -> Found:
    x = rows()
    result = network(x)
    return list(grad(result["energy"], [x, result["strain"]], retain_graph=True, allow_unused=True))


def _leaves_of_results(network: Any) -> Found:
    result = call(network)
    (result["energy"] + result["idle"].exp().sum()).backward()
    return gradients(network, result["strain"])


@pytest.mark.parametrize("learned", LEARNED)
@pytest.mark.parametrize("step", [_by_strain, _leaves_of_results])
def test_results_may_be_leaves(step: Callable, learned: Callable) -> None:
    compare(step, learned, Strained)


def _by_attribute(network: Any) -> Found:
    return list(grad(call(network)["energy"], network.scale))


@pytest.mark.parametrize("learned", LEARNED)
def test_tensors_that_are_no_parameters_have_gradients(learned: Callable) -> None:
    compare(_by_attribute, learned, Attribute)


@pytest.mark.parametrize(("step", "learned"), [(_bias_written, differentiate), (_tied, call)])
def test_parameters_are_written_to_and_tied(step: Callable, learned: Callable) -> None:
    compare(step, learned)


def test_an_input_that_is_written_to_is_an_error() -> None:
    network = Energy().double()
    serve(network, "auto")
    call(network)
    tpgen.ready(network)
    x = rows().detach()
    network(x)
    tpgen.ready(network)
    energy = network(x)["energy"]
    x.add_(1)
    with pytest.raises(RuntimeError, match="a tensor given to it has changed"):
        energy.backward()


class Writes(Energy):
    """What forward leaves behind, beside results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.size, self.order = 0, 0, torch.zeros(1)
        self.seen: list[Any] = []

    def state(self) -> list[Any]:
        return [self.calls, self.size, self.order, len(self.seen), self.idle.detach().clone()]


class Counts(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.calls += 1
        return super().forward(x)


class Lists(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.seen.append(x)
        return super().forward(x)


class Sizes(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.size = len(x)
        return super().forward(x)


class Orders(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.order = x[:, 0].argsort()
        return super().forward(x)


class Parameters(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            self.idle.add_(1)
        return super().forward(x)


class Data(Writes):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.idle.data.add_(1)
        return super().forward(x)


@pytest.mark.parametrize("learned", LEARNED)
@pytest.mark.parametrize("made", [Counts, Lists, Sizes, Orders, Parameters, Data])
def test_what_calls_leave_behind_is_the_networks(made: type[nn.Module], learned: Callable) -> None:
    found = []
    for network in (made().double(), made().double()):
        if not found:
            serve(network, "auto")
        for _ in range(3):
            learned(network)
            tpgen.ready(network)
        network(rows(7))
        found.append(network.state())
    torch.testing.assert_close(*found)


def test_tensors_of_inference_are_taken_outside() -> None:
    network = Energy().double()
    with torch.inference_mode():
        x = rows().detach() + 0
    serve(network, "auto")
    with torch.no_grad():
        found = [network(x)["energy"] for _ in range(3) if tpgen.ready(network) is None]
    torch.testing.assert_close(found[0], found[-1])


class Keeps(Energy):
    def forward(self, x: Tensor) -> dict[str, Any]:
        self.last_rows = super().forward(x)["rows"]
        return {"energy": self.last_rows.sin().sum()}


@pytest.mark.parametrize("learned", LEARNED)
def test_a_network_that_keeps_a_result_is_freed(learned: Callable) -> None:
    network = Keeps().double()
    serve(network, "auto")
    for _ in range(2):
        learned(network)
    freed = weakref.ref(network)
    del network
    gc.collect()
    assert freed() is None


def _by_rows(network: nn.Module) -> Found:
    x = rows()
    result = network(x)
    return list(grad(result["energy"], [x, result["rows"]], allow_unused=True))


def _hooked_rows(network: nn.Module) -> Found:
    result = call(network)
    result["rows"].retain_grad()
    (result["energy"] + result["rows"].sum()).backward()
    return [result["rows"].grad, *gradients(network)]


@pytest.mark.parametrize("step", [_by_rows, _hooked_rows])
def test_results_that_others_are_computed_from(step: Callable[[nn.Module], Found]) -> None:
    compare(step, step)  # no program is built
    network = Energy().double()
    serve(network, "auto")
    for learned in (_by_the_energy, differentiate):
        learned(network)
        tpgen.ready(network)
    with pytest.raises(tpgen.TpgenError, match="program=False"):
        step(network)
