"""A network of energies and forces with programs of its own, and its stock twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tpgen.networks import gradients
from tpgen.networks.kinds import CallKind
from tpgen.networks.served import Calls, serve


class Field(nn.Module):
    """Energies, forces and more of positions, as the field's networks give them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.register_buffer("shift", torch.ones(1))
        self.scale = 2.0

    def forward(self, data: dict[str, Tensor], training: bool = False, forces: bool = True) -> dict[str, Any]:
        positions = data["positions"].requires_grad_()
        strain = torch.zeros(3, 3, dtype=positions.dtype).requires_grad_()
        data["moved"] = positions + positions @ strain
        energies = self.last(self.first(data["moved"]).sin()) * self.scale + self.shift
        energy = energies.sum()
        found = {"energy": energy, "energies": energies, "strain": strain, "forces": None, "species": data["species"]}
        if forces:
            (slope,) = torch.autograd.grad(energy, positions, create_graph=training)
            found["forces"] = -slope
        return found


def given(atoms: int = 5, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "positions": torch.randn(atoms, 3, generator=generator, dtype=torch.float64),
        "species": torch.arange(atoms),
    }


@contextmanager
def served_calls() -> Iterator[list[int]]:
    """A list that gets an entry for each call that a program serves."""
    calls: list[int] = []
    run = CallKind.served

    def served(self: CallKind, *rest: Any) -> Any:
        found = run(self, *rest)
        calls.extend([0] * (found is not None))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallKind, "served", served)
        yield calls


@pytest.fixture
def counted() -> Iterator[list[int]]:
    """An entry for each call that a program has served."""
    with served_calls() as calls:
        yield calls


@pytest.fixture
def recomputed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each backward pass that the network computes after a program has served the call."""
    calls: list[int] = []
    compute = gradients._compute_gradients_by_network
    monkeypatch.setattr(gradients, "_compute_gradients_by_network", lambda *of: (calls.append(0), compute(*of))[1])
    return calls


def twins(network: Callable[[], nn.Module] = Field, when: Any = True) -> tuple[nn.Module, nn.Module]:
    stock, own = network().double(), network().double()
    serve(own, when)
    return stock, own


def ready(network: nn.Module, **options: Any) -> None:
    network(given(), **options)
    tpgen.ready(network)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, x in wanted.items():
        y = found[name]
        if x is None:
            assert y is None
        else:
            torch.testing.assert_close(y, x, rtol=1e-12, atol=1e-12)
            assert (y.requires_grad, y.is_leaf) == (x.requires_grad, x.is_leaf), name


def compare(stock: nn.Module, own: nn.Module, atoms: int = 6, **options: Any) -> None:
    """Results, and what becomes of the arguments."""
    one, other = given(atoms, atoms), given(atoms, atoms)
    found, wanted = own(one, **options), stock(other, **options)
    assert_same(found, wanted)
    assert_same(one, other)
    assert found["species"] is one["species"]


def calls_of(network: nn.Module) -> Calls:
    return vars(network)["_tpgen_calls"]


def kind_of(network: nn.Module) -> CallKind:
    ((kind,),) = calls_of(network)._kinds.values()
    return kind
