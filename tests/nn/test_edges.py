"""`EdgeOrder`: sorted edges give what unsorted ones give, under every way to run a convolution."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tpgen
from tests.cases import derivatives
from tests.machine import KERNEL
from tpgen.base.errors import DeployError, InputError
from tpgen.kernels.cuda import orders
from tpgen.networks.program import network_program
from tpgen.nn import edges as module
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.edges import EdgeOrder
from tpgen.planner.presets import channelwise

NODES, EDGES = 7, 23
PLAN = channelwise("4x0e+3x1o", "0e+1o", "0e+1o")
STRATEGIES = [KERNEL, "grouped"]


def graph() -> tuple[list[Tensor], Tensor, Tensor]:
    shapes = ((NODES, PLAN.irreps_in1.dim), (EDGES, PLAN.irreps_in2.dim), (EDGES, PLAN.weight_numel))
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    return operands, *torch.randint(NODES - 1, (2, EDGES))


def conv(strategy: str) -> TensorProductConv:
    return TensorProductConv.from_plan(PLAN, strategy=strategy).double()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_values_and_derivatives_are_those_of_the_edges_given(strategy: str) -> None:
    run, (operands, src, dst) = conv(strategy), graph()
    edges = EdgeOrder.of(src, dst, NODES)
    x, y, w = operands
    outs = [run(x, y, w, src, dst), run(x, edges.sort(y), edges.sort(w), edges)]
    torch.testing.assert_close(*(derivatives(out, operands) for out in outs), rtol=1e-11, atol=1e-11)


def test_what_it_holds() -> None:
    _, src, dst = graph()
    edges = EdgeOrder.of(src, dst, NODES)
    assert torch.equal(edges.senders, src[edges.order])
    assert torch.equal(edges.receivers, dst.sort(stable=True).values)
    assert torch.equal(edges.first.diff(), torch.bincount(dst, minlength=NODES))
    attributes = torch.randn(EDGES, 3)
    assert torch.equal(edges.unsort(edges.sort(attributes)), attributes)
    assert str(edges) == "23 edges of 7 nodes, in the order of their receivers"
    assert tpgen.EdgeOrder is EdgeOrder
    assert EdgeOrder.of(src.int(), dst.int(), NODES).senders.dtype == torch.int64
    assert EdgeOrder.of(src[:0], dst[:0], 0).num_edges == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compiled_and_exported(strategy: str) -> None:
    run, (operands, src, dst) = conv(strategy), graph()
    x, y, w = (operand.detach() for operand in operands)
    edges = EdgeOrder.of(src, dst, NODES)
    arguments = (x, edges.sort(y), edges.sort(w), edges)
    wanted = run(*arguments)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(*arguments), wanted)
    torch.testing.assert_close(torch.export.export(run, arguments).module()(*arguments), wanted)
    torch.compiler.reset()


def test_a_program_of_any_number_of_nodes_takes_both_ends_instead() -> None:
    run, (operands, src, dst) = conv("grouped"), graph()
    with pytest.raises(DeployError, match="let forward take its senders and receivers as tensors"):
        network_program(run, [*operands, EdgeOrder.of(src, dst, NODES)])


def test_a_graph_may_be_sorted_inside_of_what_is_compiled() -> None:
    run, (operands, src, dst) = conv("grouped"), graph()
    x, y, w = (operand.detach() for operand in operands)

    def whole(src: Tensor, dst: Tensor) -> Tensor:
        edges = EdgeOrder.of(src, dst, NODES)
        return run(x, edges.sort(y), edges.sort(w), edges)

    found = torch.compile(whole, fullgraph=True, backend="aot_eager")(src, dst)
    torch.testing.assert_close(found, run(x, y, w, src, dst), rtol=1e-12, atol=1e-12)
    torch.compiler.reset()


def test_a_pickle_is_the_same() -> None:
    run, (operands, src, dst) = conv("grouped"), graph()
    edges = EdgeOrder.of(src, dst, NODES)
    loaded = pickle.loads(pickle.dumps(edges))
    sorted_ = edges.sort(operands[1]), edges.sort(operands[2])
    assert torch.equal(run(operands[0], *sorted_, loaded), run(operands[0], *sorted_, edges))


WRITES = {
    "in place": lambda index: index.fill_(NODES),
    "NumPy": lambda index: index.numpy().fill(NODES),
    "data": lambda index: index.data.fill_(NODES),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("end", ["senders", "receivers"])
def test_what_is_written_to_is_checked_again(strategy: str, write: Callable, end: str) -> None:
    run, (operands, src, dst) = conv(strategy), graph()
    edges = EdgeOrder.of(src, dst, NODES)
    run(*operands, edges)
    write(getattr(edges, end))
    with pytest.raises(InputError, match="edge_src" if end == "senders" else "edge_dst"):
        run(*operands, edges)


def test_on_a_gpu_senders_alone_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GPU", "cpu")
    monkeypatch.setattr(module, "captured_graph_number", lambda device: 0)
    edges = EdgeOrder.of(*graph()[1:], NODES)
    monkeypatch.setattr(orders, "sort_by_owner", None)
    first = orders.sort_unless_known(edges.senders, NODES).first
    assert torch.equal(first.diff(), torch.bincount(edges.senders, minlength=NODES))
    assert orders.is_remembered_as_ascending(edges.receivers)
    assert not orders.is_remembered_as_ascending(edges.senders)
    edges.receivers[0] = NODES - 1
    assert not orders.is_remembered_as_ascending(edges.receivers)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda s, r: EdgeOrder.of(s, r + 3, NODES), r"receivers: indices run from 0 to 6 \(num_nodes\), got"),
        (lambda s, r: EdgeOrder.of(s - 9, r, NODES), r"senders: indices run from 0 to 6 \(num_nodes\), got"),
        (lambda s, r: EdgeOrder.of(s.float(), r, NODES), "senders: must be int64 or int32, got torch.float32"),
        (lambda s, r: EdgeOrder.of(s.tolist(), r, NODES), "senders: must be a tensor of int64 or int32, got list"),
        (lambda s, r: EdgeOrder.of(s[:3], r, NODES), r"one index for each edge, got shapes \(3,\) and \(23,\)"),
        (lambda s, r: EdgeOrder.of(s[None], r[None], NODES), r"got shapes \(1, 23\) and \(1, 23\)"),
        (lambda s, r: EdgeOrder.of(s, r, -1), "num_nodes: must be a number of nodes, got -1"),
        (lambda s, r: EdgeOrder.of(s, r, NODES).sort(torch.ones(3)), r"row for each of the 23 edges, got \(3,\)"),
        (lambda s, r: EdgeOrder.of(s, r, NODES).unsort(torch.ones(())), r"row for each of the 23 edges, got \(\)"),
    ],
)
def test_what_is_no_graph_is_refused(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(*graph()[1:])  # type: ignore[operator]


def test_what_does_not_go_with_it_is_refused() -> None:
    run, (operands, src, dst) = conv("grouped"), graph()
    edges = EdgeOrder.of(src, dst, NODES)
    with pytest.raises(InputError, match=r"EdgeOrder.*edge_src, edge_dst and num_nodes"):
        run(*operands, edges, dst)
    with pytest.raises(InputError, match=r"EdgeOrder.*edge_src, edge_dst and num_nodes"):
        run(*operands, edges, num_nodes=NODES + 1)
    with pytest.raises(InputError, match=r"x:.*7.*\(3, 13\)"):
        run(operands[0][:3], *operands[1:], edges)
    with pytest.raises(InputError, match=r"edge_dst:.*EdgeOrder"):
        run(*operands, src)
