"""Traced graphs without what changes no number, and operations written as loops: the same results from fewer nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from tpgen.networks import functional
from tpgen.networks.named import _replace_row_view_by_strides
from tpgen.networks.simplify import expand_library_calls, read_sizes_of_inputs, simplify_graph
from tpgen.networks.stages import (
    clone_results_that_view_inputs,
    drop_group_sources_known_by_species,
    returned_nodes,
    subgraph,
)
from tpgen.networks.step_trace import _FakeInputs

aten = torch.ops.aten


def strained(x: Tensor, cell: Tensor) -> Tensor:
    """Strain positions and cells as networks do that differentiate by it."""
    strain = torch.zeros(3, 3) + x.sum() * 0.0
    strain = 0.5 * (strain + strain.transpose(0, 1))
    return (x + x @ strain) @ (cell + cell @ strain) - strain.sum()


def whole(x: Tensor, cell: Tensor) -> Tensor:
    return x[:, :3].view(5, 3).expand(5, 3) + aten.slice_backward(cell[0:3], [3, 3], 0, 0, 3, 1)[0]


def padded(x: Tensor, cell: Tensor) -> Tensor:
    return x + aten.slice_backward(x[:, :0], [5, 3], 1, 0, 0, 1) + cell.sum()


def by_ones(x: Tensor, cell: Tensor) -> Tensor:
    return aten.div.Scalar(aten.mul.Scalar((x * 1 / 1.0).pow(1.0), 1.0), 1) @ cell


def integers_by_ones(x: Tensor, cell: Tensor) -> Tensor:
    """Quotients and powers that become floating, and a factor of one number for each row."""
    whole = x.long()
    return aten.div.Scalar(whole, 1) + whole.pow(1.0) + whole / 1 + cell[0] * torch.ones(3)


def widened(x: Tensor, cell: Tensor) -> Tensor:
    """Sums with zeros that are more than an operand: of other sizes, of another dtype."""
    return (x[:1] + torch.zeros(5, 3)) + (cell + torch.zeros(3, 3, dtype=torch.float64)).sum()


def subtracted(x: Tensor, cell: Tensor) -> Tensor:
    return torch.zeros(5, 3) - x + torch.add(torch.zeros(3, 3), cell, alpha=2)[0]


def traced(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[fx.GraphModule, Tensor, Tensor]:
    torch.manual_seed(0)
    x, cell = torch.randn(5, 3), torch.randn(3, 3)
    return make_fx(function, tracing_mode="symbolic")(x, cell), x, cell


def targets(graph: fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (strained, [aten.mm.default]),
        (whole, [aten.select.int, aten.add.Tensor]),
        (padded, [aten.sum.default, aten.add.Tensor]),
        (by_ones, [aten.mm.default]),
    ],
)
def test_zeros_and_slices_of_all_are_left_out(function: Callable[[Tensor, Tensor], Tensor], left: list[Any]) -> None:
    made, x, cell = traced(function)
    simplify_graph(made.graph)
    made.recompile()
    assert [target for target in targets(made.graph) if target is not aten.sym_size.int] == left
    torch.testing.assert_close(made(x, cell), function(x, cell), rtol=0, atol=0)


@pytest.mark.parametrize("function", [widened, subtracted, integers_by_ones])
def test_zeros_that_change_sizes_dtypes_or_signs_stay(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    made, x, cell = traced(function)
    before = targets(made.graph)
    simplify_graph(made.graph)
    made.recompile()
    assert targets(made.graph) == before
    torch.testing.assert_close(made(x, cell), function(x, cell), rtol=0, atol=0)


def volume(x: Tensor, cell: Tensor) -> Tensor:
    return torch.linalg.det(torch.stack([cell, cell.T @ cell]).view(2, -1, 3)) + x.sum()


def activated(x: Tensor, cell: Tensor) -> Tensor:
    return aten.silu_backward(cell, aten.silu(cell)).sum(0) + x


def moved(x: Tensor, cell: Tensor) -> Tensor:
    rows, cells = x[:, None], cell.expand(5, 3, 3) * x[:, :, None]
    return torch.baddbmm(rows, rows, cells) + rows @ cells


def biased(x: Tensor, cell: Tensor) -> Tensor:
    """Biases of columns, of which one has two: the last counts."""
    found = ((x @ cell).exp() + 1.0).view(5, 3)
    found = found**-0.5 + found**-1.5 + found**-2.5
    at = [None, torch.arange(3) % 2]
    return aten.slice_scatter(found, aten.index_put(found, at, aten.index(found, at) + cell[0]), 0, 0, 2**63 - 1)


def biased_gradient(x: Tensor, cell: Tensor) -> Tensor:
    """The gradient of a bias, as autograd writes it for a copy that is written into."""
    g = (x @ cell).view(5, 3)
    at = [None, torch.arange(3) % 2]
    put, read = aten.index_put(g.clone(), at, torch.zeros(5, 3)), aten.index(g.clone(), at)
    return aten.copy(torch.empty(5, 3), put) + aten.index_put(torch.zeros(5, 3), at, read, True)


@pytest.mark.parametrize("function", [volume, activated, moved, biased, biased_gradient])
def test_what_a_compiler_would_call_is_written_as_loops(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    made, x, cell = traced(function)
    simplify_graph(made.graph)  # which drops what nobody reads
    expand_library_calls(made.graph)
    made.graph.eliminate_dead_code()
    made.recompile()
    called = {x.default for x in (aten._linalg_det, aten.silu, aten.silu_backward, aten.bmm, aten.baddbmm)}
    called |= {aten.pow.Tensor_Scalar, aten.slice_scatter.default, aten.index.Tensor}
    left = {target for target in targets(made.graph) if target in called}
    assert not left
    torch.testing.assert_close(made(x, cell), function(x, cell), rtol=1e-5, atol=1e-5)


def test_a_determinant_whose_factors_are_read_stays() -> None:
    made, *_ = traced(lambda x, cell: aten._linalg_det(cell)[1] + x[0])
    expand_library_calls(made.graph)
    assert aten._linalg_det.default in targets(made.graph)


def test_products_of_several_rows_or_many_columns_stay() -> None:
    made, *_ = traced(lambda x, cell: x[None] @ cell[None] + (x[None, :1, :1] @ x[None, :, 0][:, None]).sum())
    expand_library_calls(made.graph)
    assert targets(made.graph).count(aten.bmm.default) == 2


@pytest.mark.parametrize("row", [lambda cell: cell[:, :2].sum(), lambda cell: cell[:1, :2].expand(5, 2)])
def test_columns_with_other_additions_stay(row: Callable[[Tensor], Tensor]) -> None:
    def added(x: Tensor, cell: Tensor) -> Tensor:
        found, at = x.view(5, 3) * 2, [None, torch.arange(2)]
        return aten.index_put(found, at, aten.index(found, at) + row(cell))

    made, *_ = traced(added)
    expand_library_calls(made.graph)
    assert aten.index.Tensor in targets(made.graph)


@pytest.mark.parametrize("kind", ["matrix", "mask", "axis"])
def test_gradients_of_other_columns_stay(kind: str) -> None:
    def function(x: Tensor, cell: Tensor) -> Tensor:
        g, number = (x @ cell).view(5, 3), torch.arange(3)
        at = {"matrix": [None, number.view(1, 3)], "mask": [None, number > 0], "axis": [number]}[kind]
        none = torch.zeros(5, 1, 3) if kind == "matrix" else torch.zeros(5, 2) if kind == "mask" else torch.zeros(3, 3)
        return aten.index_put(g, at, none) + aten.index_put(torch.zeros(5, 3), at, aten.index(g, at), True)

    made, x, cell = traced(function) if kind != "mask" else (make_fx(function)(*(y := real())), *y)
    expand_library_calls(made.graph)
    made.recompile()
    assert aten.index.Tensor in targets(made.graph)
    torch.testing.assert_close(made(x, cell), function(x, cell))


def real() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 3), torch.randn(3, 3)


@pytest.mark.parametrize(("changed", "left"), [(0.0, 1), (1.0, 3)])
def test_species_that_the_graph_looks_up_itself_are_not_compared(changed: float, left: int) -> None:
    def sources(table: Tensor, numbers: Tensor) -> list[Tensor]:
        rows = aten.embedding(table, numbers)
        return [table * 2, rows + changed if changed else rows, table, numbers]

    made = make_fx(sources)(torch.randn(4, 3), torch.tensor([2, 0]))
    assert drop_group_sources_known_by_species(made.graph, 1, 3) == left
    assert len(made.graph.output_node().args[0]) == 1 + left


@pytest.mark.parametrize(("rows", "seen"), [(lambda x: x * 2, True), (lambda x: x.t().t(), False)])
def test_rows_that_a_kernel_takes_as_one_are_computed_as_rows(rows: Callable[[Tensor], Tensor], seen: bool) -> None:
    made = make_fx(lambda x: rows(x).view(1, -1), tracing_mode="symbolic")(torch.randn(5, 3))
    output: Any = made.graph.output_node()
    with made.graph.inserting_before(output):
        memory = _replace_row_view_by_strides(made.graph, output.args[0])
    assert (memory.target is aten.as_strided.default) == seen
    output.args = (memory,)
    made.recompile()
    x = torch.randn(7, 3)
    torch.testing.assert_close(made(x), rows(x).view(1, -1), rtol=0, atol=0)


@pytest.mark.parametrize("order", [lambda x, y: x + y, lambda x, y: y + x])
def test_a_size_is_read_from_no_later_input(order: Callable[[Tensor, Tensor], Tensor]) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        rows = x.sin()[1:]
        return [torch.zeros(rows.shape[0]), order(rows, y), torch.zeros(torch.cat([x, z]).sin().shape[0])]

    inputs = _FakeInputs.from_tensors([], [torch.rand(6), torch.rand(5), torch.rand(7)], [], [])
    graph = functional.trace_without_writes(lambda _parameters, given, *_: function(*given), inputs)
    read_sizes_of_inputs(graph.graph, 3)
    first, _, last = returned_nodes(graph)
    assert subgraph(graph, [first]).takes == (0,)  # though y has as many rows
    part = subgraph(graph, [last])
    assert part.takes in ((0, 2), (1, 2))
    assert not part.graph.graph.find_nodes(op="call_function", target=aten.sin.default)


def test_results_that_stand_in_memory_of_inputs_are_copied() -> None:
    def strained_sources(x: Tensor) -> list[Tensor]:
        moved = x + torch.zeros(5, 3)
        return [moved.t().detach(), x * 2, moved]

    made, x = make_fx(strained_sources)(torch.randn(5, 3)), torch.randn(5, 3)
    simplify_graph(made.graph)
    clone_results_that_view_inputs(made.graph, 2)
    made.recompile()
    first, _, source = made(x)
    assert source is x
    assert first.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    torch.testing.assert_close(first, x.t(), rtol=0, atol=0)
