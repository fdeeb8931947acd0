"""A graph of results and gradients is split into stages, which compute what the whole computes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tpgen.base._torch import pytree
from tpgen.networks.functional import make_fake_mode, trace_without_writes
from tpgen.networks.stages import split

_aten = torch.ops.aten


def _energy(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().sum()


def _stages(x: Tensor, w: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    with torch.enable_grad():
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        energy = _energy(x, w)
        (slope,) = torch.autograd.grad(energy, x, c, create_graph=True)
        found = torch.autograd.grad(slope, [x, w], d)
    return [t.detach() for t in (energy, slope, *found, energy + 1)]  # the last is a check


def _given() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, dtype=torch.float64, generator=generator) for n in ((5, 3), (3, 4), (), (5, 3))]


@pytest.fixture
def split_graph() -> Callable:
    inputs, mode = _given(), make_fake_mode()
    graph = trace_without_writes(_stages, [mode.from_tensor(x, static_shapes=True) for x in inputs])
    _, spec = pytree.tree_flatten((0, [0], [0, 0]))
    return split(graph, spec, {}, 5, [1, 1])


def test_stages_compute_what_the_whole_computes(split_graph: Callable) -> None:
    inputs, parts = _given(), split_graph
    wanted = _stages(*inputs)
    made = parts.program.of(inputs)
    assert parts.saves.start == len(inputs)
    energy, saved, check = made[0], made[1:-1], made[-1]
    known, found = [*inputs, *saved], [energy]
    for stage in parts.stages:
        outputs = stage.graph.of(known)
        count = len(stage.places)
        found += outputs[:count]
        known += outputs[count:]
        assert len(stage.saves) == len(outputs) - count
    for x, y in zip([*found, check], wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)


def test_numbers_of_saved_tensors_go_on(split_graph: Callable) -> None:
    ranges = [split_graph.saves, *(stage.saves for stage in split_graph.stages)]
    assert all(one.stop == other.start for one, other in pairwise(ranges))


def test_products_are_saved_and_loops_repeated(split_graph: Callable) -> None:
    targets = [
        [node.target for node in part.graph.graph.nodes]
        for part in (split_graph.program, *(s.graph for s in split_graph.stages))
    ]
    assert [of.count(_aten.mm.default) for of in targets] == [1, 1, 4]
    assert all(_aten.tanh.default in of for of in targets)


def test_gradients_name_the_cotangents_that_they_depend_on(split_graph: Callable) -> None:
    first, second = split_graph.stages
    assert first.depends == ({2},)
    assert second.depends == ({3}, {3})
