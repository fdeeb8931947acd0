"""Random products and convolutions against the slow definition, to third order, wherever their operands lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.attacks.counts import ATTACKS, CALLS, count
from tests.attacks.products import crowds, laid_out, plans, random_operands
from tests.machine import KERNEL
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.tensor_product import TensorProduct

ALL = pytest.mark.parametrize("strategy", [KERNEL, "grouped", "unrolled", "einsum"])
LAYOUTS = st.sampled_from(["mul_ir", "ir_mul", ("ir_mul", "mul_ir", "mul_ir"), ("mul_ir", "mul_ir", "ir_mul")])
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}


def derivatives(f: Callable[..., Tensor], operands: Sequence[Tensor], order: int) -> list[Tensor]:
    """The value, and gradients of sums of sines up to an order; where nothing is left to derive, that is zero.

    Sines of large numbers would make large errors of rounding ones.
    """
    inputs = [x.detach().requires_grad_() for x in operands]
    found = [f(*inputs)]
    for _ in range(order):
        total = torch.stack([x.double().div(_size(x)).sin().sum() for x in found]).sum()
        made: Sequence[Tensor | None] = [None] * len(inputs)
        if total.requires_grad:
            made = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
        found = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, made, strict=True)]
    return [x.detach() for x in found]


def _size(x: Tensor) -> float:
    return max(1.0, float(x.detach().abs().max())) if x.numel() else 1.0


def assert_alike(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    assert [x.shape for x in found] == [x.shape for x in wanted]
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=0.0, atol=TOLERANCE[dtype] * _size(want))


FEWER = settings(max_examples=ATTACKS // CALLS)
CROWDED = settings(max_examples=max(1, ATTACKS // CALLS // 2))  # compilers take long for many paths
DTYPES = st.sampled_from(list(TOLERANCE))
INDICES = st.sampled_from([torch.int64, torch.int32])


@ALL
@FEWER
@given(plan=plans(), layout=LAYOUTS, dtype=DTYPES, data=st.data())
def test_rows(strategy: str, plan, layout, dtype, data) -> None:
    compare_rows(strategy, plan, layout, dtype, data)
    count(f"products, {strategy}", CALLS)


@pytest.mark.slow
@ALL
@CROWDED
@given(plan=crowds(), layout=LAYOUTS, dtype=DTYPES, data=st.data())
def test_rows_of_many_paths(strategy: str, plan, layout, dtype, data) -> None:
    compare_rows(strategy, plan, layout, dtype, data)
    count(f"products of many paths, {strategy}", CALLS)


def compare_rows(strategy: str, plan, layout, dtype, data) -> None:
    product = TensorProduct.from_plan(plan, internal_weights=False, strategy=strategy, layout=layout).to(dtype)
    for _ in range(CALLS):
        order, rows, seed = (data.draw(st.integers(*ends)) for ends in ((0, 3), (1, 7), (0, 9999)))
        exact = [x.to(dtype).double() for x in random_operands(plan, seed, rows, rows)]
        given_ = [data.draw(laid_out(x.to(dtype))) for x in exact]
        wanted = derivatives(lambda x, y, w: reference_product(plan, x, y, w, layout=layout), exact, order)
        assert_alike(derivatives(product, given_, order), wanted, dtype)


@ALL
@FEWER
@given(plan=plans(), index=INDICES, data=st.data())
def test_edges(strategy: str, plan, index, data) -> None:
    compare_edges(strategy, plan, index, data)
    count(f"convolutions, {strategy}", CALLS)


@pytest.mark.slow
@ALL
@CROWDED
@given(plan=crowds(), index=INDICES, data=st.data())
def test_edges_of_many_paths(strategy: str, plan, index, data) -> None:
    compare_edges(strategy, plan, index, data)
    count(f"convolutions of many paths, {strategy}", CALLS)


def compare_edges(strategy: str, plan, index, data) -> None:
    conv = TensorProductConv.from_plan(plan, internal_weights=False, strategy=strategy).double()
    for _ in range(CALLS):
        order, nodes, edges, seed = (data.draw(st.integers(*ends)) for ends in ((0, 2), (1, 5), (1, 9), (0, 9999)))
        operands = random_operands(plan, seed, nodes, edges)
        src, dst = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(seed))

        def definition(x: Tensor, y: Tensor, w: Tensor, nodes: int = nodes, src: Tensor = src, dst: Tensor = dst):
            messages = reference_product(plan, x[src], y, w)
            return messages.new_zeros(nodes, messages.shape[1]).index_add(0, dst, messages)

        def found(x: Tensor, y: Tensor, w: Tensor, src: Tensor = src, dst: Tensor = dst) -> Tensor:
            return conv(x, y, w, src.to(index), dst.to(index))

        laid = [data.draw(laid_out(x)) for x in operands]
        assert_alike(derivatives(found, laid, order), derivatives(definition, operands, order), torch.float64)


BAD = st.sampled_from([
    lambda x: x[..., 1:], lambda x: x[:-1], lambda x: x.float(), lambda x: x.long(),
    lambda x: x.to("meta"), lambda x: x.tolist(),
    lambda x: x.flatten()[0], lambda x: torch.cat([x, x]), lambda x: x.numpy(),
])  # fmt: skip


@ALL
@given(plan=plans(), which=st.integers(0, 2), damage=BAD)
def test_operands_that_do_not_fit_are_named(strategy: str, plan, which: int, damage) -> None:
    """An error that names the operand, or a result where it fits all the same: no weights, batches that broadcast."""
    product = TensorProduct.from_plan(plan, internal_weights=False, strategy=strategy).double()
    operands: list = list(random_operands(plan, 0, 3, 3))
    assume(operands[which].numel())  # nothing cannot be damaged
    operands[which] = damage(operands[which])
    try:
        answer = product(*operands).shape
    except InputError as error:
        answer = str(error)
    wanted = ("x:", "y:", "weight", "batch dimensions")
    count("operands that do not fit", 1)
    assert answer == (3, plan.irreps_out.dim) or any(name in str(answer) for name in wanted)
