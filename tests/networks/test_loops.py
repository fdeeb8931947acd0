"""Graphs are rewritten for vector loops where results stay the same, and stay as they are elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from tpgen.base import _torch
from tpgen.networks.functional import trace_without_writes
from tpgen.networks.loops import write_vector_loops
from tpgen.networks.simplify import read_sizes_of_inputs
from tpgen.networks.stages import returned_nodes, subgraph
from tpgen.networks.step_trace import _FakeInputs

aten = torch.ops.aten
Function = Callable[[Tensor, Tensor], Tensor]  # of rows of 12 columns, and of 4 numbers


def norm_gradient(x: Tensor, w: Tensor) -> Tensor:
    """As the gradient of a mean of squares by channel is."""
    scale = (w.abs() + 1).rsqrt().unsqueeze(0).expand(x.shape[0], 4).div(x.shape[0])
    return x.view(-1, 4, 3) * scale.unsqueeze(-1).expand(x.shape[0], 4, 3).expand(-1, 4, -1).div(3).neg()


def outer_axes(x: Tensor, w: Tensor) -> Tensor:
    """Of an expansion that adds axes."""
    return x[:, :4] * w.exp().expand(x.shape[0], 4).neg().unsqueeze(1).sum(1)


def viewed_expansion(x: Tensor, w: Tensor) -> Tensor:
    """A view that merges axes needs the numbers, not their expansion."""
    return (w.abs().view(1, 4, 1).expand(x.shape[0], 4, 3) * 2).reshape(-1, 12) * x


def returned_expansion(x: Tensor, w: Tensor) -> Tensor:
    return -w.unsqueeze(0).expand(x.shape[0], 4)


def expansion_by_itself(x: Tensor, w: Tensor) -> Tensor:
    each = w.unsqueeze(0).expand(x.shape[0], 4)
    return torch.cat([each * each, each - each * 2, x], 1)


def components_alone(x: Tensor, w: Tensor) -> Tensor:
    """An expansion of rows."""
    squares = x.view(-1, 4, 3).square().sum(-1, keepdim=True).expand(-1, 4, 3)
    return (squares * 2).reshape(-1, 12) * w.sum()


def sums(x: Tensor, w: Tensor) -> Tensor:
    return (x.view(-1, 4, 3).sum((0, 2)) + x.view(-1, 4, 3).sum([-3, -1], keepdim=True).flatten()) * w


def other_sums(x: Tensor, w: Tensor) -> Tensor:
    part = x.view(-1, 4, 3).sum((0, 1)).sum() + x.sum((0, 1)) + x.view(4, -1, 3).sum((0, 2)).sum()
    return (part + aten.sum.dim_IntList(x, None) + part.sum(0)) * w


def half_sums(x: Tensor, w: Tensor) -> Tensor:
    """Sums of columns would be infinite."""
    cancels = torch.tensor([2e4, -2e4, 0] * 4, dtype=torch.float16) * (x > 1e9).logical_not()
    return cancels.view(-1, 4, 3).sum((0, 2)).float() * w


def padded(x: Tensor, begin: int, end: int, columns: int = 12) -> Tensor:
    return aten.slice_backward(x[:, begin:end], [x.shape[0], columns], 1, begin, end, 1)


def slices(x: Tensor, w: Tensor) -> Tensor:
    """In another order, with another summand, and read twice."""
    total = padded(x, 7, 12) + padded(x * w.sum(), 0, 3) + padded(x, 3, 7) + x
    return total.sin() + total


def slices_with_a_gap(x: Tensor, w: Tensor) -> Tensor:
    return padded(x, 0, 3) + padded(x, 4, 12) + w.sum()


def slices_that_overlap(x: Tensor, w: Tensor) -> Tensor:
    return padded(x, 0, 7) + padded(x, 5, 12) + w.sum()


def empty_slice(x: Tensor, w: Tensor) -> Tensor:
    return padded(x, 3, 3) + padded(x, 0, 3) + padded(x, 3, 12) + w.sum()


def slice_read_twice(x: Tensor, w: Tensor) -> Tensor:
    first = padded(x, 0, 7)
    return (first + padded(x, 7, 12)) * first * w.sum()


def equal_slices(x: Tensor, w: Tensor) -> Tensor:
    return padded(x, 0, 6) + padded(x * 2, 0, 6) + padded(x, 6, 12) + w.sum()


def slices_of_steps(x: Tensor, w: Tensor) -> Tensor:
    halves = [aten.slice_backward(x[:, n::2], [x.shape[0], 12], 1, n, 12, 2) for n in range(2)]
    return halves[0] + halves[1] + w.sum()


def slices_of_two_axes(x: Tensor, w: Tensor) -> Tensor:
    return padded(x, 0, 12) + aten.slice_backward(x, [x.shape[0], 12], 0, 0, x.shape[0], 1) + w.sum()


def slices_of_rows(x: Tensor, w: Tensor) -> Tensor:
    first, rest = (aten.slice_backward(x[a:b], list(x.shape), 0, a, b, 1) for a, b in ((0, 1), (1, x.shape[0])))
    return first + rest + w.sum()


def read_partial_sum(x: Tensor, w: Tensor) -> Tensor:
    part = padded(x, 0, 3) + padded(x, 3, 7)
    return (part + padded(x, 7, 12)) * part * w.sum()


def in_scaled_sum(x: Tensor, w: Tensor) -> Tensor:
    return torch.add(padded(x, 0, 7) + padded(x, 7, 12), w.sum(), alpha=2)


def scaled_sum(x: Tensor, w: Tensor) -> Tensor:
    return torch.add(padded(x, 0, 7), padded(x, 7, 12), alpha=2) * w.sum()


REWRITTEN: dict[Function, list[object]] = {
    norm_gradient: [],
    outer_axes: [aten.sum.dim_IntList],
    sums: [aten.sum.dim_IntList] * 4,
    slices: [aten.cat.default],
    in_scaled_sum: [aten.cat.default],
    viewed_expansion: [],
    returned_expansion: [],
}
KEPT = (
    *(other_sums, slices_with_a_gap, slices_that_overlap, equal_slices, slices_of_steps, slices_of_two_axes),
    *(slices_of_rows, read_partial_sum, scaled_sum, empty_slice, slice_read_twice, half_sums, components_alone),
    *(expansion_by_itself,),
)
WATCHED = (aten.sum.dim_IntList, aten.cat.default, aten.slice_backward.default)


def rewritten(function: Function) -> tuple[fx.GraphModule, list[object], list[object]]:
    """The graph of a function, with rows of open number, and its operations before and after."""
    torch.manual_seed(0)
    columns, w = torch.randn(12), torch.randn(4)
    inputs = _FakeInputs.from_tensors([columns, w], [torch.randn(5)], [], [])
    traced = trace_without_writes(lambda of, given, *_: [function(given[0].unsqueeze(1) * of[0], of[1])], inputs)
    read_sizes_of_inputs(traced.graph, 3)
    part = subgraph(traced, returned_nodes(traced))
    graph = part.graph
    before = [node.target for node in graph.graph.nodes]
    write_vector_loops(graph.graph)
    graph.recompile()
    for rows in (5, 8, 1):
        x = torch.randn(rows)
        (found,) = graph(*((columns, w, x)[n] for n in part.takes))
        wanted = function(x.unsqueeze(1) * columns, w)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert found.is_contiguous() == wanted.is_contiguous()
    return graph, before, [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("function", REWRITTEN, ids=lambda function: function.__name__)
def test_results_stay_and_loops_are_others(function: Function) -> None:
    _, before, after = rewritten(function)
    assert after != before
    assert [target for target in after if target in WATCHED] == REWRITTEN[function], after


@pytest.mark.parametrize("function", KEPT, ids=lambda function: function.__name__)
def test_what_no_rule_says_stays(function: Function) -> None:
    _, before, after = rewritten(function)
    found, wanted = ([target for target in of if target in WATCHED] for of in (after, before))
    assert found == wanted


def test_values_without_rows_are_computed_once() -> None:
    """The chain of a norm's factors: before the rows come, by one value."""
    graph, _, _ = rewritten(norm_gradient)
    (once,) = graph.graph.find_nodes(op="call_function", target=_torch.realize)
    assert [str(n) for n in once.meta["val"].shape if not isinstance(n, int)] == []
    late = {node.target for node in graph.graph.nodes if node > once}
    assert late.isdisjoint({aten.rsqrt.default, aten.div.Scalar, aten.neg.default})


def test_values_with_rows_are_not_kept() -> None:
    for function in (sums, slices):
        graph, _, _ = rewritten(function)
        assert not graph.graph.find_nodes(op="call_function", target=_torch.realize)
