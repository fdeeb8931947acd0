"""Compiled networks of convolutions: their edges are sorted once in a step, by both ends, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import DecompositionInterpreter, make_fx

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.cuda.test_captures import NODES, PLAN, WIDE, Network, count_sorts
from tests.kernels.plans import call, operands
from tests.machine import needs_compiler
from tpgen.kernels.cuda import orders
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime import ops
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.ops import describe
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.plan import Plan

pytestmark = needs_compiler
UTILITIES = ("test_schema", "test_faketensor")
BACKENDS = ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture
def sorts(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of owners of all sorts, on a machine whose CPU is a GPU; nothing may be kept, as in lent memory."""
    made = count_sorts(monkeypatch)
    monkeypatch.setattr(orders, "_is_in_graph_pool", lambda index: True)
    monkeypatch.setattr(ops, "SORTED_ON", {"cpu"})
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def network(plan: Plan) -> tuple[Network, Callable[..., Tensor]]:
    """Three layers as a module has them, each of which takes rows of ``edge_index`` anew."""
    given, conv = Network(plan), TensorProductConv.from_plan(plan, strategy="kernel").double()

    def layers(x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
        out, width = x, x.shape[1]
        for _ in range(3):
            out = conv(out, y, w, edge_index[0], edge_index[1], NODES)[:, :width].sin()
        return out

    return given, layers


def step(given: Network, layers: Callable[..., Tensor]) -> list[Tensor]:
    out = layers(given.x, given.y, given.w, given.edge_index)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), given.x)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("plan", [PLAN, WIDE], ids=["by sender", "by receiver"])
