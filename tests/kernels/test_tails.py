"""Segments that do not fill whole vectors: every remainder, and nothing behind them is read or written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.forms import reference_form
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.form.form import Layout, expand_layout, form_of
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import ProductDescription
from tpgen.kernels.runtime.targets import KERNEL_TARGETS
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

pytestmark = needs_compiler
ROWS, BEHIND = 3, 64
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def surrounded(x: Tensor, filling: float) -> Tensor:
    """The same numbers with others before and behind them in memory."""
    buffer = torch.full((x.numel() + 2 * BEHIND,), filling, dtype=x.dtype)
    buffer[BEHIND : BEHIND + x.numel()] = x.flatten()
    return buffer[BEHIND : BEHIND + x.numel()].view(x.shape)


def untouched(x: Tensor, filling: float) -> bool:
    """Whether what stands around a result is as it was."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return bool((whole[:BEHIND] == filling).all() and (whole[-BEHIND:] == filling).all())


def check(plan: Plan, layout: Layout, dtype: torch.dtype, opened: tuple[str, ...]) -> None:
    """A kernel among NaN, against the definition in float64."""
    form = form_of(plan, layout)
    given = {name: surrounded(x, float("nan")) for name, x in operands(plan, ROWS, dtype).items()}
    exact = {name: x.double() for name, x in given.items()}
    results = {name: surrounded(torch.zeros_like(given[name]), 7.0) for name in opened}
    spec = KernelSpec(ProductDescription(plan, expand_layout(plan, layout)), make_product_call(opened), dtype)
    taken = [given[slot.operand] for slot in spec.call.given]
    assert KERNEL_TARGETS["cpp"].load(spec)(KernelCall(taken, [*results.values()], ROWS)) == 0
    for name, found in results.items():
        wanted = reference_form(form.open(name), {o: x for o, x in exact.items() if o != name}, ROWS)
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
        assert error < TOLERANCE[dtype], (name, float(error))
        assert untouched(found, 7.0), name


@pytest.mark.parametrize("opened", [("out",), ("x1", "x2", "w")])
@pytest.mark.parametrize("first", [1, 9, 17, 25])
def test_every_remainder_of_a_vector(first: int, opened: tuple[str, ...]) -> None:
    # one kernel for eight multiplicities; widths of one, three and five numbers
    irreps = ["0e", "1o", "2e", "0o", "1e", "2o", "0e", "1o"]
    pairs = [f"{first + n}x{ir}" for n, ir in enumerate(irreps)]
    plan = channelwise("+".join([*pairs, "16x0e"]), "1x0e", "+".join([*pairs, "16x0e"]), shared_weights=False)
    check(plan, "mul_ir", torch.float32, opened)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("opened", [("out",), ("x1", "x2", "w")])
def test_tails_in_every_dtype(dtype: torch.dtype, layout: Layout, opened: tuple[str, ...]) -> None:
    plan = channelwise("13x0e+6x1o+3x2e", "1x0e+1x1o", "13x0e+6x1o+3x2e", shared_weights=False)
    check(plan, layout, dtype, opened)
