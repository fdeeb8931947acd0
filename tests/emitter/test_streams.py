"""Streams: structure and order on any machine; numerics and races where there is a CUDA device."""

from __future__ import annotations

import pytest
import torch

from tpgen.base.errors import BackendError, EmitError
from tpgen.emitter import streams as cuda
from tpgen.emitter.emit import emit_plan
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.planner.product import make_plan

STREAM_FUNCTIONS = (cuda.current_stream, cuda.side_stream, cuda.wait, cuda.set_stream, cuda.hand_over)
PLAN = channelwise("4x0e+4x1o+4x2e", "0e+1o+2e", "0e+1o+2e")


def _places(emission) -> dict[str, int | None]:
    """Which side stream each node runs on, by walking the graph as the machine would."""
    current, numbers, places = None, {}, {}
    for node in emission.graph.nodes:
        if node.target is cuda.side_stream:
            numbers[node] = node.args[1]
        elif node.target is cuda.set_stream:
            current = numbers.get(node.args[0])
        places[node.name] = current
    assert current is None, "the caller's stream must be current again at the end"
    return places


@pytest.mark.parametrize("strategy", ["einsum", "grouped", "unrolled"])
def test_no_node_reads_what_another_stream_may_still_write(strategy: str) -> None:
    emission = emit_plan(PLAN, "forward", strategy, streams=3)
    places = _places(emission)
    assert {p for p in places.values() if p is not None} == {0, 1, 2}
    joined = False
    for node in emission.graph.nodes:
        if node.target is cuda.wait and node.args[0].target is cuda.current_stream:
            joined = True
        for read in node.all_input_nodes:
            same = places[read.name] == places[node.name]
            before = places[read.name] is None  # work of the caller's stream, for which side streams wait
            assert same or before or joined, f"{node} reads {read}"


def test_every_side_stream_waits_and_is_waited_for() -> None:
    emission = emit_plan(PLAN, "forward", "einsum", streams=2)
    waits = [n.args for n in emission.graph.nodes if n.target is cuda.wait]
    main = next(n for n in emission.graph.nodes if n.target is cuda.current_stream)
    sides = [n for n in emission.graph.nodes if n.target is cuda.side_stream]
    assert {(s, main) for s in sides} | {(main, s) for s in sides} == set(waits)


def test_results_read_by_the_caller_are_handed_over() -> None:
    emission = emit_plan(PLAN, "forward", "einsum", streams=2)
    places = _places(emission)
    handed = {n.args[0] for n in emission.graph.nodes if n.target is cuda.hand_over}
    for node in emission.graph.nodes:
        if node.target in STREAM_FUNCTIONS or places[node.name] is not None:
            continue
        assert all(places[read.name] is None or read in handed for read in node.all_input_nodes)


def test_streams_change_order_only() -> None:
    def computed(streams: int) -> list[str]:
        graph = emit_plan(PLAN, "forward", "einsum", streams=streams).graph
        return sorted(n.name for n in graph.nodes if n.target not in STREAM_FUNCTIONS)

    assert computed(0) == computed(2)


def test_a_single_path_needs_no_stream() -> None:
    emission = emit_plan(channelwise("4x1o", "1o", "0e"), "forward", "einsum", streams=2)
    assert not any(n.target in STREAM_FUNCTIONS for n in emission.graph.nodes)


ONE_PATH = make_plan("1o", "1o", "1e", [(0, 0, 0, "uuu", True)], shared_weights=False)


@pytest.mark.parametrize("plan", [PLAN, ONE_PATH])
def test_streams_on_a_cpu_are_an_error(plan: Plan) -> None:
    product = TensorProduct.from_plan(plan, internal_weights=False, streams=2)
    operands = [torch.randn(3, d) for d in (plan.irreps_in1.dim, plan.irreps_in2.dim, plan.weight_numel)]
    with pytest.raises(BackendError, match="streams are CUDA streams, and the operands are on cpu"):
        product(*operands)


@pytest.mark.parametrize("count", [-1, 1.5, "2", True])
def test_bad_number_of_streams(count) -> None:
    with pytest.raises(EmitError, match="streams must be a positive number"):
        emit_plan(PLAN, "forward", "einsum", streams=count)


def test_streams_need_the_eager_backend() -> None:
    with pytest.raises(BackendError, match="use backend='eager', or streams=0"):
        TensorProduct.from_plan(PLAN, streams=2, backend="inductor")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_streams_are_exact_under_repetition() -> None:
    plan = PROBLEMS["mace-medium"].plan
    dims = (plan.irreps_in1.dim, plan.irreps_in2.dim, plan.weight_numel)
    operands = [torch.randn(2000, d, device="cuda", requires_grad=True) for d in dims]
    plain = TensorProduct.from_plan(plan).cuda()
    wanted = plain(*operands)
    gradients = torch.autograd.grad(wanted.square().sum(), operands)
    product = TensorProduct.from_plan(plan, streams=4).cuda()
    for _ in range(50):
        out = product(*operands)
        torch.testing.assert_close(out, wanted)
        for got, expected in zip(torch.autograd.grad(out.square().sum(), operands), gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
