"""Gather, product and scatter in one: values, derivatives, order of summation, bad edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.kernels.plans import call, gradients
from tests.kernels.test_products import identical, on_threads
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.kernels.build import build
from tpgen.kernels.rows import RowIndex
from tpgen.kernels.runtime import load
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.native.runtime import load_cpp_runtime
from tpgen.kernels.runtime.ops import describe, kernel_conv
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.product import make_plan

PLANS = {
    "channel": channelwise("8x0e+9x1o", "0e+1o", "0e+1o"),
    "channel, shared": channelwise("8x0e+8x1o", "0e+1o", "1o", shared_weights=True),
    "batch": fully_connected("2x0e+1o", "0e+1o", "2x1o", shared_weights=False),
    "batch, shared": fully_connected("2x0e+1o", "0e+1o", "2x1o"),
}
MIXED = make_plan("3x1o", "1o", "3x1e+3x0e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False)])  # in weights
ALL = pytest.mark.parametrize("name", PLANS)
SOURCES, NODES, EDGES = 7, 6, 23


def graph(plan: Plan, edges: int = EDGES, dtype: torch.dtype = torch.float64, nodes: int = NODES) -> tuple[Tensor, ...]:
    """Inputs and edges: in any order, some repeated, node ``nodes - 1`` isolated."""
    weights = (plan.weight_numel,) if plan.shared_weights else (edges, plan.weight_numel)
    inputs = [
        torch.randn(shape, dtype=dtype)
        for shape in ((SOURCES, plan.irreps_in1.dim), (edges, plan.irreps_in2.dim), weights)
    ]
    return *(x.requires_grad_() for x in inputs), torch.randint(SOURCES, (edges,)), torch.randint(nodes - 1, (edges,))


def definition(plan: Plan, x1: Tensor, x2: Tensor, w: Tensor, src: Tensor, dst: Tensor, nodes: int = NODES) -> Tensor:
    messages = reference_product(plan, x1[src], x2, w)
    return messages.new_zeros(nodes, messages.shape[1]).index_add(0, dst, messages)


@ALL
@pytest.mark.parametrize("edges", [1, EDGES])
def test_value_and_gradients(name: str, edges: int) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan, edges)
    got, wanted = kernel_conv(*inputs, src, dst, NODES, describe(plan)), definition(plan, *inputs, src, dst)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    g = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, inputs, g), torch.autograd.grad(wanted, inputs, g), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@ALL
@pytest.mark.parametrize("ends", [(torch.int32, torch.int32), (torch.int32, torch.int64), (torch.int64, torch.int32)])
def test_indices_of_32_bits_are_read_as_they_are(name: str, ends: tuple[torch.dtype, ...], monkeypatch) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan)
    narrow = src.to(ends[0]), dst.to(ends[1])

    def orders(*edges: Tensor) -> list[Tensor]:
        out = kernel_conv(*inputs, *edges, NODES, describe(plan))
        first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
        return [out, *first, *torch.autograd.grad(sum(x.square().sum() for x in first), inputs)]

    wanted = orders(src, dst)
    monkeypatch.setattr(Tensor, "long", lambda _: pytest.fail("copied"))
    monkeypatch.setattr(Tensor, "to", lambda *_: pytest.fail("copied"))
    found = orders(*narrow)
    monkeypatch.undo()
    assert all(map(torch.equal, found, wanted))


def test_the_runtime_takes_indices_of_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["channel"]
    x1, x2, w, src, dst = (x.detach() for x in graph(plan))
    product = kernels_of(describe(plan))
    wanted = product.run(call("out", x1, x2, w, text=describe(plan), edges=(src, dst), nodes=NODES))
    if load_cpp_runtime() is None:
        pytest.skip("no runtime on this machine")
    narrow = call("out", x1, x2, w, text=describe(plan), edges=(src.int(), dst.int()), nodes=NODES)
    assert torch.equal(*product.compute_in_cpp(narrow), *wanted)
    assert not product.compute_in_cpp(
        call("out", x1, x2, w, text=describe(plan), edges=(src.short(), dst), nodes=NODES)
    )


@ALL
def test_no_edges_at_all(name: str) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan, 0)
    out = kernel_conv(*inputs, src, dst, NODES, describe(plan))
    assert out.shape == (NODES, plan.irreps_out.dim)
    assert all(x.abs().sum() == 0.0 for x in (out, *torch.autograd.grad(out.sum(), inputs)))


@ALL
def test_second_derivatives_and_forward_mode(name: str) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan, 9)

    def conv(*inputs: Tensor) -> Tensor:
        return kernel_conv(*inputs, src, dst, NODES, describe(plan))

    assert torch.autograd.gradgradcheck(conv, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(conv, inputs, check_forward_ad=True, fast_mode=True)


@ALL
def test_torch_accepts_the_operators(name: str) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan, 9)
    forward = call("out", *inputs, text=describe(plan), edges=(src, dst), nodes=NODES)
    torch.library.opcheck(torch.ops.tpgen.form.default, forward.to_arguments())
    g = torch.randn(NODES, plan.irreps_out.dim, dtype=torch.float64, requires_grad=True)
    backward = call("x1 x2 w out", *inputs, g, text=describe(plan), edges=(src, dst))
    torch.library.opcheck(torch.ops.tpgen.form.default, backward.to_arguments())


@pytest.mark.parametrize("name", ["channel", "batch, shared"])
def test_vmap_over_graphs(name: str) -> None:
    plan = PLANS[name]
    x1, x2, w, src, dst = (x.detach() for x in graph(plan, 9))
    batch = torch.randn(3, *x1.shape, dtype=x1.dtype)
    indices = torch.stack([src, src.flip(0), src.roll(1)])
    got = torch.func.vmap(lambda x, s: kernel_conv(x, x2, w, s, dst, NODES, describe(plan)))(batch, indices)
    wanted = torch.stack([definition(plan, x, x2, w, s, dst) for x, s in zip(batch, indices, strict=True)])
    torch.testing.assert_close(got, wanted)


@ALL
def test_same_bits_whatever_the_threads(name: str) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan, 4000, torch.float32)

    def compute() -> list[Tensor]:
        out = kernel_conv(*inputs, src, dst, NODES, describe(plan))
        return [out.detach(), *torch.autograd.grad(out.pow(2).sum(), inputs)]

    assert identical(on_threads(1, compute), on_threads(2, compute))
    assert identical(on_threads(2, compute), on_threads(2, compute))


def test_isolated_nodes_and_self_loops() -> None:
    plan = PLANS["channel"]
    x1, x2, w, _, _ = (x.detach() for x in graph(plan, 4))
    loops = torch.tensor([2, 2, 0, 2])
    out = kernel_conv(x1, x2, w, loops, loops, SOURCES, describe(plan))
    assert out[[1, 3, 4, 5, 6]].abs().max() == 0.0
    torch.testing.assert_close(out, definition(plan, x1, x2, w, loops, loops, SOURCES))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"src": torch.full((5,), SOURCES)}, r"edge_src holds an index out of range: indices run from 0 to 6"),
        ({"dst": torch.full((5,), -1)}, r"edge_dst holds an index out of range: indices run from 0 to 5"),
        ({"nodes": 0}, r"edge_dst holds an index out of range"),
        ({"nodes": -1}, r"num_nodes must not be negative, got -1"),
        ({"src": torch.zeros(5)}, r"edge_src must be int64 or int32, got torch.float32: .*edge_src.long"),
        ({"dst": torch.zeros(4, dtype=torch.int64)}, r"edge_dst must have shape \(5,\).*got \(4,\)"),
    ],
)
def test_bad_edges_are_refused(change: dict, message: str) -> None:
    plan = PLANS["channel"]
    x1, x2, w, src, dst = (x.detach() for x in graph(plan, 5))
    arguments = {"src": src, "dst": dst, "nodes": NODES, **change}
    with pytest.raises(InputError, match=message):
        kernel_conv(x1, x2, w, arguments["src"], arguments["dst"], arguments["nodes"], describe(plan))


@ALL
def test_low_precision_sums_are_not_rounded_between_edges(name: str) -> None:
    plan = PLANS[name]
    x1, x2, w, src, dst = (x.detach() for x in graph(plan, 300))
    low = [x.bfloat16() for x in (x1, x2, w)]
    wanted = definition(plan, *(x.double() for x in low), src, dst)
    got = kernel_conv(*low, src, dst, NODES, describe(plan))
    assert got.dtype == torch.bfloat16
    assert (got.double() - wanted).abs().max() < 2**-8 * wanted.abs().max()


@ALL
def test_low_precision_builds_only_what_it_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, made, ran = PLANS[name], set(), set()
    kernel = Kernels.get_kernel

    def listening(product: Kernels, *key):
        made.add(key)
        return lambda *values: (ran.add(key), kernel(product, *key)(*values))[1]

    kernels_of.cache_clear()
    if load_cpp_runtime() is not None:
        monkeypatch.setattr(
            load_cpp_runtime(), "_numbers", {}
        )  # which has the kernels of products of the same description
    monkeypatch.setattr(Kernels, "get_kernel", listening)
    monkeypatch.setattr(forms, "training", True)  # as no module in evaluation has called last
    *inputs, src, dst = graph(plan, dtype=torch.bfloat16)
    kernel_conv(*inputs, src, dst, NODES, describe(plan)).sum().backward()
    kernels_of.cache_clear()
    assert len(ran) == 2
    assert made == ran


# -- edges that are trusted --------------------------------------------------------------------------------------------


def trusting(plan: Plan) -> str:
    return describe(plan, check_index=False)


@ALL
def test_trusted_edges_give_the_same(name: str) -> None:
    plan = PLANS[name]
    *inputs, src, dst = graph(plan)
    for order in (torch.tensor(range(EDGES)), torch.randperm(EDGES)):
        outs = [kernel_conv(*inputs, src, dst[order], NODES, text) for text in (describe(plan), trusting(plan))]
        assert identical(*(list(torch.autograd.grad(out.sin().sum(), inputs)) for out in outs))


@ALL
def test_nothing_checks_trusted_edges(name: str) -> None:
    """Rows past the end of an operand that is part of a larger one are read, where a check would refuse them."""
    plan = PLANS[name]
    x1, x2, w, src, dst = (x.detach() for x in graph(plan))
    src[0], dst[-1] = SOURCES - 1, NODES - 1
    wanted = kernel_conv(x1, x2, w, src, dst, NODES, describe(plan))
    assert torch.equal(kernel_conv(x1[:-1], x2, w, src, dst, NODES, trusting(plan)), wanted)
    with pytest.raises(InputError, match="edge_src holds an index out of range"):
        kernel_conv(x1[:-1], x2, w, src, dst, NODES, describe(plan))
    g = torch.randn(NODES, plan.irreps_out.dim, dtype=x1.dtype)
    wanted = gradients(describe(plan), x1, x2, w, g, opened="x2 w", edges=(src, dst))
    found = gradients(trusting(plan), x1[:-1], x2, w, g[:-1], opened="x2 w", edges=(src, dst))
    assert identical(found, wanted)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each kernel that runs is told to check its edges: all are called from Python, where calls are heard."""
    heard: list[bool] = []
    told = load._index_structs

    def listening(indices: Sequence[RowIndex]):
        heard.extend({index.check for index in indices})
        return told(indices)

    kernels_of.cache_clear()
    monkeypatch.setattr(load, "_index_structs", listening)
    monkeypatch.setattr(build, "get_function_address", lambda function: None)
    yield heard
    kernels_of.cache_clear()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["channel", "channel, shared", "mixed"])
