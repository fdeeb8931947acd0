"""`TensorProductConv`: gather, product, scatter as one module, under every way to run it."""

from __future__ import annotations

import pytest
import torch

from tests.cases import derivatives
from tests.machine import KERNEL, needs_compiler
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

NODES, EDGES = 7, 23
PLANS = {
    "per-row": channelwise("4x0e+3x1o", "0e+1o", "0e+1o"),
    "shared": fully_connected("2x0e+3x1o", "0e+1o", "2x0e+2x1o"),
}
STRATEGIES = [KERNEL, "grouped"]


def _graph(plan: Plan) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Random edges with repetitions and a self-loop; the last node has none."""
    weights = (plan.weight_numel,) if plan.shared_weights else (EDGES, plan.weight_numel)
    shapes = ((NODES, plan.irreps_in1.dim), (EDGES, plan.irreps_in2.dim), weights)
    operands = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    src, dst = torch.randint(NODES - 1, (2, EDGES))
    src[:3], dst[:3] = torch.tensor([1, 1, 2]), torch.tensor([4, 4, 2])
    return operands, src, dst


def _definition(plan: Plan, x, y, w, src, dst) -> torch.Tensor:
    messages = reference_product(plan, x[src], y, w)
    return messages.new_zeros(NODES, messages.shape[1]).index_add(0, dst, messages)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", PLANS)
def test_equals_its_definition_to_second_order(name: str, strategy: str) -> None:
    plan = PLANS[name]
    conv = TensorProductConv.from_plan(plan, False, strategy=strategy).double()
    operands, src, dst = _graph(plan)
    out = conv(*operands, src, dst)
    wanted = _definition(plan, *operands, src, dst)
    assert out[-1].eq(0).all(), "a node without edges is zero"
    torch.testing.assert_close(*(derivatives(o, operands) for o in (out, wanted)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_edges_and_other_numbers_of_nodes(strategy: str) -> None:
    plan = PLANS["per-row"]
    conv = TensorProductConv.from_plan(plan, strategy=strategy)
    none = torch.empty(0, dtype=torch.int64)
    x, y, w = torch.randn(3, 13), torch.randn(0, 4), torch.randn(0, plan.weight_numel)
    assert conv(x, y, w, none, none).eq(0).all()
    assert conv(x, y, w, none, none, num_nodes=5).shape == (5, plan.irreps_out.dim)
    assert conv(x[:0], y, w, none, none, num_nodes=0).shape == (0, plan.irreps_out.dim)


def test_internal_weights_and_state() -> None:
    conv = TensorProductConv.from_plan(PLANS["shared"]).double()
    (x, y, _), src, dst = _graph(PLANS["shared"])
    torch.testing.assert_close(conv(x, y, None, src, dst), conv(x, y, conv.weight, src, dst))
    assert set(conv.state_dict()) == {"weight", "output_mask"}


def test_compiles_with_a_network_around_it() -> None:
    plan = PLANS["per-row"]
    conv = TensorProductConv.from_plan(plan).double()
    operands, src, dst = _graph(plan)

    def network(x, y, w, src, dst):
        return conv(x.tanh(), y, w, src, dst).square().sum()

    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    for edges in (slice(None), slice(9), slice(2, 17)):
        x, y, w = operands[0], *(x[edges].detach().requires_grad_() for x in operands[1:])
        inputs = (x, y, w, src[edges], dst[edges])
        got = torch.autograd.grad(compiled(*inputs), inputs[:3])
        torch.testing.assert_close(got, torch.autograd.grad(network(*inputs), inputs[:3]))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "change, message",
    [
        ({"src": lambda src: src.short()}, "edge_src: must be int64 or int32, got torch.int16"),
        ({"dst": lambda dst: dst[1:]}, f"edge_dst: must hold one index for each of the {EDGES} edges, got"),
        ({"src": lambda src: src - 9}, "edge_src"),
        ({"dst": lambda dst: dst + NODES}, "edge_dst"),
        ({"w": lambda w: w[1:]}, f"weight: must have one row for each of the {EDGES} edges"),
        ({"x": lambda x: x[None]}, r"a convolution takes x as \(nodes, in1\)"),
        ({"y": lambda y: y[:, 1:]}, "y: the last dimension must be 4"),
    ],
)
def test_what_does_not_fit_is_named(strategy: str, change: dict, message: str) -> None:
    plan = PLANS["per-row"]
    conv = TensorProductConv.from_plan(plan, strategy=strategy).double()
    (x, y, w), src, dst = _graph(plan)
    given = {"x": x, "y": y, "w": w, "src": src, "dst": dst}
    for name, edit in change.items():
        given[name] = edit(given[name])
    with pytest.raises(InputError, match=message):
        conv(*given.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", PLANS)
def test_scripts(name: str, strategy: str) -> None:
    conv = TensorProductConv.from_plan(PLANS[name], False, strategy=strategy).double()
    operands, src, dst = _graph(PLANS[name])
    scripted = torch.jit.script(conv)
    for nodes, check in ((None, True), (NODES + 1, False)):
        wanted = conv(*operands, src, dst, nodes, check)
        got = scripted(*operands, src, dst, nodes, check)
        torch.testing.assert_close(*(derivatives(o, operands, 1) for o in (got, wanted)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edges_may_be_int32(strategy: str) -> None:
    conv = TensorProductConv.from_plan(PLANS["per-row"], strategy=strategy).double()
    operands, src, dst = _graph(PLANS["per-row"])
    wanted = derivatives(conv(*operands, src, dst), operands, 1)
    narrow = src.int(), dst.int()
    runs = {
        "called": conv,
        "scripted": torch.jit.script(conv),
        "traced": torch.jit.trace(conv, (*operands, *narrow), check_trace=False),
        "compiled": torch.compile(conv, fullgraph=True, backend="aot_eager", dynamic=True),
        "exported": torch.export.export(conv, (*operands, *narrow)).module(),
    }
    for name, run in runs.items():
        torch.testing.assert_close(derivatives(run(*operands, *narrow), operands, 1), wanted, msg=name)
    each = torch.stack([src, dst]).int()
    batched = torch.func.vmap(lambda s: conv(*operands, s, narrow[1]))(each)
    torch.testing.assert_close(batched, torch.stack([conv(*operands, s.long(), dst) for s in each]))
    with pytest.raises(InputError, match=r"edge_src.*0 to 6.* got 100"):
        conv(*operands, narrow[0] + 100, narrow[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_too_few_nodes(strategy: str) -> None:
    conv = TensorProductConv.from_plan(PLANS["per-row"], strategy=strategy).double()
    operands, src, dst = _graph(PLANS["per-row"])
    with pytest.raises(InputError, match=r"edge_dst.*0 to 1.*num_nodes"):
        conv(*operands, src, dst, num_nodes=2)
    with pytest.raises(InputError, match="num_nodes: must not be negative, got -1"):
        conv(*operands, src, dst, num_nodes=-1)


@needs_compiler
@pytest.mark.parametrize("around", [lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")])
def test_edges_can_be_trusted(around) -> None:
    """Without the check a node past the end of the features is read, here from the tensor they are a part of."""
    plan = PLANS["per-row"]
    conv = TensorProductConv.from_plan(plan, strategy="kernel").double()
    operands, src, dst = _graph(plan)
    x, y, w = (x.detach() for x in operands)
    src[0], part = NODES - 1, x[:-1]
    run = around(lambda x, check: conv(x, y, w, src, dst, NODES, check_index=check))
    torch.testing.assert_close(run(part, False), conv(x, y, w, src, dst))
    with pytest.raises(InputError, match="edge_src holds an index out of range: indices run from 0 to 5"):
        run(part, True)


@needs_compiler
def test_an_exported_network_keeps_its_trust() -> None:
    plan = PLANS["per-row"]
    conv = TensorProductConv.from_plan(plan, strategy="kernel").double()
    (x, y, w), src, dst = _graph(plan)

    class Network(torch.nn.Module):
        def forward(self, x, y, w, src, dst):
            return conv(x, y, w, src, dst, check_index=False)

    program = torch.export.export(Network(), (x, y, w, src, dst))
    assert '"check_index":false' in program.graph_module.code.replace("\\", "")
    torch.testing.assert_close(program.module()(x, y, w, src, dst), conv(x, y, w, src, dst))


def test_right_says_where_to_find_it() -> None:
    with pytest.raises(InputError, match="right is not defined for a convolution"):
        TensorProductConv.from_plan(PLANS["shared"]).right(torch.randn(2, 4))
