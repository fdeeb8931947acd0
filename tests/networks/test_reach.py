"""What a program knows of all that `forward` reaches: each kind is changed, beside the network in eager."""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks import reached
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.test_training import squared
from tests.networks.ways import way  # noqa: F401  a fixture
from tpgen.base.errors import DeployError, InputError

NUMBER = 2.0
NAMES: dict[str, Any] = {"a": 2.0}
SETTING = ContextVar("a setting", default=2.0)


def one(value: float = 1.0) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


TABLE = one(2.0)


@dataclass
class Settings:
    scale: float = 2.0
    names: dict[str, float] = field(default_factory=lambda: {"a": 2.0})


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale


class Kept(NamedTuple):
    names: dict[str, float]


class Constants:
    scale = 2.0


class Base(nn.Module):
    factor = 2.0

    def scaled(self, x: Tensor) -> Tensor:
        return x * 2


@dataclass
class SimpleOther:
    scale: float
    unread: Any


def put(held: memoryview, value: int) -> None:
    held[0] = value


def helper(x: Tensor, by: float = 2.0, *, more: float = 1.0) -> Tensor:
    return x * by * more


def calling(x: Tensor) -> Tensor:
    return deeper(x)


def deeper(x: Tensor) -> Tensor:
    return x * NUMBER


def maker(by: float) -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
    def scale(x: Tensor) -> Tensor:
        return x * by

    def change(value: float) -> None:
        nonlocal by
        by = value

    return scale, change


def decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    factors = [2.0]

    @wraps(function)
    def scale(x: Tensor) -> Tensor:
        return function(x) * factors[0]

    vars(scale)["factors"] = factors
    return scale


@decorated
def doubled(x: Tensor) -> Tensor:
    return x + 1


class Holding(Base):
    """A network that holds an object, of which one function reads."""

    def __init__(self, held: Any, read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3).double()
        self.held, self.read = held, read

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.read(self, self.linear(x))}


