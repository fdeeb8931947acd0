"""Compiled networks of convolutions: their edges are sorted once by either end in a step, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from tests.kernels.cuda.fakes import Products
from tests.kernels.cuda.test_captures import NODES, PLAN, WIDE, Network
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.kernels.cuda import orders
from tpgen.kernels.runtime import ops
from tpgen.kernels.runtime.call import OUT
from tpgen.kernels.runtime.ops import describe
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.plan import Plan

pytestmark = needs_compiler
MAKE = orders.order_of
UTILITIES = ("test_schema", "test_faketensor")
BACKENDS = ["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture
def sorts(gpu: Products, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of owners of all sorts, on a machine whose CPU is a GPU; nothing may be kept, as in lent memory."""
    made = list[int]()
    monkeypatch.setattr(orders, "order_of", lambda index, owners: made.append(owners) or MAKE(index, owners))
    monkeypatch.setattr(orders, "_is_lent", lambda index: True)
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
def test_a_compiled_step_sorts_each_end_once(plan: Plan, dtype: torch.dtype, backend: str, sorts: list[int]) -> None:
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
        assert len(sorts) == 2
        given.edge_index[1] = given.edge_index[1].flip(0)
        wanted = given.step(given.definition)


def test_a_graph_without_gradients_sorts_by_receiver_alone(sorts: list[int]) -> None:
    """Inductor merges equal calls where it splits a graph into two, which it does where gradients are asked for."""
    given, layers = network(PLAN)
    graphs = list[fx.Graph]()

    def note(module: fx.GraphModule, _inputs: Any) -> fx.GraphModule:
        graphs.append(module.graph)
        return module

    with torch.no_grad():
        found = torch.compile(layers, backend=note, fullgraph=True)(given.x, given.y, given.w, given.edge_index)
    torch.testing.assert_close(found, given.step(given.definition)[0], rtol=1e-10, atol=1e-10)
    assert [node.args[1] for node in graphs[0].nodes if node.target is torch.ops.tpgen.order] == [NODES] * 3


def test_operators_on_sorted_edges_are_operators() -> None:
    """They write nowhere and know the shapes of their results; kernels of a CPU take edges as they stand."""
    given = operands(PLAN, 12)
    x1, g, (src, dst) = given["x1"][:NODES], given["out"][:NODES], Network().edge_index
    by_src, by_dst = (torch.ops.tpgen.order(end, NODES) for end in (src, dst))
    for index in (src, dst.int(), dst[:0]):
        torch.library.opcheck(torch.ops.tpgen.order, (index, NODES), test_utils=UTILITIES)
    for cotangent, mask in ((None, OUT), (g, 7), (g, 15)):
        call = x1, given["x2"], given["w"], cotangent, describe(PLAN), mask, src, dst, NODES
        torch.library.opcheck(torch.ops.tpgen.sorted, (*call, by_src, by_dst), test_utils=UTILITIES)
        for found, wanted in zip(
            torch.ops.tpgen.sorted(*call, by_src, by_dst), torch.ops.tpgen.sorted(*call, None, None), strict=True
        ):
            assert torch.equal(found, wanted)
