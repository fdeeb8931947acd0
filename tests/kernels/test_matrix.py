"""Kernels of linear layers: values and derivatives, whole vectors or not, shared weights and those of each row."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.form.test_linear import LAYOUTS
from tests.kernels.plans import call
from tests.kernels.test_products import identical, on_threads
from tpgen.base.errors import EmitError, PlanError
from tpgen.form.form import form_of
from tpgen.form.reference import reference_product
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import ProductDescription, describe, kernel_source, read_description
from tpgen.kernels.runtime.ops import kernel_product, why_kernel_unsupported
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan

pytestmark = pytest.mark.usefixtures("unoptimised")

ENDS = {
    "whole vectors": ("16x0e + 32x1o", "32x0e + 16x1o"),
    "rests": ("3x0e + 5x1o + 2x0e + 17x2e", "2x1o + 20x0e + 1x3e + 19x2e"),
    "more than a panel": ("70x1o", "131x1o"),
    "unreached": ("3x0e + 1x1e", "0x1o + 2x2e + 1x1e + 2x0o"),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def operands(plan: Plan, rows: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    weights = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
    shapes = ((rows, plan.irreps_in.dim), weights, (rows, plan.irreps_out.dim))
    return [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]


def linear(x: Tensor, w: Tensor, description: str) -> Tensor:
    return kernel_product(x, x.detach().narrow(-1, 0, 0), w, description)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    if wanted.numel():
        assert (found.double() - wanted).abs().max() <= tolerance * (1.0 + wanted.abs().max())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "ends, layout, dtype",
    [
        *((ends, "mul_ir", torch.float64) for ends in ENDS),
        *(("rests", layout, torch.float32) for layout in LAYOUTS),
        ("whole vectors", "ir_mul", torch.float32),
        ("rests", "mul_ir", torch.bfloat16),
    ],
    ids=str,
)
def test_values_and_derivatives_to_second_order(ends: str, layout, shared: bool, dtype: torch.dtype) -> None:
    plan = make_linear_plan(*ENDS[ends], shared_weights=shared)
    rows = 50 if shared else 7
    found, wanted = [], []
    for results, exact in ((found, False), (wanted, True)):
        torch.manual_seed(1)
        x, w, g = operands(plan, rows, dtype)
        x, w, g = (t.double() if exact else t for t in (x, w, g))
        x.requires_grad_(), w.requires_grad_()
        out = reference_product(plan, x, w, layout=layout) if exact else linear(x, w, describe(plan, layout))
        first = torch.autograd.grad(out, (x, w), g, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first), (x, w))
        results += [out.detach(), *(t.detach() for t in first), *second]
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("rows", [0, 1, 6, 97])
@pytest.mark.parametrize("opened", [c for n in (1, 2, 3) for c in combinations(("x1", "w", "out"), n)], ids=str)
def test_any_slots_open_together(opened: tuple[str, ...], rows: int) -> None:
    """Whatever set is asked for, each slot is as if it were open alone."""
    plan = make_linear_plan(*ENDS["rests"])
    x, w, g = operands(plan, rows)
    text, given = describe(plan), (x, x.narrow(-1, 0, 0), w, g)
    together = kernels_of(text).run(call(" ".join(opened), *given, text=text))
    for slot, found in zip(opened, together, strict=True):
        (alone,) = kernels_of(text).run(call(slot, *given, text=text))
        assert_near(found, alone, 1e-13)


def test_gradients_of_gradients() -> None:
    plan = make_linear_plan("2x0e + 2x1o", "3x1o + 1x0e")
    x, w, _ = operands(plan, 3)
    inputs = (x.requires_grad_(), w.requires_grad_())
    description = describe(plan)
    assert torch.autograd.gradcheck(lambda x, w: linear(x, w, description), inputs)
    assert torch.autograd.gradgradcheck(lambda x, w: linear(x, w, description), inputs)


def test_vmap_over_features_and_weights() -> None:
    plan = make_linear_plan(*ENDS["rests"])
    description = describe(plan)
    x, w = torch.randn(4, 5, plan.irreps_in.dim), torch.randn(4, plan.weight_numel)
    each = torch.stack([linear(a, b, description) for a, b in zip(x, w, strict=True)])
    together = torch.func.vmap(lambda a, b: linear(a, b, description))(x, w)
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)


def test_not_a_number_stays_in_its_row() -> None:
    plan = make_linear_plan(*ENDS["rests"])
    x, w, _ = operands(plan, 30)
    x[7] = float("nan")
    out = linear(x, w, describe(plan))
    assert not out[7, :6].isfinite().any()
    assert out[[n for n in range(30) if n != 7]].isfinite().all()


def test_the_same_bits_from_one_thread_and_many() -> None:
    """Rows of several blocks, whose parts of the weights' gradient are added in their order."""
    plan = make_linear_plan(*ENDS["more than a panel"])
    x, w, g = operands(plan, 600)
    x.requires_grad_(), w.requires_grad_()

    def compute() -> list[Tensor]:
        out = linear(x, w, describe(plan))
        return [out, *torch.autograd.grad(out, (x, w), g)]

    results = [on_threads(threads, compute) for threads in (1, 2)]
    assert identical(*results)
    slow = reference_product(plan, x, w)
    for found, wanted in zip(results[0], (slow, *torch.autograd.grad(slow, (x, w), g)), strict=True):
        assert_near(found, wanted, 1e-12)


def test_lines_know_their_paths() -> None:
    source = kernel_source(make_linear_plan(*ENDS["rests"]), direction="backward")
    lines = source.text.split("\n")
    assert any("multiply<" in lines[n - 1] for n in source.lines_of(3))
    assert "5x1o -> 2x1o" in source.text
    assert "a matrix product" in source.text


def test_descriptions() -> None:
    plan = make_linear_plan(*ENDS["rests"])
    text = describe(plan, ("mul_ir", "ir_mul"))
    found = read_description(text)
    assert (found.plan, found.layout) == (plan, ("mul_ir", "ir_mul"))
    assert found.text_with_weighted_paths == text
    assert not read_description(found.text_with_row_weights).plan.shared_weights
    with pytest.raises(PlanError, match="layout: give one name, or one for each of x1, out"):
        read_description(text.replace('["mul_ir","ir_mul"]', '["mul_ir"]'))
    with pytest.raises(PlanError, match=r"'biases\[0\]': must be true or false"):
        read_description(text.replace('"biases":[false', '"biases":[3'))


def test_no_edges() -> None:
    description = ProductDescription(make_linear_plan("2x0e", "3x0e"), ("mul_ir", "mul_ir"))
    with pytest.raises(EmitError, match="a linear layer has no edges"):
        description.source(make_product_call(("out",)), torch.float32, EDGES)


def test_what_has_no_kernel_says_why() -> None:
    assert why_kernel_unsupported(make_linear_plan("2x0e", "3x0e")) is None
    assert (
        why_kernel_unsupported(make_linear_plan("2x0e", "3x0e"), device="xpu")
        == "kernels run on the CPU or CUDA GPUs, not on xpu"
    )
    assert "no paths that contribute" in str(why_kernel_unsupported(make_linear_plan("2x0e", "3x1o")))
    assert form_of(make_linear_plan("2x0e", "3x1o")).live_terms == ()
