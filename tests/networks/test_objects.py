"""Objects that a network is given: programs read what they hold, and write into them, as the network does."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.networks.conversion.convert import convert
from tpgen.networks.objects import has_attributes
from tpgen.networks.step import compile_step

pytestmark = needs_compiler


class Store:
    """As that of PyTorch Geometric's `Data`: a dict, a class, and a weak reference to its owner."""

    def __init__(self, owner: Graph, names: dict[str, Any]) -> None:
        self.owner, self.names, self.kind = weakref.ref(owner), names, Store


class Graph:
    """As PyTorch Geometric's `Data`: attributes stand in its store."""

    scale = 2.0

    def __init__(self, **names: Any) -> None:
        self.__dict__["store"] = Store(self, names)

    def __getattr__(self, name: str) -> Any:
        if name == "store" or name.startswith("__"):
            raise AttributeError(name)
        return self.store.names[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.store.names[name] = value

    def __delattr__(self, name: str) -> None:
        del self.store.names[name]


@dataclass
class Fields:
    pos: Tensor
    x: Tensor
    edge_index: Tensor
    factor: float = 1.0
    out: Any = None


class Slotted:
    __slots__ = ("edge_index", "out", "pos", "x")

    def __init__(self, **names: Any) -> None:
        for name, value in names.items():
            setattr(self, name, value)


class Named(dict):  # of C, beneath
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("4x0e+4x1o", "0e+1o", "4x0e+4x1o")

    def forward(self, data: Any) -> Any:
        factor = data.factor if isinstance(data, Fields) else 1.0
        i, j = data.edge_index
        sphere = o3.spherical_harmonics([0, 1], data.pos[j] - data.pos[i], True)
        messages = self.product(data.x[i], sphere) * getattr(type(data), "scale", 1.0)
        data.out = torch.zeros_like(data.x).index_add(0, j, messages) * factor
        return data


class Consumes(Layer):
    def forward(self, data: Any) -> Any:
        owner = data.store.owner()
        out = super().forward(owner).out
        del data.edge_index
        return out


def names(atoms: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(atoms)
    return {
        "pos": torch.randn(atoms, 3, generator=g),
        "x": torch.randn(atoms, 16, generator=g),
        "edge_index": torch.randint(atoms, (2, 4 * atoms), generator=g),
    }


def layers(kind: type[nn.Module] = Layer) -> tuple[nn.Module, nn.Module]:
    """A network, and a converted copy that takes programs at its first calls."""
    torch.manual_seed(0)
    stock = kind().eval()
    return stock, convert(deepcopy(stock), program=True)


def programs(network: nn.Module) -> list[Any]:
    return [kind.program for kinds in vars(network)["_tpgen_calls"]._kinds.values() for kind in kinds]


@pytest.mark.parametrize("kind", [Graph, SimpleNamespace, Fields])
def test_a_program_reads_and_writes_what_an_object_holds(kind: Any) -> None:
    stock, made = layers()
    for atoms in (5, 9, 2):
        given, wanted = kind(**names(atoms)), kind(**names(atoms))
        with torch.no_grad():
            assert made(given) is given
            torch.testing.assert_close(given.out, stock(wanted).out)
        assert (given.store.owner() if kind is Graph else given) is given
    (program,) = programs(made)
    assert program is not None


def test_names_that_are_lost_and_owners_that_are_asked_for() -> None:
    stock, made = layers(Consumes)
    for atoms in (5, 7):
        given, wanted = Graph(**names(atoms)), Graph(**names(atoms))
        with torch.no_grad():
            torch.testing.assert_close(made(given), stock(wanted))
        assert [*given.store.names] == [*wanted.store.names] == ["pos", "x", "out"]
    assert all(programs(made))


def test_constants_and_classes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, made = layers()
    for factor, scale in ((1.0, 2.0), (3.0, 2.0), (3.0, 5.0), (1.0, 5.0)):
        monkeypatch.setattr(Graph, "scale", scale)
        for kind in (Graph, Fields):
            more = {"factor": factor} if kind is Fields else {}
            given, wanted = kind(**names(6), **more), kind(**names(6), **more)
            with torch.no_grad():
                torch.testing.assert_close(made(given).out, stock(wanted).out)


def has_a_lock() -> SimpleNamespace:
    return SimpleNamespace(**names(5), lock=Lock())


def holds_itself() -> SimpleNamespace:
    made = SimpleNamespace(**names(5))
    made.itself = made
    return made


def refers_elsewhere() -> SimpleNamespace:
    return SimpleNamespace(**names(5), other=weakref.ref(Layer))


OTHERS = [has_a_lock, holds_itself, refers_elsewhere, lambda: Slotted(**names(5)), lambda: Named(names(5))]


@pytest.mark.parametrize("make", OTHERS)
def test_the_network_serves_what_cannot_be_taken_apart(make: Callable[[], Any]) -> None:
    stock, made = layers()
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(made(make()).out, stock(make()).out)
    assert not any(programs(made))


class Twice(Layer):
    def forward(self, one: Any, other: Any) -> Tensor:
        return super().forward(one).out + (0 if other.out is None else other.out)


def test_the_network_serves_an_object_in_two_places() -> None:
    stock, made = layers(Twice)
    for atoms in (5, 8):
        found, wanted = Fields(**names(atoms)), Fields(**names(atoms))
        with torch.no_grad():
            torch.testing.assert_close(made(found, found), stock(wanted, wanted))
    assert not any(programs(made))


def test_gradients_are_those_of_the_network() -> None:
    stock, made = layers()
    for _ in range(2):
        found = []
        for network in (made, stock):
            given = Graph(**names(6))
            given.pos.requires_grad_()
            out = network(given).out
            found.append((out, *torch.autograd.grad(out.square().sum(), [given.pos, *network.parameters()])))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_step_takes_objects_and_names_what_differs() -> None:
    class Returns(Layer):
        def forward(self, data: Any) -> Tensor:
            return super().forward(data).out

    stock, made = layers(Returns)
    step = compile_step(made, SimpleNamespace(**names(5)))
    with torch.no_grad():
        torch.testing.assert_close(step(SimpleNamespace(**names(8))), stock(SimpleNamespace(**names(8))))
    with pytest.raises(InputError, match=r"has also argument 0\.more"):
        step(SimpleNamespace(**names(8), more=1))


class Calls(Graph):
    """An object that can be called, as PyTorch Geometric's can."""

    def __call__(self, *names: str) -> list[Any]:
        return [self.store.names[name] for name in names]


def test_a_step_returns_objects_of_values() -> None:
    stock, made = layers()
    step = compile_step(made)
    for atoms in (5, 8):
        given, wanted = Calls(**names(atoms)), Calls(**names(atoms))
        with torch.no_grad():
            found = step(given)
            stock(wanted)
        assert type(found) is Calls
        assert found is not given
        assert found.store.owner() is found
        for one, other in zip(found(*wanted.store.names), wanted(*wanted.store.names), strict=True):
            torch.testing.assert_close(one, other)
    assert step._program is not None


class ReturnsBoth(Layer):
    def forward(self, data: Any) -> Any:
        return super().forward(data), data.out


class MakesOne(Layer):
    def forward(self, data: Any) -> Any:
        out = super().forward(data).out
        return SimpleNamespace(out=out, parts={"first": out[:1], "named": SimpleNamespace(one=1)})


def test_objects_that_a_network_makes_and_those_that_it_gives_back() -> None:
    stock, made = layers(MakesOne)
    for atoms in (5, 8):
        with torch.no_grad():
            found, wanted = made(Graph(**names(atoms))), stock(Graph(**names(atoms)))
        torch.testing.assert_close((found.out, found.parts["first"]), (wanted.out, wanted.parts["first"]))
        assert found.parts["named"] == wanted.parts["named"]
    assert all(programs(made))
    stock, made = layers(ReturnsBoth)
    for atoms in (5, 8):
        given = Graph(**names(atoms))
        with torch.no_grad():
            back, out = made(given)
            torch.testing.assert_close(out, stock(Graph(**names(atoms)))[1])
        assert back is given
        assert back.out is out
    assert not any(programs(made))


def test_only_what_is_its_class_and_its_dict_is_taken_apart() -> None:
    assert [has_attributes(x) for x in (Graph(), SimpleNamespace(), Fields(*3 * [torch.ones(1)]))] == [True] * 3
    others = [
        Slotted(),
        Named(),
        Layer(),
        torch.ones(1),
        Lock(),
        len,
        Graph,
        ValueError(),
        1,
        "x",
        None,
        weakref.ref(Graph),
    ]
    assert not any(map(has_attributes, others))
