"""Convolutions in which two edges share a row of weights, beside the same with a row for each edge."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import tpgen
from tests.cases import derivatives
from tests.machine import needs_compiler
from tpgen import TensorProductConv
from tpgen.base.errors import InputError
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_conv, kernel_product
from tpgen.kernels.runtime.pairs import repeat_paired_rows
from tpgen.planner.presets import channelwise
from tpgen.planner.product import make_plan

NODES = 9
PLANS = {
    "mace": ("16x0e", "0e+1o+2e", "16x0e+16x1o+16x2e"),
    "odd": ("5x0e+3x1o", "0e+1o", "5x0e+3x1o"),
    "wide": ("128x0e", "0e+1o+2e+3o", "128x0e+128x1o+128x2e+128x3o"),
    "many paths": ("4x0e+4x1o+4x2e+4x3o", "0e+1o+2e+3o", "4x0e+4x1o+4x1e+4x2e+4x2o+4x3o+4x3e"),
    "mixed": ("6x0e+2x1o", "0e+1o", "6x0e+2x1o"),
}


def conv_of(name: str) -> TensorProductConv:
    return TensorProductConv.from_plan(channelwise(*PLANS[name]), strategy="kernel").double()


def operands(conv: TensorProductConv, rows: int, edges: int, nodes: int = NODES) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((nodes, conv._in1_dim), (edges, conv._in2_dim), (rows, conv.weight_numel))
    given = [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]
    return given, [torch.randint(nodes, (edges,), generator=generator) for _ in range(2)]


def per_edge(conv: TensorProductConv, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return conv(x, y, torch.cat([w, w[: len(y) - len(w)]]), src, dst)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "edges"), [(20, 40), (20, 33), (20, 20), (700, 1391), (0, 0)])
@pytest.mark.parametrize("name", PLANS)
def test_edges_that_share_weights_are_edges_with_equal_weights(name: str, rows: int, edges: int, threads: int) -> None:
    conv = conv_of(name)
    given, ends = operands(conv, rows, edges)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = derivatives(conv.forward_pairs(*given, *ends), given)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, derivatives(per_edge(conv, *given, *ends), given), strict=True):
        limit = 1e-9 * float(other.detach().abs().max()) if len(other) else 0.0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=limit)


@needs_compiler
def test_int32_ends_bfloat16_and_numbers_of_nodes_are_taken_as_by_forward() -> None:
    conv = conv_of("mace").to(torch.bfloat16)
    given, ends = operands(conv, 20, 40)
    given = [x.detach().bfloat16().requires_grad_() for x in given]
    found = conv.forward_pairs(*given, *(end.int() for end in ends), num_nodes=12)
    assert found.shape == (12, conv.irreps_out.dim)
    exact = conv_of("mace")
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = per_edge(exact, *wide, *ends)
    torch.testing.assert_close(found[:NODES].double(), expected, rtol=0.02, atol=0.05)
    for one, other in zip(
        torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), wide), strict=True
    ):
        torch.testing.assert_close(one.double(), other, rtol=0.05, atol=0.1 * float(other.abs().max()))


@needs_compiler
def test_autocast_and_other_dtypes_are_as_by_forward() -> None:
    conv = conv_of("mace").float()
    given, ends = operands(conv, 20, 40)
    x, y, w = (x.detach().float() for x in given)
    with torch.autocast("cpu"):
        found = conv.forward_pairs(x.bfloat16(), y, w.bfloat16(), *ends)
        expected = per_edge(conv, x.bfloat16(), y, w.bfloat16(), *ends)
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match="weight"):
        conv.forward_pairs(x, y, w.double(), *ends)


@needs_compiler
def test_sorted_edges_are_as_by_forward() -> None:
    conv = conv_of("mace")
    (x, y, w), (src, dst) = operands(conv, 20, 40)
    edges = tpgen.EdgeOrder.of(src, dst, NODES)
    torch.testing.assert_close(conv.forward_pairs(x, y, w, edges), per_edge(conv, x, y, w, edges, None))


@needs_compiler
@pytest.mark.parametrize("batched", [(0, None, 0), (None, 0, None), (0, 0, 1), (None, None, 0)])
def test_vmap_is_a_loop_over_samples(batched: tuple[int | None, ...]) -> None:
    conv = conv_of("odd")
    given, ends = operands(conv, 7, 12)
    many = [
        x.detach() if dim is None else torch.stack([x.detach() * scale for scale in (1.0, -0.5, 2.0)], dim)
        for x, dim in zip(given, batched, strict=True)
    ]

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda *t: conv.forward_pairs(*t, *ends).square().sum(), argnums=(0, 1, 2))(*tensors)

    found = torch.func.vmap(gradients, in_dims=batched)(*many)
    for n in range(3):
        sample = [x if dim is None else x.select(dim, n) for x, dim in zip(many, batched, strict=True)]
        for one, other in zip(found, gradients(*sample), strict=True):
            torch.testing.assert_close(one[n], other)


@needs_compiler
def test_gradients_of_many_cotangents_are_those_of_each() -> None:
    conv = conv_of("mace")
    given, ends = operands(conv, 20, 40)
    made, cotangents = (
        conv.forward_pairs(*given, *ends),
        torch.randn(3, NODES, conv.irreps_out.dim, dtype=torch.float64),
    )
    found = torch.autograd.grad(made, given, cotangents, is_grads_batched=True, retain_graph=True)
    for n, g in enumerate(cotangents):
        for one, other in zip(found, torch.autograd.grad(made, given, g, retain_graph=True), strict=True):
            torch.testing.assert_close(one[n], other)


@needs_compiler
def test_gradients_do_not_depend_on_threads() -> None:
    conv = conv_of("wide").float()
    given, ends = operands(conv, 900, 1800, nodes=40)
    given = [x.detach().float().requires_grad_() for x in given]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4, 4, 4):
            torch.set_num_threads(threads)
            found.append(torch.autograd.grad(conv.forward_pairs(*given, *ends).square().sum(), given))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, same) for one, same in zip(found[0], other, strict=True))


@needs_compiler
@pytest.mark.parametrize("strategy", ["kernel", "grouped"])
@pytest.mark.parametrize("rows", [5, 13])
def test_rows_of_weights_that_are_no_pairs_are_an_error(rows: int, strategy: str) -> None:
    conv = TensorProductConv.from_plan(channelwise(*PLANS["mace"]), strategy=strategy).double()
    given, ends = operands(conv, rows, 12)
    with pytest.raises(InputError, match="12 edges take 6 to 12 rows of weights, got"):
        conv.forward_pairs(*given, *ends)


@pytest.mark.parametrize("strategy", ["grouped", "unrolled"])
def test_other_strategies_repeat_the_rows(strategy: str) -> None:
    conv = TensorProductConv.from_plan(channelwise(*PLANS["odd"]), strategy=strategy).double()
    given, ends = operands(conv, 7, 12)
    found, wanted = (derivatives(way(*given, *ends), given) for way in (conv.forward_pairs, partial(per_edge, conv)))
    torch.testing.assert_close(found, wanted)


@needs_compiler
def test_a_program_exports_with_pairs_and_any_number_of_edges() -> None:
    conv = conv_of("mace")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
            return self.conv.forward_pairs(x, y, w, src, dst)

    given, ends = operands(conv, 20, 40)
    rows, edges, nodes = (torch.export.Dim(name, min=2) for name in ("rows", "edges", "nodes"))
    shapes = ({0: nodes}, {0: edges}, {0: rows}, {0: edges}, {0: edges})
    program = torch.export.export(Net(), (*[x.detach() for x in given], *ends), dynamic_shapes=shapes)
    more, others = operands(conv, 31, 50)
    torch.testing.assert_close(
        program.module()(*[x.detach() for x in more], *others), conv.forward_pairs(*more, *others).detach()
    )


NARROW = ("8x0e+2x1o", "0e+1o", "8x0e+2x1o", [(0, 0, 0, "uvu", False), (1, 0, 1, "uvu", True)])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_paths_may_be_narrower_than_the_others(dtype: torch.dtype) -> None:
    """Alone they have other kernels, in which no two edges share a row of weights."""
    plan = make_plan(*NARROW, shared_weights=False)
    conv = TensorProductConv.from_plan(plan, strategy="kernel").to(dtype)
    given, ends = operands(conv, 7, 12)
    x, y, w = (x.detach().to(dtype) for x in given)
    ways = conv.forward_pairs, partial(per_edge, conv)
    found, expected = (torch.func.jvp(lambda w, way=way: way(x, y, w, *ends), (w,), (w,)) for way in ways)
    torch.testing.assert_close(found, expected)
    given = [t.requires_grad_() for t in (x, y, w)]
    text = describe(plan)
    made, other = (
        derivatives(out, given)
        for out in (kernel_conv(x, y, w, *ends, NODES, text, paired=True), per_edge(conv, x, y, w, *ends))
    )
    torch.testing.assert_close(made, other, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_products_that_mix_copies_repeat_the_rows() -> None:
    mixed = [(0, 0, 0, "uvw", True), (1, 1, 0, "uvw", True)]
    plan = make_plan("4x0e+4x1o", "0e+1o", "4x0e+4x1o", mixed, shared_weights=False)
    conv = TensorProductConv.from_plan(plan, strategy="kernel").double()
    given, ends = operands(conv, 7, 12)
    expected = derivatives(per_edge(conv, *given, *ends), given)
    text = describe(plan)
    for made in (conv.forward_pairs(*given, *ends), kernel_conv(*given, *ends, NODES, text, paired=True)):
        torch.testing.assert_close(derivatives(made, given), expected)


def test_coefficients_beyond_float32_are_no_obstacle_in_float64() -> None:
    words = {"irrep_normalization": "none", "path_normalization": "none", "shared_weights": False}
    plan = make_plan("8x0e", "0e", "8x0e", [(0, 0, 0, "uvu", True, 1e90)], **words)
    conv = TensorProductConv.from_plan(plan).double()
    given, ends = operands(conv, 7, 12)
    torch.testing.assert_close(conv.forward_pairs(*given, *ends), per_edge(conv, *given, *ends))


def test_weights_that_all_rows_share_have_no_rule() -> None:
    text = describe(make_plan("8x0e", "0e", "8x0e", [(0, 0, 0, "uvu", True)], shared_weights=True))
    index = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InputError, match="rows share one set of weights"):
        kernel_conv(torch.ones(1, 8), torch.ones(3, 1), torch.ones(8), index, index, 1, text, paired=True)


@needs_compiler
def test_rows_without_edges_may_share_weights_too() -> None:
    (x, y, w), _ = operands(conv_of("odd").float(), 7, 12, nodes=12)
    given, text = [t.detach().float() for t in (x, y)], describe(channelwise(*PLANS["odd"]))
    found = torch.ops.tpgen.form([*given, w.detach().float()], [], text, "x1 x2 w -> out", "pair")[0]
    torch.testing.assert_close(found, kernel_product(*given, repeat_paired_rows(w.detach().float(), 12), text))


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
def test_weights_that_are_missing_or_shared_are_said(strategy: str) -> None:
    conv = TensorProductConv.from_plan(channelwise(*PLANS["odd"]), strategy=strategy).double()
    (x, y, _), ends = operands(conv, 7, 12)
    with pytest.raises(InputError, match="no weights of its own"):
        conv.forward_pairs(x, y, None, *ends)
    shared = TensorProductConv.from_plan(channelwise(*PLANS["odd"], shared_weights=True), strategy=strategy).double()
    w = torch.randn(shared.weight_numel, dtype=torch.float64)
    torch.testing.assert_close(shared.forward_pairs(x, y, w, *ends), shared(x, y, w, *ends))