def test_derivatives_check_as_their_product_does(name: str, check: bool, told: list[bool]) -> None:
    plan = {**PLANS, "mixed": MIXED}[name]
    text = describe(plan, check_index=check)
    *inputs, src, dst = graph(plan, 9)

    def energy(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return kernel_conv(x1, x2, w, src, dst, NODES, text).sin().sum()

    value = energy(*inputs)
    for _ in range(3):
        value = sum(g.sin().sum() for g in torch.autograd.grad(value, inputs, create_graph=True))
    x1, x2, w = (x.detach() for x in inputs)
    torch.func.vmap(torch.func.grad(energy, 2), (None, None, 0))(x1, x2, torch.stack([w, w]))
    torch.func.hessian(energy, 1)(x1, x2, w)
    torch.func.jvp(lambda x: energy(x, x2, w), (x1,), (x1,))
    assert len(told) > 10
    assert set(told) == {check}


@pytest.mark.parametrize("check", [True, False])
def test_compiled_programs_check_as_they_were_told(check: bool, told: list[bool]) -> None:
    plan = PLANS["channel"]
    text = describe(plan, check_index=check)
    *inputs, src, dst = graph(plan, 9)

    def energy(x1: Tensor, x2: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return kernel_conv(x1, x2, w, src, dst, NODES, text).sin().sum()

    torch.compile(energy, fullgraph=True, backend="aot_eager")(*inputs, src, dst).backward()
    assert told == [check] * 2
