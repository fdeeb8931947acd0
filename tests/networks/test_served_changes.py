"""A network that has programs of its own is changed, copied and restored as ever."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import calls_of, compare, given, ready, twins
from tpgen.networks.served import serve_no_more

pytestmark = pytest.mark.usefixtures("interpreted")


def _step(network: nn.Module) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    network(given(), training=True)["forces"].square().sum().backward()
    optimiser.step()


def _data(network: nn.Module) -> None:
    for p in network.parameters():
        p.data.mul_(1.5)


def _other_parameter(network: Any) -> None:
    network.first.weight = nn.Parameter(network.first.weight.detach() + 1)


def _hook(network: Any) -> None:
    network.first.register_forward_hook(lambda _module, _given, found: 0.5 * found)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "optimiser": _step,
    "load_state_dict": lambda m: m.load_state_dict({k: 0.5 * x for k, x in m.state_dict().items()}),
    "data": _data,
    "other parameter": _other_parameter,
    "freeze": lambda m: m.requires_grad_(False),
    "freeze some": lambda m: m.first.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "an attribute": lambda m: setattr(m, "scale", -1.0),
    "a module": lambda m: setattr(m, "first", nn.Linear(3, 4).double().requires_grad_(False).apply(_ones)),
    "hook": _hook,
    "dtype and back": lambda m: m.float().double(),
}


def _ones(layer: nn.Module) -> None:
    for p in layer.parameters():
        p.data.fill_(1)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_count_from_the_next_call_on(change: str, counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    compare(stock, own)
    for network in (stock, own):
        CHANGES[change](network)
    compare(stock, own)
    compare(stock, own, atoms=7)
    tpgen.ready(own)
    compare(stock, own, atoms=8)
    assert len(counted) >= 1


def test_hooks_run_in_each_call_and_programs_come_back_without(counted: list[int]) -> None:
    _, own = twins()
    ready(own)
    calls: list[int] = []
    hook = own.first.register_forward_hook(lambda *_: calls.append(0))
    for _ in range(3):
        own(given())
    assert (len(calls), len(counted)) == (3, 0)
    hook.remove()
    tpgen.ready(own)
    own(given())
    assert (len(calls), len(counted)) == (3, 1)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: _from_file(m)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_have_programs_of_their_own(copied: Callable[[Any], Any], counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    other = copied(own)
    assert calls_of(other)._network is other
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    compare(stock, own)
    compare(stock.apply(lambda m: [p.data.zero_() for p in m.parameters()]) or stock, other)
    tpgen.ready(other)
    compare(stock, other)
    assert len(counted) == 2


def _from_file(network: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_shallow_copy_is_called_as_itself() -> None:
    _, own = twins()
    ready(own)
    other = copy.copy(own)
    other.scale = 7.0
    assert not torch.equal(other(given())["energy"], own(given())["energy"])


def test_a_network_that_is_served_no_more_is_as_it_was(counted: list[int]) -> None:
    stock, own = twins()
    ready(own)
    assert own.state_dict().keys() == stock.state_dict().keys()
    serve_no_more(own)
    assert vars(own).keys() == vars(stock).keys()
    compare(stock, own)
    assert not counted
