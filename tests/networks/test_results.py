"""Results of a step: values, whichever way a call goes, and nested in any way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import compare, counted, kind_of, ready, twins  # noqa: F401  a fixture
from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError
from tpgen.networks import step_program
from tpgen.networks.results import are_equal_results, flatten, unflatten


@dataclass(frozen=True)
class Found:
    energy: Tensor
    rest: dict[str, Any]
    name: str = "found"


class Pair(NamedTuple):
    energy: Tensor
    forces: Tensor


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a tensor": lambda e, f: f,
    "a dict": lambda e, f: {"energy": e, "forces": f},
    "a tuple": lambda e, f: (e, [f, None]),
    "a named tuple": Pair,
    "a dataclass": lambda e, f: Found(e, {"forces": f}),
    "dataclasses in dataclasses": lambda e, f: [Found(e, {"more": Found(f, {})})],
}


class Energy(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.kind = nn.Linear(3, 1), kind

    def forward(self, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        energy = self.linear(x.sin()).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return KINDS[self.kind](energy, -slope)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_values_whichever_way_a_call_goes(kind: str, interpreted: list[int]) -> None:  # noqa: F811
    network = Energy(kind)
    step = tpgen.compile_step(network, torch.randn(5, 3))
    for rows in (5, 2, 1, 0):
        x = torch.randn(rows, 3)
        (found, spec), (wanted, like) = flatten(step(x)), flatten(network(x))
        assert spec == like
        assert type(step(x)) is type(network(x))
        for one, other in zip(found, wanted, strict=True):
            if isinstance(one, Tensor):
                assert not one.requires_grad
                torch.testing.assert_close(one, other.detach())
            else:
                assert one == other


class Passing(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "row": x[0], "twice": 2 * x}


@pytest.mark.parametrize("rows", [5, 1])
def test_results_are_no_memory_of_the_call(rows: int, interpreted: list[int]) -> None:  # noqa: F811
    step, x = tpgen.compile_step(Passing(), torch.ones(5, 3)), torch.ones(rows, 3)
    for found in step(x).values():
        found.zero_()
    assert bool((x == 1).all())


class Box:
    __slots__ = ("x",)

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Boxed(nn.Module):
    def forward(self, x: Tensor) -> Box:
        return Box(2 * x)


def test_an_object_of_unknown_tensors_is_refused() -> None:
    with pytest.raises(DeployError, match="returns an object of class Box, whose tensors a program does not see"):
        tpgen.compile_step(Boxed(), torch.ones(5, 3))


@dataclass
class Beside:
    energy: Tensor

    def __post_init__(self) -> None:
        self.half = self.energy / 2


def test_attributes_beside_fields_are_refused_by_name() -> None:
    with pytest.raises(DeployError, match="Beside with half"):
        flatten(Beside(torch.ones(())))


def test_results_are_put_together_as_they_were() -> None:
    for make in KINDS.values():
        result = make(torch.ones(()), torch.ones(5, 3))
        again = unflatten(*flatten(result))
        assert pytree.tree_structure(again) == pytree.tree_structure(result) or type(again) is type(result)
        assert list(map(id, flatten(again)[0])) == list(map(id, flatten(result)[0]))


def test_what_does_not_compile_is_served_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such header")

    monkeypatch.setattr(step_program, "library_of", fail)
    network, x = Energy("a dict"), torch.randn(5, 3)
    with pytest.warns(UserWarning, match="does not compile .*no such header") as warned:
        step = tpgen.compile_step(network, x)
    assert len(warned) == 1
    for rows in (5, 3):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(step(x), {name: y.detach() for name, y in network(x).items()})


def test_a_program_that_does_not_compile_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
    counted: list[int],  # noqa: F811
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such header")

    monkeypatch.setattr(step_program, "library_of", fail)
    stock, own = twins()
    with pytest.warns(UserWarning, match="does not compile .*no such header"):
        ready(own)
    assert kind_of(own).refused == "its program does not compile"
    compare(stock, own)
    assert counted == []


class Looking(nn.Module):
    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]


def test_an_index_out_of_range_is_the_error_of_the_network(interpreted: list[int]) -> None:  # noqa: F811
    x, network = torch.ones(5, 3), Looking()
    step = tpgen.compile_step(network, x, torch.tensor([0, 1, 2]))
    for call in (network, step):
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            call(x, torch.tensor([0, 7, 2]))


def test_what_a_tracer_records_is_the_network(interpreted: list[int]) -> None:  # noqa: F811
    network = nn.Linear(3, 3)
    step = tpgen.compile_step(network, torch.ones(5, 3))
    traced = torch.jit.trace(step.forward, torch.ones(5, 3))
    x = torch.randn(5, 3)
    torch.testing.assert_close(traced(x), network(x))


@pytest.mark.parametrize("change, equal", [(1e-5, True), (1e-2, False), (float("nan"), False)])
def test_results_are_compared_as_the_narrowest_rounds(change: float, equal: bool) -> None:
    """A float64 result of an array may hold float32 numbers."""
    wide, narrow = torch.ones(3, dtype=torch.float64), torch.ones(2)
    assert are_equal_results([wide + change, narrow], [wide, narrow]) == equal
    assert not are_equal_results([wide + 1e-5], [wide])
    assert not are_equal_results([wide[:2]], [wide])
