"""Changes that pass by a name's value, each in both ways of looking, beside the network in eager."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.ways import way  # noqa: F401  a fixture
from tpgen.kernels.runtime.native import identity
from tpgen.kernels.runtime.native.identity import ABSENT
from tpgen.networks.parts import FUNCTION, LIST, attributes_of, closure_cell_content, items_of
from tpgen.networks.reach import RecordedEntry, RecordedObject
from tpgen.networks.signature import ParameterSlots
from tpgen.networks.watch import Watch

Row = tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor], Callable[[Any], object]]


def one(value: float = 1.0) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(count)).double()


class Holding(nn.Module):
    """A network that holds an object, of which one function reads."""

    def __init__(self, held: Any, read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3).double()
        self.inner = nn.Sequential(nn.Tanh(), nn.Linear(3, 3).double())
        self.held, self.read = held, read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, self.linear(x))


class Tripled(Holding):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def of_class(**names: Any) -> Any:
    """An object of a class of its own, with such attributes of the class, and a base that has others."""
    base = type("Base", (), {"__module__": __name__, "power": 1.0})
    return type("Kind", (base,), {"__module__": __name__, **names})()


def slotted(**names: float) -> Any:
    held = type("Slotted", (), {"__module__": __name__, "__slots__": ("scale", "beside")})()
    for name, value in names.items():
        setattr(held, name, value)
    return held


def namespace(**names: Any) -> Any:
    """An object of a class of its own with attributes of its own."""
    held = of_class()
    vars(held).update(names)
    return held


def function(by: float = 2.0) -> Callable[..., Tensor]:
    def scale(x: Tensor, and_by: float = 1.0, *, more: float = 1.0) -> Tensor:
        return x * by * and_by * more * getattr(scale, "last", 1.0)

    vars(scale)["last"] = 1.0
    return scale


def both(*changes: object) -> None:
    """Several changes as one expression."""


def replaced(module: Any, **names: Any) -> None:
    module.__dict__ = {**vars(module), **names}


def again(table: dict[str, Any], name: str, value: Any) -> None:
    del table[name]
    table[name] = value


def as_buffer(module: nn.Module, name: str) -> None:
    value = 2 * getattr(module, name).detach()
    delattr(module, name)
    module.register_buffer(name, value)


def other_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(2 * x.detach()) for name, x in module._parameters.items() if x is not None}


def moved(table: dict[str, Any], name: str) -> None:
    table[name] = table.pop(name)


CHANGES: dict[str, Row] = {
    "a dict in the place of an equal one": (
        lambda: {"a": 2.0},
        lambda n, x: x * n.held["a"],
        lambda n: both(setattr(n, "held", dict(n.held)), n.held.update(a=3.0)),
    ),
    "a name that goes and comes": (
        lambda: {"a": 2.0, "b": 5.0},
        lambda n, x: x * n.held["a"],
        lambda n: again(n.held, "a", 3.0),
    ),
    "the order of names": (
        lambda: {"a": 2.0, "b": 5.0},
        lambda n, x: x * next(iter(n.held.values())),
        lambda n: again(n.held, "a", 2.0),
    ),
    "the order of an ordered dict": (
        lambda: OrderedDict(a=2.0, b=5.0),
        lambda n, x: x * next(iter(n.held.values())),
        lambda n: n.held.move_to_end("a"),
    ),
    "items that change places": (
        lambda: [2.0, 5.0],
        lambda n, x: x * n.held[0],
        lambda n: n.held.reverse(),
    ),
    "a list that is emptied and filled": (
        lambda: [2.0, 5.0],
        lambda n, x: x * n.held[0],
        lambda n: both(n.held.clear(), n.held.extend([5.0, 2.0])),
    ),
    "another list of the same length": (
        lambda: ([2.0], [1.0, 2.0]),
        lambda n, x: x * n.held[1][0],
        lambda n: n.held[1].__setitem__(slice(None), [4.0, 2.0]),
    ),
    "the dict of a module": (lambda: 2.0, lambda n, x: x * n.held, lambda n: replaced(n, held=3.0)),
    "the dict of an object": (
        lambda: namespace(scale=2.0),
        lambda n, x: x * n.held.scale,
        lambda n: replaced(n.held, scale=3.0),
    ),
    "the dict of a function": (
        function,
        lambda n, x: n.held(x),
        lambda n: setattr(n.held, "__dict__", {"last": 3.0}),
    ),
    "the class of a module": (lambda: 2.0, lambda n, x: x * n.held, lambda n: setattr(n, "__class__", Tripled)),
    "the class of an object": (
        lambda: of_class(scale=2.0),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(n.held, "__class__", type(of_class(scale=3.0))),
    ),
    "the bases of a class": (
        lambda: of_class(scale=2.0),
        lambda n, x: x * n.held.power,
        lambda n: setattr(type(n.held), "__bases__", (type("Other", (), {"power": 3.0}),)),
    ),
    "an attribute of an object whose class has it": (
        lambda: of_class(scale=2.0),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(n.held, "scale", 3.0),
    ),
    "an attribute of a class that had none": (
        of_class,
        lambda n, x: x * getattr(n.held, "scale", 2.0),
        lambda n: setattr(type(n.held), "scale", 3.0),
    ),
    "an attribute of a class that comes first": (
        of_class,
        lambda n, x: x * n.held.power,
        lambda n: setattr(type(n.held), "power", 3.0),
    ),
    "a property before an attribute": (
        lambda: namespace(scale=2.0),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(type(n.held), "scale", property(lambda self: 3.0)),
    ),
    "a property before a submodule": (
        lambda: type("Kind", (Holding,), {"__module__": __name__})(2.0, lambda n, x: n.linear(x) * n.held),
        lambda n, x: n.held(x),
        lambda n: setattr(type(n.held), "linear", property(lambda self: torch.cos)),
    ),
    "a property": (
        lambda: of_class(scale=property(lambda self: 2.0)),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(type(n.held), "scale", property(lambda self: 3.0)),
    ),
    "a descriptor": (
        lambda: of_class(scale=type("Giving", (), {"__get__": lambda self, *_: 2.0, "__module__": __name__})()),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(type(vars(type(n.held))["scale"]), "__get__", lambda self, *_: 3.0),
    ),
    "a slot": (lambda: slotted(scale=2.0), lambda n, x: x * n.held.scale, lambda n: setattr(n.held, "scale", 3.0)),
    "a slot that was empty": (
        lambda: slotted(beside=1.0),
        lambda n, x: x * getattr(n.held, "scale", 2.0),
        lambda n: setattr(n.held, "scale", 3.0),
    ),
    "a slot that is emptied": (
        lambda: slotted(scale=2.0),
        lambda n, x: x * getattr(n.held, "scale", 3.0),
        lambda n: delattr(n.held, "scale"),
    ),
    "None, which goes": (
        lambda: namespace(),
        lambda n, x: x * (3.0 if getattr(n, "last", 2.0) == 2.0 else 1.0),
        lambda n: delattr(n, "last"),
    ),
    "a cell": (
        function,
        lambda n, x: n.held(x),
        lambda n: setattr(n.held.__closure__[0], "cell_contents", 3.0),
    ),
    "a default": (function, lambda n, x: n.held(x), lambda n: setattr(n.held, "__defaults__", (3.0,))),
    "a default of a keyword, in place": (
        function,
        lambda n, x: n.held(x),
        lambda n: n.held.__kwdefaults__.update(more=3.0),
    ),
    "the code of a function": (
        lambda: SimpleNamespace(scale=lambda x: 2 * x),
        lambda n, x: n.held.scale(x),
        lambda n: setattr(n.held.scale, "__code__", (lambda x: 3 * x).__code__),
    ),
    "a buffer where no name was": (
        lambda: 0,
        lambda n, x: x * getattr(n, "factor", 2.0),
        lambda n: n.register_buffer("factor", one(3)),
    ),
    "a parameter where no name was": (
        lambda: 0,
        lambda n, x: x * getattr(n.inner, "factor", 2.0),
        lambda n: setattr(n.inner, "factor", nn.Parameter(one(3))),
    ),
    "a module where no name was": (
        lambda: 0,
        lambda n, x: getattr(n, "later", torch.sin)(x),
        lambda n: n.add_module("later", nn.Tanh()),
    ),
    "a parameter as a buffer": (lambda: 0, lambda n, x: n.inner(x), lambda n: as_buffer(n.inner[1], "weight")),
    "the table of parameters": (
        lambda: 0,
        lambda n, x: n.inner(x),
        lambda n: setattr(n.inner[1], "_parameters", other_weights(n.inner[1])),
    ),
    "the table of modules": (
        lambda: 0,
        lambda n, x: n.inner(x),
        lambda n: setattr(n.inner, "_modules", {"0": nn.ReLU()}),
    ),
    "the order of a sequence": (lambda: 0, lambda n, x: n.inner(x), lambda n: moved(n.inner._modules, "0")),
    "a tensor of an object, unseen": (
        lambda: namespace(scale=one(2)),
        lambda n, x: x * n.held.scale,
        lambda n: n.held.scale.data.fill_(3),
    ),
    "memory of a tensor": (
        lambda: namespace(scale=one(2)),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(n.held.scale, "data", one(3)),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_in_both_ways(change: str, way: str, interpreted: list[int]) -> None:  # noqa: F811
    held, read, changed = CHANGES[change]
    network = Holding(held(), read)
    vars(network)["last"] = None if "None" in change else torch.sin
    step = tpgen.compile_step(network, rows())
    before = step(rows())
    torch.testing.assert_close(step(rows(7)), network(rows(7)), rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 1, "what stands needs no other program"
    with torch.no_grad():
        changed(network)
    for count in (5, 7):
        torch.testing.assert_close(step(rows(count)), network(rows(count)).detach(), rtol=1e-12, atol=1e-12)
    assert not torch.equal(step(rows()), before)


def _objects() -> dict[str, Any]:
    return {
        "dict": {"a": 1.0, "b": 2.0, "c": 3.0},
        "ordered": OrderedDict(a=1.0, b=2.0),
        "list": [1.0, 2.0, 3.0],
        "object": namespace(scale=2.0),
        "slots": slotted(scale=2.0),
        "function": function(),
    }


# of the objects by names, with a number of 0, 1 or 2
MOVES: list[Callable[[Any, float], object]] = [
    lambda of, n: of["dict"].update(a=n),
    lambda of, n: of["dict"].pop("b", None),
    lambda of, n: of["dict"].update(b=n),
    lambda of, n: again(of["dict"], "a", of["dict"]["a"]),
    lambda of, n: of["ordered"].update(a=n),
    lambda of, n: of["ordered"].move_to_end("a"),
    lambda of, n: of["list"].__setitem__(int(n) % max(len(of["list"]), 1), n) if of["list"] else None,
    lambda of, n: of["list"].append(n),
    lambda of, n: of["list"].clear() if len(of["list"]) > 4 else None,
    lambda of, n: of["list"].sort(),
    lambda of, n: setattr(of["object"], "scale", n),
    lambda of, n: replaced(of["object"], scale=vars(of["object"])["scale"]),
    lambda of, n: setattr(of["object"], "__class__", type(of_class())),
    lambda of, n: setattr(of["slots"], "scale", n),
    lambda of, n: vars(of["slots"].__class__).get("scale").__set__(of["slots"], None),
    lambda of, n: setattr(of["function"].__closure__[0], "cell_contents", n),
    lambda of, n: setattr(of["function"], "__defaults__", (n,) if n else None),
    lambda of, n: None,
]


def _watch(of: dict[str, Any]) -> Watch:
    parts = {"dict": items_of, "ordered": items_of, "list": LIST, "object": attributes_of, "slots": attributes_of}
    wholes = [RecordedObject(name, of[name], by, by(of[name]), 0) for name, by in parts.items()]
    cell = of["function"].__closure__[0]
    wholes += [RecordedObject("cell", cell, closure_cell_content, closure_cell_content(cell), 0)]
    wholes += [RecordedObject("function", of["function"], FUNCTION, FUNCTION(of["function"]), 0)]
    places = [RecordedEntry(of["dict"], name, of["dict"].get(name, ABSENT)) for name in ("a", "b", "z")]
    return Watch(places, wholes, ())


@needs_compiler
def test_both_ways_agree_on_any_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, of, said = random.Random(0), _objects(), []
    watches: list[Watch] = []
    for _ in range(2000):
        if not watches:
            watches = [_watch(of)]
            with monkeypatch.context() as only:
                only.setattr(identity, "_make_identity_test_method", lambda: None)
                watches.append(_watch(of))
        chosen.choice(MOVES)(of, chosen.choice([0.0, 1.0, 2.0, float("1.5")]))
        stand = watches[0].is_unchanged()
        with monkeypatch.context() as only:
            only.setattr(identity, "_make_identity_test_method", lambda: None)
            assert stand == watches[1].is_unchanged()
        said.append(stand)
        watches = watches if stand else []
    assert 200 < sum(said) < 1800


def test_parameters_in_their_places(way: str) -> None:  # noqa: F811
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    slots = ParameterSlots(network, gradients=False)
    assert slots.is_unchanged()
    assert slots.is_unchanged()
    with torch.no_grad():
        network[0].weight.mul_(2)
    network[0].bias = nn.Parameter(torch.ones(3))
    assert slots.is_unchanged()
    assert slots.tensors()[1] is network[0].bias
    network[1].weight = nn.Parameter(torch.ones(3, 3))
    assert not slots.is_unchanged(), "one of two that are one"
    network[0].weight = network[1].weight
    assert slots.is_unchanged()
    network[0].bias = None
    assert not slots.is_unchanged()
    network[0].bias = network[1].bias
    assert slots.is_unchanged()


@needs_compiler
def test_a_program_of_a_usual_network_asks_python_for_nothing(interpreted: list[int]) -> None:  # noqa: F811
    network = Holding([2.0], lambda n, x: n.inner(x) * n.held[0])
    step = tpgen.compile_step(network, rows())
    assert step._program.is_unchanged()
    unmoved, unseen = step._program.written.reads._watch._unmoved
    assert unmoved is not None
    assert unmoved()
    assert not unseen