Row = tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor], Callable[[Any], object]]
# what the network holds, how forward reads it, and what changes
CHANGES: dict[str, Row] = {
    "a dict": (lambda: {"a": 2.0}, lambda n, x: x * n.held["a"], lambda n: n.held.update(a=3.0)),
    "a name of a dict": (lambda: {"a": 2.0}, lambda n, x: x * sum(map(ord, n.held)), lambda n: n.held.update(b=3.0)),
    "an equal number of another type": (
        lambda: {"a": 1.0},
        lambda n, x: x * (2 if isinstance(n.held["a"], float) else 3),
        lambda n: n.held.update(a=1),
    ),
    "an ordered dict": (
        lambda: OrderedDict(a=2.0, b=3.0),
        lambda n, x: x * next(iter(n.held.values())),
        lambda n: n.held.move_to_end("a"),
    ),
    "a method of a dict": (
        lambda: (lambda names: (names, names.get, names.__getitem__))({"a": 2.0}),
        lambda n, x: x * n.held[1]("a") * n.held[2]("a"),
        lambda n: n.held[0].update(a=3.0),
    ),
    "a view of a dict": (
        lambda: (lambda names: (names.values(), names))({"a": 2.0}),
        lambda n, x: x * sum(n.held[0]),
        lambda n: n.held[1].update(a=3.0),
    ),
    "memory of bytes": (lambda: memoryview(bytearray([2])), lambda n, x: x * n.held[0], lambda n: put(n.held, 3)),
    "an object beside what nobody reads": (
        lambda: SimpleOther(2.0, itertools.count()),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(n.held, "scale", 3.0),
    ),
    "a list": (lambda: [2.0], lambda n, x: x * n.held[0], lambda n: n.held.__setitem__(0, 3.0)),
    "a longer list": (lambda: [2.0], lambda n, x: x * len(n.held), lambda n: n.held.append(3.0)),
    "a nested list": (lambda: ([[2.0]],), lambda n, x: x * n.held[0][0][0], lambda n: n.held[0][0].insert(0, 3.0)),
    "a set": (lambda: {2.0}, lambda n, x: x * sum(n.held), lambda n: n.held.add(3.0)),
    "a deque": (lambda: deque([2.0], 1), lambda n, x: x * n.held[0], lambda n: n.held.append(3.0)),
    "bytes": (lambda: bytearray([2]), lambda n, x: x * n.held[0], lambda n: n.held.__setitem__(0, 3)),
    "an array": (lambda: np.full(3, 2.0), lambda n, x: x * torch.tensor(n.held), lambda n: n.held.fill(3.0)),
    "a dataclass": (Settings, lambda n, x: x * n.held.scale, lambda n: setattr(n.held, "scale", 3.0)),
    "a dict of a dataclass": (Settings, lambda n, x: x * n.held.names["a"], lambda n: n.held.names.update(a=3.0)),
    "a namespace": (
        lambda: SimpleNamespace(scale=2.0),
        lambda n, x: x * n.held.scale,
        lambda n: setattr(n.held, "scale", 3.0),
    ),
    "slots": (Slotted, lambda n, x: n.held(x), lambda n: setattr(n.held, "scale", 3.0)),
    "a named tuple": (lambda: Kept({"a": 2.0}), lambda n, x: x * n.held.names["a"], lambda n: n.held[0].update(a=3.0)),
    "a setting": (lambda: SETTING, lambda n, x: x * n.held.get(), lambda n: n.held.set(3.0)),
    "a tensor in a list": (lambda: [one(2)], lambda n, x: x * n.held[0], lambda n: n.held.__setitem__(0, one(3))),
    "a tensor in a list, in place": (lambda: [one(2)], lambda n, x: x * n.held[0], lambda n: n.held[0].fill_(3)),
    "a tensor in a tuple, unseen": (lambda: (one(2),), lambda n, x: x * n.held[0], lambda n: n.held[0].data.fill_(3)),
    "numbers of a tensor": (lambda: (one(2),), lambda n, x: x * float(n.held[0]), lambda n: n.held[0].data.fill_(3)),
    "a layer in a list": (
        lambda: [nn.Linear(3, 3).double()],
        lambda n, x: n.held[0](x),
        lambda n: n.held[0].weight.data.fill_(3),
    ),
    "another weight in a list": (
        lambda: [nn.Linear(3, 3).double()],
        lambda n, x: n.held[0](x),
        lambda n: setattr(n.held[0], "weight", nn.Parameter(torch.ones(3, 3).double())),
    ),
    "an attribute of the class": (lambda: 0, lambda n, x: x * n.factor, lambda n: setattr(Base, "factor", 3.0)),
    "a class that overrides it": (
        lambda: 0,
        lambda n, x: x * n.factor,
        lambda n: setattr(Holding, "factor", 3.0),
    ),
    "a method of the class": (
        lambda: 0,
        lambda n, x: n.scaled(x),
        lambda n: setattr(Base, "scaled", lambda self, x: x * 3),
    ),
    "a constant of another class": (
        lambda: 0,
        lambda n, x: x * Constants.scale,
        lambda n: setattr(Constants, "scale", 3.0),
    ),
    "a class that it holds": (
        lambda: Constants,
        lambda n, x: x * getattr(n.held, "scale"),  # noqa: B009
        lambda n: setattr(Constants, "scale", 3.0),
    ),
    "a class in a function": (
        lambda: 0,
        lambda n, x: (n.held and x) or Slotted()(x),
        lambda n: setattr(Slotted, "__call__", lambda self, x: x * 3),
    ),
    "a global": (lambda: 0, lambda n, x: x * NUMBER, lambda n: globals().update(NUMBER=3.0)),
    "a global that another function reads": (
        lambda: 0,
        lambda n, x: calling(x),
        lambda n: globals().update(NUMBER=3.0),
    ),
    "a dict in a global": (lambda: 0, lambda n, x: x * NAMES["a"], lambda n: NAMES.update(a=3.0)),
    "a tensor in a global": (lambda: 0, lambda n, x: x * TABLE, lambda n: TABLE.fill_(3)),
    "a function in a global": (
        lambda: 0,
        lambda n, x: calling(x),
        lambda n: globals().update(deeper=lambda x: x * 3),
    ),
    "a name of another file": (lambda: 0, lambda n, x: x * reached.SCALE, lambda n: setattr(reached, "SCALE", 3.0)),
    "a name that hides one of Python's": (
        lambda: 0,
        lambda n, x: x * max(1, 2),
        lambda n: globals().update(max=lambda *of: 3),
    ),
    "a closure": (lambda: maker(2.0), lambda n, x: n.held[0](x), lambda n: n.held[1](3.0)),
    "a closure of a decorator": (
        lambda: doubled,
        lambda n, x: doubled(x),
        lambda n: doubled.factors.append(3.0) or doubled.factors.reverse(),
    ),
    "a default": (lambda: 0, lambda n, x: helper(x), lambda n: setattr(helper, "__defaults__", (3.0,))),
    "a default of a keyword": (
        lambda: 0,
        lambda n, x: helper(x),
        lambda n: setattr(helper, "__kwdefaults__", {"more": 3.0}),
    ),
    "the code of a function": (
        lambda: 0,
        lambda n, x: helper(x),
        lambda n: setattr(helper, "__code__", (lambda x, by=2.0, *, more=1.0: x * 7).__code__),
    ),
    "arguments of a partial": (
        lambda: partial(helper, more=2.0),
        lambda n, x: n.held(x),
        lambda n: n.held.keywords.update(more=3.0),
    ),
    "an attribute by vars": (lambda: 2.0, lambda n, x: x * vars(n)["held"], lambda n: setattr(n, "held", 3.0)),
    "forward of torch's": (
        lambda: nn.Tanh(),
        lambda n, x: n.held(x),
        lambda n: setattr(nn.Tanh, "forward", lambda self, x: x * 3),
    ),
}
_STATE = (Base, Holding, Constants, Slotted, nn.Tanh)


