"""Random linear layers of many copies, and programs whose products kernels compute, against the slow definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tests.attacks.counts import ATTACKS, CALLS, count
from tests.attacks.products import laid_out
from tests.attacks.test_products import LAYOUTS, TOLERANCE, assert_alike, derivatives
from tests.machine import needs_compiler
from tests.networks.deployment.network import products_of_rows
from tpgen.base._torch import FakeTensorMode
from tpgen.form.reference import reference_product
from tpgen.networks.products import replace_matrix_products_by_kernels
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan

NAMED = LAYOUTS.filter(lambda layout: isinstance(layout, str))  # of both ends
FEWER = settings(max_examples=max(1, ATTACKS // CALLS))
# copies around whole vectors of both dtypes, and of several
COPIES = st.integers(1, 40) | st.sampled_from([0, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 96])
ROWS = st.integers(0, 70) | st.sampled_from([96, 97, 144, 145, 300])
DEGREES = st.sampled_from(["0e", "0e", "0o", "1o", "2e"])
IRREPS = st.lists(st.tuples(COPIES, DEGREES), min_size=1, max_size=3)


@st.composite
def layers(draw: st.DrawFn) -> Any:
    """A layer whose ends share irreps in any order, some of which meet in several paths, or in none."""
    first = draw(IRREPS)
    second = [(draw(COPIES), ir) for _, ir in draw(st.permutations(first))] + draw(st.just([]) | IRREPS)
    pairs = [(i, k) for i, (_, a) in enumerate(first) for k, (_, b) in enumerate(second) if a == b]
    chosen = draw(st.none() | st.just(pairs[:2] + pairs[:1]))
    ends = ["+".join(f"{mul}x{ir}" for mul, ir in end) for end in (first, second)]
    normalization = draw(st.sampled_from(["element", "path", "none"]))
    return make_linear_plan(*ends, chosen, path_normalization=normalization, shared_weights=draw(st.booleans()))


@needs_compiler
@FEWER
@given(
    plan=layers(),
    layout=NAMED,
    dtype=st.sampled_from(list(TOLERANCE)),
    data=st.data(),
)
def test_layers(plan, layout: str, dtype: torch.dtype, data) -> None:
    layer = Linear.from_plan(plan, internal_weights=False, strategy="kernel", layout=layout).to(dtype)
    for _ in range(CALLS):
        rows, order, seed = data.draw(ROWS), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 9999))
        made = torch.Generator().manual_seed(seed)
        numel = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
        shapes = (rows, plan.irreps_in.dim), numel
        exact = [torch.randn(s, generator=made, dtype=torch.float64).to(dtype).double() for s in shapes]
        given_ = [data.draw(laid_out(x.to(dtype))) for x in exact]
        wanted = derivatives(lambda x, w: reference_product(plan, x, w, layout=layout), exact, order)
        assert_alike(derivatives(layer, given_, order), wanted, dtype)
    count("matrix layers", CALLS)


# --- products of programs ---------------------------------------------------------------------------------------------

SIZES = st.integers(1, 40) | st.sampled_from([4, 5, 8, 16, 17, 64, 65])
# ways to write a factor: a matrix as it stands, turned, turned twice, in part, computed, with permutations of none
FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda w: w,
    "turned": lambda w: w.t().contiguous().t(),
    "transposed": lambda w: w.transpose(-1, 0).mul(0.5).transpose(0, 1),
    "permuted": lambda w: torch.permute(torch.permute(w, [1, 0]), [-1, -2]),
    "left": lambda w: torch.permute(torch.permute(w, [-2, -1]), [0, -1]),
    "apart": lambda w: torch.stack([w, w], 2)[:, :, 0],
    "halves": lambda w: torch.cat([w, w], 1)[:, : w.shape[1]],
}
RUN = {"tanh": torch.tanh, "sin": torch.sin, "twice": lambda x: 2 * x, "turned rows": lambda x: x.t().contiguous().t()}


@st.composite
def nets(draw: st.DrawFn) -> tuple[list[int], Callable[..., Tensor]]:
    sizes = draw(st.lists(SIZES, min_size=2, max_size=4))
    steps = [(draw(st.sampled_from(sorted(FACTORS))), draw(st.sampled_from(sorted(RUN)))) for _ in sizes[1:]]
    return sizes, partial(_net, steps)


def _net(steps: Sequence[tuple[str, str]], x: Tensor, *matrices: Tensor) -> Tensor:
    for (factor, run), w in zip(steps, matrices, strict=True):
        x = RUN[run](x @ FACTORS[factor](w) / w.shape[0] ** 0.5)
    return x


def slopes(function: Callable[..., Tensor], order: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A value, or gradients of sums of sines up to an order, as a trace can write them."""
    inputs = [x.detach().requires_grad_() for x in tensors]
    found = [function(*inputs)]
    for _ in range(order):
        total = torch.stack([x.sin().sum() for x in found]).sum()
        found = list(torch.autograd.grad(total, inputs, create_graph=True))
    return [x.detach() for x in found]


def written(function: Callable[..., Any], given_: Sequence[Tensor]) -> fx.GraphModule:
    """A program of open rows, its products by kernels."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    opened = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(given_[0], symbolic_context=opened)
    known = [mode.from_tensor(w, static_shapes=True) for w in given_[1:]]
    graph = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x, *known)
    replace_matrix_products_by_kernels(graph.graph)
    graph.recompile()
    return graph


@needs_compiler
@FEWER
@given(net=nets(), order=st.integers(0, 2), dtype=st.sampled_from(list(TOLERANCE)), data=st.data())
def test_products_of_programs(net, order: int, dtype: torch.dtype, data) -> None:
    sizes, function = net
    known = [torch.randn(pair, dtype=torch.float64).to(dtype) for pair in pairwise(sizes)]

    def call(*tensors: Tensor) -> list[Tensor]:
        return slopes(function, order, tensors)

    graph = written(call, [torch.randn(7, sizes[0], dtype=dtype), *known])
    assert products_of_rows(graph.graph)[0] == []
    for _ in range(CALLS):
        rows, seed = data.draw(ROWS), data.draw(st.integers(0, 9999))
        x = torch.randn(rows, sizes[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
        found = list(graph(data.draw(laid_out(x)), *known))
        assert_alike(found, call(*(tensor.double() for tensor in (x, *known))), dtype)
    count("products of programs", CALLS)
