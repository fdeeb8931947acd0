"""Products of gathered rows are computed for each node where nodes are fewer, with equal results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.nn.functional import embedding, linear, silu

from tpgen.networks.functional import trace_without_writes
from tpgen.networks.gathered_products import multiply_before_gathers
from tpgen.networks.simplify import read_sizes_of_inputs, simplify_graph
from tpgen.networks.sizes import size_in_example
from tpgen.networks.stages import returned_nodes, subgraph
from tpgen.networks.step_trace import _FakeInputs

aten = torch.ops.aten
NODES, EDGES = 6, 20
Messages = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # of nodes, edges, pairs, weights and bias


def by_index(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x[i[0]], y, x[i[1]]], -1), w, b)


def by_index_select(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As heads of attention are: with an axis of one number."""
    heads = x.view(-1, 1, 8)
    ends = [heads.index_select(0, of) for of in i]
    return linear(torch.cat([ends[0], y.unsqueeze(1), ends[1]], -1), w, b).view(-1, 7)


def by_torch_gather(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    ends = [x.gather(0, of.unsqueeze(1).expand(-1, 8)) for of in i]
    return torch.cat([ends[0], y, ends[1]], 1) @ w.t() + b


def by_embedding(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([embedding(i[0], x), y, embedding(i[1], x)], 1), w, b)


def from_the_end(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """By negative numbers."""
    return by_index(x, y, i - NODES, w, b)


def of_some_columns(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = torch.cat([x.sin(), x], 1)
    return linear(torch.cat([wide[i[0], 8:], y, wide[i[1]][:, 8:]], 1), w, b)


def by_parts(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Edges before and behind, in two matrices."""
    joined = torch.cat([y[:, :2], torch.cat([y[:, 2:], x[i[0]]], 1), x[i[1]]], 1)
    return linear(joined, torch.cat([w[:, 8:13], w[:, :8], w[:, 13:]], 1), b)


def of_some_rows(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A slice of as many rows as edges."""
    return by_index(x, torch.cat([y, y.sin()])[: i.shape[1]], i, w, b)


def by_plain_matrix(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Not transposed, as a part of flat weights."""
    return torch.cat([x[i[0]], y, x[i[1]]], -1) @ w.reshape(-1).view(21, 7) + b


DIFFERENTIATED = (by_plain_matrix, of_some_rows, by_index, by_index_select, by_torch_gather, from_the_end, by_parts)
REWRITTEN = (*DIFFERENTIATED, by_embedding, of_some_columns)


def of_the_same_rows(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Not twice as many rows as nodes."""
    few = i[:, : 2 * NODES - 1]
    return linear(torch.cat([x[few[0]], y[: few.shape[1]], x[few[1]]], 1), w, b)


def of_few_columns(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x[:, :3][i[0]], y, x[i[1]][:, 5:], y, y], 1), w, b)


def of_changed_rows(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x[i[0]].sin(), y, x[i[1]].cos()], 1), w, b)


def of_even_columns(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = torch.cat([x, x], 1)
    return linear(torch.cat([wide[i[0]][:, ::2], y, wide[i[1]][:, 1::2]], 1), w, b)


def with_another_dtype(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x[i[0]].float(), y, x[i[1]]], -1), w, b)


def with_an_empty_tensor(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x.new_zeros(0), x[i[0]], y, x[i[1]]], -1), w, b)