def test_a_compiled_step_sorts_ends_at_once(plan: Plan, dtype: torch.dtype, backend: str, sorts: list[int]) -> None:
    """Of three layers and both directions, edges in either dtype, also once they have been written to."""
    given, layers = network(plan)
    given.edge_index = given.edge_index.to(dtype)
    wanted = given.step(given.definition)
    step(given, layers)
    assert len(sorts) == (6 if plan is PLAN else 9)  # uncompiled, where nothing may be kept
    compiled = torch.compile(layers, backend=backend, fullgraph=True)
    for _ in range(2):
        sorts.clear()
        for found, right in zip(step(given, compiled), wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
        assert sorts == [2 * NODES]
        given.edge_index[1] = given.edge_index[1].flip(0)
        wanted = given.step(given.definition)


def test_a_first_layer_without_gradients_of_its_rows_shares_the_sort(sorts: list[int]) -> None:
    """As of networks whose first features do not depend on positions."""
    given, layers = network(PLAN)
    y = given.y.clone().requires_grad_()

    def step_of(layers: Callable[..., Tensor]) -> Tensor:
        return torch.autograd.grad(layers(given.x.detach(), y, given.w, given.edge_index).square().sum(), y)[0]

    wanted = step_of(layers)
    sorts.clear()
    found = step_of(torch.compile(layers, backend="aot_eager_decomp_partition", fullgraph=True))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert sorts == [2 * NODES]


@pytest.mark.parametrize("backend", ["aot_eager", *BACKENDS])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_without_gradients_all_layers_share_a_sort(dtype: torch.dtype, backend: str, sorts: list[int]) -> None:
    """By receiver alone; of graphs of another size too, whose sizes are symbols then."""
    _, layers = network(PLAN)
    compiled = torch.compile(layers, backend=backend, fullgraph=True)
    for edges in (12, 14, 17):
        given = Network(PLAN, edges)
        given.edge_index = given.edge_index.to(dtype)
        sorts.clear()
        with torch.no_grad():
            found = compiled(given.x, given.y, given.w, given.edge_index)
        torch.testing.assert_close(found, given.step(given.definition)[0], rtol=1e-10, atol=1e-10)
        assert sorts == [NODES]


def test_edges_that_a_graph_writes_to_are_sorted_again(sorts: list[int]) -> None:
    given, layers = network(PLAN)

    def turned(x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        before = layers(x, y, w, edge_index)
        edge_index[1] = edge_index[1].flip(0)
        return before, layers(x, y, w, edge_index)

    wanted = [given.step(given.definition)[0]]
    edge_index = given.edge_index.clone()
    with torch.no_grad():
        found = torch.compile(turned, backend="aot_eager", fullgraph=True)(given.x, given.y, given.w, edge_index)
    given.edge_index[1] = given.edge_index[1].flip(0)
    wanted.append(given.step(given.definition)[0])
    torch.testing.assert_close(list(found), wanted, rtol=1e-10, atol=1e-10)
    assert torch.equal(edge_index, given.edge_index)
    assert len(sorts) == 2


def test_equal_calls_are_one_of_the_same_rows_and_owners() -> None:
    """In a graph that writes as it stands, too, with nothing written between."""

    def sorted_often(index: Tensor) -> list[Tensor]:
        order = torch.ops.tpgen.order
        made = [order(index[n], owners) for n, owners in ((1, 4), (1, 4), (0, 4), (1, 5), (0, 4))]
        row = index[1]
        made += [order(row, 4)]
        index.sub_(1).add_(1)
        return [*made, order(row, 4), order(index[1], 4), order(index[1], 4)]

    index = torch.tensor([[0, 3, 2], [1, 1, 0]])
    graph = make_fx(sorted_often, tracing_mode="symbolic")(index.clone()).graph
    (returned,) = graph.output_node().args
    assert [returned.index(node) for node in returned] == [0, 0, 2, 3, 2, 0, 6, 7, 7]


def test_copies_of_which_a_part_is_written_are_others() -> None:
    def both(index: Tensor) -> tuple[Tensor, Tensor]:
        one, other = index.clone(), index.clone()
        other[2:] = 0
        return torch.ops.tpgen.order(one, 5), torch.ops.tpgen.order(other, 5)

    index = torch.tensor([4, 0, 3, 1])
    graph = make_fx(both)(index)
    assert all(torch.equal(*pair) for pair in zip(graph(index), both(index), strict=True))


def test_a_graph_that_is_written_anew_takes_calls_as_they_stand() -> None:
    graph = make_fx(lambda index: torch.ops.tpgen.order(index, 5) + 0)(torch.tensor([4, 0, 3, 1]))
    made = fx.Graph()
    DecompositionInterpreter(graph, made, decomposition_table={}).run(torch.tensor([4, 0, 3, 1]))
    assert any(node.target is torch.ops.tpgen.order.default for node in made.nodes)


def test_operators_on_sorted_edges_are_operators() -> None:
    """They write nowhere and know the shapes of their results; kernels of a CPU take edges as they stand."""
    given = operands(PLAN, 12)
    x1, g, (src, dst) = given["x1"][:NODES], given["out"][:NODES], Network().edge_index
    by_src, by_dst = (torch.ops.tpgen.order(end, NODES) for end in (src, dst))
    for index in (src, dst.int(), dst[:0]):
        torch.library.opcheck(torch.ops.tpgen.order, (index, NODES), test_utils=UTILITIES)
        torch.library.opcheck(torch.ops.tpgen.order, (index, NODES, index.flip(0), 7), test_utils=UTILITIES)
    for opened in ("out", "x1 x2 w", "x1 x2 w out"):
        plain = call(opened, x1, given["x2"], given["w"], g, text=describe(PLAN), edges=(src, dst), nodes=NODES)
        arguments = plain._replace(at=[src, dst, by_src, by_dst], ordered=EDGES).to_arguments()
        assert [index.order for index in FormCall.from_arguments(*arguments).indices] == [by_src, by_dst]
        torch.library.opcheck(torch.ops.tpgen.form, arguments, test_utils=UTILITIES)
        for found, wanted in zip(
            torch.ops.tpgen.form(*arguments), torch.ops.tpgen.form(*plain.to_arguments()), strict=True
        ):
            assert torch.equal(found, wanted)
