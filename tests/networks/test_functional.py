"""Operations in place in traced graphs become others, or are left where a view would see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import tpgen
from tests.machine import needs_compiler
from tpgen.networks import functional as module
from tpgen.networks.functional import make_functional

INDEX = torch.tensor([2, 0, 2])


def scattered(x: Tensor) -> Tensor:
    """Sum as these networks sum: two sums whose zeros are alike and must not become one."""
    first = torch.zeros(4, 2).index_add_(0, INDEX, x)
    second = torch.zeros(4, 2).index_add_(0, INDEX, x * x)
    return first.mul_(2).add_(second).copy_(first + 1)


def on_a_view(x: Tensor) -> Tensor:
    made = torch.zeros(3, 2)
    made[:, 0].add_(x[:, 0])
    return made


def seen_by_a_view(x: Tensor) -> Tensor:
    made = x * 2
    view = made.t()
    made.add_(1)
    return view * 2


def read_before(x: Tensor) -> Tensor:
    made = x * 2
    before = made.t().sum()
    return made.add_(1) + before


def on_an_input(x: Tensor) -> Tensor:
    return x.clone() + x.add_(1)


def in_its_own_dtype(x: Tensor) -> Tensor:
    return (x * 2).add_(x.double())


def traced(function: Callable[[Tensor], Tensor]) -> Any:
    return make_fx(function)(torch.ones(3, 2))


@pytest.mark.parametrize("function", [scattered, read_before])
def test_what_writes_to_memory_of_its_own_returns_another_tensor(function: Callable[[Tensor], Tensor]) -> None:
    graph = traced(function)
    assert make_functional(graph.graph)
    assert not [node for node in graph.graph.nodes if "_." in str(node.target)]
    graph.graph.lint()
    graph.recompile()
    x = torch.randn(3, 2)
    assert torch.equal(graph(x), function(x))


@pytest.mark.parametrize("function", [on_a_view, seen_by_a_view, on_an_input, in_its_own_dtype])
def test_what_others_see_is_left(function: Callable[[Tensor], Tensor]) -> None:
    assert not make_functional(traced(function).graph)


class Network(torch.nn.Module):
    """A network that writes in each of these ways."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x) for f in (scattered, on_a_view, seen_by_a_view, read_before, in_its_own_dtype))


@needs_compiler
@pytest.mark.slow
def test_a_program_of_both_computes_what_the_network_does(monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[int] = []
    trace = module._trace_with_symbolic_sizes
    monkeypatch.setattr(module, "_trace_with_symbolic_sizes", lambda *of: (traces.append(0), trace(*of))[1])
    x = torch.randn(3, 2)
    for found, wanted in zip(tpgen.compile_step(Network(), x)(x), Network()(x), strict=True):
        torch.testing.assert_close(found, wanted)
    assert len(traces) == 2
    tpgen.compile_step(torch.nn.Linear(2, 2), x)
    assert len(traces) == 3, "a network that writes nowhere else is traced once"