def in_half_precision(x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return linear(torch.cat([x[i[0]], y, x[i[1]]], -1).bfloat16(), w.bfloat16(), b.bfloat16()).double()


KEPT = (
    with_another_dtype,
    with_an_empty_tensor,
    in_half_precision,
    of_the_same_rows,
    of_few_columns,
    of_changed_rows,
    of_even_columns,
)


def first(messages: Messages, x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    return [silu(messages(x, y, i, w, b))]


def gradients(messages: Messages, x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    (found,) = first(messages, x, y, i, w, b)
    return list(torch.autograd.grad(found.sin().sum(), (x, y, w, b), create_graph=True))


def second(messages: Messages, x: Tensor, y: Tensor, i: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
    of_nodes, of_edges, *_ = gradients(messages, x, y, i, w, b)
    return list(torch.autograd.grad(of_nodes.square().sum() + of_edges.square().sum(), (x, y, w, b)))


def given_tensors(nodes: int = NODES, edges: int = EDGES) -> tuple[list[Tensor], list[Tensor]]:
    """Weights, bias, columns of nodes and edges; numbers of nodes and edges, and pairs."""
    random = torch.Generator().manual_seed(0)
    shapes = (7, 21), (7,), (8,), (5,), (nodes, 1), (edges, 1)
    draw = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    return draw[:4], [*draw[4:], torch.randint(nodes, (2, edges), generator=random)]


def operands(known: list[Tensor], given: list[Tensor]) -> list[Tensor]:
    (w, b, *columns), (*rows, i) = known, given
    x, y = (of * (of + row).sin() for of, row in zip(rows, columns, strict=True))
    return [z.detach().requires_grad_(z is not i) for z in (x, y, i, w, b)]


def rewritten(order: Callable[..., list[Tensor]], messages: Messages) -> tuple[list[tuple], list[tuple]]:
    """Shapes of factors before and after, of a graph whose results are the function's for any numbers of rows."""

    def call(known: list[Tensor], given: list[Tensor], *_: object) -> list[Tensor]:
        with torch.enable_grad():
            return [x.detach() for x in order(messages, *operands(known, given))]

    inputs = _FakeInputs.from_tensors(*given_tensors(), [], [])
    traced = trace_without_writes(call, inputs)
    read_sizes_of_inputs(traced.graph, 7)
    simplify_graph(traced.graph)
    before = shapes_of_factors(traced.graph)
    multiply_before_gathers(traced.graph)
    traced.graph.lint()
    part = subgraph(traced, returned_nodes(traced))
    for nodes, edges in ((NODES, EDGES), (9, 4), (2, 0)):
        known, given = given_tensors(nodes, edges)
        if messages is from_the_end:
            given[2] = given[2] % min(nodes, NODES) + (NODES - min(nodes, NODES))
        found, wanted = part.graph(*([*known, *given][n] for n in part.takes)), call(known, given)
        torch.testing.assert_close(list(found), wanted, rtol=1e-12, atol=1e-12)
    return before, shapes_of_factors(traced.graph)


def shapes_of_factors(graph: fx.Graph) -> list[tuple]:
    factors = [node.args[-2:] for node in graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]
    return sorted(tuple(tuple(map(size_in_example, x.meta["val"].shape)) for x in of) for of in factors)


@pytest.mark.parametrize("messages", REWRITTEN, ids=lambda messages: messages.__name__)
def test_nodes_are_multiplied_before_edges_read_them(messages: Messages) -> None:
    before, after = rewritten(first, messages)
    assert before == [((EDGES, 21), (21, 7))]
    assert after[:2] == [((NODES, 8), (8, 7)), ((NODES, 8), (8, 7))]
    assert sum(left[1] for left, _ in after[2:]) == 5, "columns of edges"


@pytest.mark.parametrize("messages", DIFFERENTIATED, ids=lambda messages: messages.__name__)
@pytest.mark.parametrize("order", [gradients, second], ids=lambda order: order.__name__)
def test_gradients_are_summed_before_they_are_multiplied(
    order: Callable[..., list[Tensor]], messages: Messages
) -> None:
    before, after = rewritten(order, messages)
    assert any({EDGES, 21} <= {*left, *right} for left, right in before)
    for left, right in after:  # a product with all edges has their columns alone
        assert EDGES not in (*left, *right) or {2, 3, 5} & {*left, *right}, (left, right)


def test_gradients_by_embedding() -> None:
    before, after = rewritten(gradients, by_embedding)
    assert before != after


@pytest.mark.parametrize("messages", KEPT, ids=lambda messages: messages.__name__)
def test_other_products_stay(messages: Messages) -> None:
    before, after = rewritten(first, messages)
    assert before == after


def test_a_scaled_sum_of_slices_stays() -> None:
    def call(known: list[Tensor], given: list[Tensor], *_: object) -> list[Tensor]:
        x, *_rest = operands(known, given)
        first, rest = (aten.slice_backward(x[:, a:b], [x.shape[0], 8], 1, a, b, 1) for a, b in ((0, 3), (3, 8)))
        return [torch.add(first, rest, alpha=2)]

    inputs = _FakeInputs.from_tensors(*given_tensors(), [], [])
    traced = trace_without_writes(call, inputs)
    multiply_before_gathers(traced.graph)
    assert not traced.graph.find_nodes(op="call_function", target=aten.cat.default)


def test_gradients_that_are_read_elsewhere_stay() -> None:
    """All columns of a product are computed once, for a sum and for another reader."""

    def call(known: list[Tensor], given: list[Tensor], *_: object) -> list[Tensor]:
        x, _, i, *_ = operands(known, given)
        product = x[i[0]].sin() @ x.new_ones(8, 6)
        return [product * 2, x.new_zeros(x.shape[0], 6).index_add(0, i[1], product)]

    traced = trace_without_writes(call, _FakeInputs.from_tensors(*given_tensors(), [], []))
    before = shapes_of_factors(traced.graph)
    multiply_before_gathers(traced.graph)
    assert shapes_of_factors(traced.graph) == before == [((EDGES, 8), (8, 6))]
