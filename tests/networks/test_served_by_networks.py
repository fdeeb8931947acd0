"""Calls that no program can serve are those of the network itself."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import Field, assert_same, calls_of, given, kind_of, ready, twins
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")


class Noisy(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        found = super().forward(data, **options)
        return {**found, "energy": found["energy"] + torch.bernoulli(torch.full((), 0.5))}


class Writes(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        self.last.bias.data.zero_()
        self.last.bias.detach().add_(1)
        return super().forward(data, **options)


class Decides(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        return super().forward(data, **options) if float(data["positions"].sum()) < 1e9 else {}


class Indexes(Field):
    def forward(self, data: dict[str, Tensor], **options: Any) -> dict[str, Any]:
        return super().forward({**data, "species": torch.arange(99)[data["species"]]}, **options)


@pytest.mark.parametrize(
    ("network", "why"), [(Noisy, "random numbers"), (Writes, "writes into a parameter"), (Decides, "asks for a number")]
)
def test_what_is_no_program_is_the_networks(network: type[nn.Module], why: str, counted: list[int]) -> None:
    own, stock = network().double(), network().double()
    serve(own, True)
    for _ in range(3):
        torch.manual_seed(1)
        found = own(given())
        torch.manual_seed(1)
        assert_same(found, stock(given()))
    assert why in kind_of(own).refused
    assert not counted


def test_errors_are_the_networks() -> None:
    stock, own = twins(Indexes)
    ready(own)
    for wrong in ({**given(), "species": torch.arange(5) + 100}, {"species": torch.arange(5)}):
        with pytest.raises((IndexError, KeyError)) as wanted:
            stock(dict(wrong))
        with pytest.raises(type(wanted.value)) as found:
            own(dict(wrong))
        assert str(found.value) == str(wanted.value)


OTHERWISE: dict[str, Callable[[nn.Module], Any]] = {
    "no_grad": lambda m: torch.no_grad()(m.forward_energies)(given()),
    "checkpoint": lambda m: checkpoint(m, given(), use_reentrant=False, forces=False)["energy"],
    "autocast": lambda m: _in(torch.autocast("cpu", torch.bfloat16), m.float(), torch.float32),
    "of others": lambda m: m({**given(), "positions": given()["positions"] * torch.ones(1, requires_grad=True)})[
        "energy"
    ],
    "anomaly": lambda m: _in(torch.autograd.detect_anomaly(), m),
}


def _in(mode: Any, network: nn.Module, dtype: torch.dtype = torch.float64) -> Tensor:
    data = given()
    with mode:
        return network({**data, "positions": data["positions"].to(dtype)})["energy"]


def _one() -> Tensor:
    return torch.ones(1, requires_grad=True)


class Energies(Field):
    def forward_energies(self, data: dict[str, Tensor]) -> Tensor:
        return self(data, forces=False)["energy"]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("way", OTHERWISE)
def test_calls_that_somebody_records_are_as_ever(way: str) -> None:
    stock, own = twins(Energies)
    ready(own)
    ready(own, forces=False)
    found, wanted = OTHERWISE[way](own), OTHERWISE[way](stock)
    assert found.requires_grad == wanted.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    if wanted.requires_grad and "checkpoint" in way:
        for network, x in ((own, found), (stock, wanted)):
            x.backward()
            assert network.first.weight.grad is not None


def test_functional_calls_use_the_parameters_that_they_are_given() -> None:
    stock, own = twins()
    ready(own, forces=False)
    changed = {name: 1.5 * p for name, p in stock.named_parameters()}
    found, wanted = (torch.func.functional_call(m, changed, (given(),), {"forces": False}) for m in (own, stock))
    assert_same(found, wanted)


class Held:
    """An object that holds tensors."""

    def __init__(self, atoms: int, **more: Any) -> None:
        self.data = given(atoms)
        vars(self).update(more)


class Wrapper(nn.Module):
    """As engines wrap networks: it takes objects, and the network inside gets tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Field()

    def forward(self, held: Held) -> Tensor:
        return self.model(held.data)["forces"]


class WrapperOfPairs(Wrapper):
    def forward(self, held: Held) -> Any:
        return super().forward(held), held


def test_a_wrapper_of_objects_is_served(counted: list[int]) -> None:
    stock, own = twins(Wrapper)
    for atoms in (5, 6):
        torch.testing.assert_close(own(Held(atoms)), stock(Held(atoms)), rtol=1e-12, atol=1e-12)
    assert not _inner_kinds(own)
    assert len(counted) == 1


def test_the_network_in_a_wrapper_is_served_where_the_wrapper_is_not(counted: list[int]) -> None:
    stock, own = twins(Wrapper)
    for atoms in (5, 6):
        found = own(Held(atoms, lock=Lock()))
        torch.testing.assert_close(found, stock(Held(atoms)), rtol=1e-12, atol=1e-12)
    assert not calls_of(own)._kinds
    assert _inner_kinds(own)
    assert len(counted) == 1
    stock, own = twins(WrapperOfPairs)  # it returns an object
    for atoms in (5, 6, 7):
        found, _ = own(Held(atoms))
        torch.testing.assert_close(found, stock(Held(atoms))[0], rtol=1e-12, atol=1e-12)
    assert _inner_kinds(own)
    assert len(counted) == 2


def _inner_kinds(own: Any) -> Any:
    return "_tpgen_calls" in vars(own.model) and calls_of(own.model)._kinds


def test_the_network_itself_is_called_where_somebody_asks_for_it(counted: list[int]) -> None:
    _, own = twins()
    ready(own)
    with bypassing_programs():
        own(given())
    assert not counted
    step = tpgen.compile_step(own)
    step(given())
    step(given(7))
    assert not counted


def test_the_outer_of_two_networks_is_served(counted: list[int]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Field()

        def forward(self, data: dict[str, Tensor]) -> Tensor:
            return self.inner(data)["forces"] * 2

    stock, own = twins(Outer)
    serve(own.inner, True)
    for atoms in (5, 6):
        torch.testing.assert_close(own(given(atoms)), stock(given(atoms)), rtol=1e-12, atol=1e-12)
    assert len(counted) == 1
    assert not calls_of(own.inner)._kinds