@pytest.fixture(autouse=True)
def unchanged() -> Any:
    """Leave the globals and classes of this file as they were."""
    names, classes = dict(globals()), [(of, dict(vars(of))) for of in _STATE]
    function = (helper.__code__, helper.__defaults__, dict(helper.__kwdefaults__ or {}))
    yield
    for name in [name for name in globals() if name not in names]:
        del globals()[name]
    globals().update(names)
    for of, held in classes:
        for name in [name for name in vars(of) if name not in held]:
            delattr(of, name)
        for name in ("factor", "scaled", "scale", "__call__", "forward"):
            if name in held and name in vars(of) and vars(of)[name] is not held[name]:
                setattr(of, name, held[name])
    helper.__code__, helper.__defaults__, helper.__kwdefaults__ = function
    NAMES.update(a=2.0)
    TABLE.fill_(2.0)
    reached.SCALE = 2.0
    doubled.factors[:] = [2.0]  # type: ignore[attr-defined]
    SETTING.set(2.0)


def rows(count: int = 5) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(count)).double()


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_forward_reads_is_followed(change: str, way: str, interpreted: list[int]) -> None:  # noqa: F811
    held, read, changed = CHANGES[change]
    network = Holding(held(), read)
    step = tpgen.compile_step(network, rows())
    before = step(rows())["y"]
    assert len(interpreted) == 1
    torch.testing.assert_close(step(rows(7)), network(rows(7)), rtol=1e-12, atol=1e-12)
    assert len(interpreted) == 1, "what stands needs no other program"
    changed(network)
    for count in (5, 7):
        torch.testing.assert_close(step(rows(count)), {k: x.detach() for k, x in network(rows(count)).items()})
    assert not torch.equal(step(rows())["y"], before)
    assert len(interpreted) == 2


def test_what_a_loss_reads_is_followed(interpreted: list[int]) -> None:  # noqa: F811
    weights, network = {"energy": 1.0}, nn.Linear(3, 1).double()

    def loss(network: nn.Module, x: Tensor) -> Tensor:
        return weights["energy"] * network(x).square().mean()

    training = tpgen.compile_training(network, loss, rows())
    for weight in (1.0, 2.0):
        weights["energy"] = weight
        training(rows()).backward()
        found = network.weight.grad.clone()
        network.zero_grad()
        loss(network, rows()).backward()
        torch.testing.assert_close(found, network.weight.grad)
        network.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(training(rows()), loss(network, rows()))
    assert len(interpreted) == 4, "with gradients and without, before and after"


class Counting(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls, self.seen, self.ticks, self.state = kind, 0, [], itertools.count(), one()

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "a number":
            self.calls += 1
        elif self.kind == "a tensor":
            self.state = self.state + x.sum()
            return x * self.state
        elif self.kind == "a list":
            self.seen.append(x)
        else:
            next(self.ticks)
        return 2 * x


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("a number", "reads calls and changes it in every call"),
        ("a tensor", "computes with state and changes it in every call"),
        ("a list", "changes seen in every call"),
        ("an iterator", "ticks: forward reads a count, which every call moves on"),
    ],
)
def test_what_each_call_changes_is_refused(kind: str, message: str) -> None:
    with pytest.raises(DeployError, match=message):
        tpgen.compile_step(Counting(kind), rows())


def test_a_tensor_that_is_no_parameter_is_not_trained_in_silence(interpreted: list[int]) -> None:  # noqa: F811
    network = nn.Linear(3, 1).double()
    scale = one().requires_grad_()
    with pytest.raises(InputError, match="scale requires a gradient and is no parameter of the network"):
        tpgen.compile_training(network, lambda network, x: squared(network, x) * scale, rows())


COLLECTED = {"times": 0}


def test_what_the_collector_calls_is_no_part_of_a_network(interpreted: list[int]) -> None:  # noqa: F811
    def count(_phase: str, _info: dict[str, int]) -> None:
        COLLECTED["times"] += 1

    gc.callbacks.append(count)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        step = tpgen.compile_step(nn.Linear(2, 2), torch.ones(3, 2))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(count)
    assert COLLECTED["times"]
    assert len(step(torch.ones(3, 2))) == 3
