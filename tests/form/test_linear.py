"""The form of a linear layer means what its slow definition says, in every layout and with every slot open."""

from __future__ import annotations

import pytest
import torch

from tests.cases import assert_close
from tests.forms import reference_form
from tpgen.base.errors import EmitError
from tpgen.form.form import Form, expand_layout, form_of
from tpgen.form.reference import reference_product
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

LAYOUTS: tuple[str | tuple[str, str], ...] = ("mul_ir", "ir_mul", ("ir_mul", "mul_ir"))
ENDS = ("3x0e + 2x1o + 2x0e + 0x2e + 1x2e", "2x1o + 4x0e + 1x3e + 2x2e")


def given(plan: Plan, rows: int = 3) -> dict[str, torch.Tensor]:
    weights = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
    shapes = {"x1": (rows, plan.irreps_in.dim), "w": weights, "out": (rows, plan.irreps_out.dim)}
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def evaluated(form: Form, at: dict[str, torch.Tensor]) -> torch.Tensor:
    """The open slot, by the slow definition of forms."""
    return reference_form(form, {name: x for name, x in at.items() if (name,) != form.opened}, 3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_every_open_slot_is_a_derivative_of_the_definition(layout, shared: bool) -> None:
    plan = make_linear_plan(*ENDS, shared_weights=shared)
    form, at = form_of(plan, layout), given(plan)
    x, w = at["x1"].requires_grad_(), at["w"].requires_grad_()
    out = reference_product(plan, x, w, layout=layout)
    expected = dict(zip(("x1", "w"), torch.autograd.grad(out, (x, w), at["out"]), strict=True))
    assert_close(evaluated(form, at), out)
    for slot, gradient in expected.items():
        assert_close(evaluated(form.open(slot), at), gradient)


def test_a_layer_is_a_product_with_the_scalar_one() -> None:
    plan = make_linear_plan(*ENDS)
    product = make_plan(ENDS[0], "0e", ENDS[1], [(i, 0, j, "uvw", True) for i, j in plan.pairs])
    assert product.weight_numel == plan.weight_numel
    at = given(plan)
    ones = torch.ones(3, 1, dtype=torch.float64)
    expected = evaluated(form_of(product), {**at, "x2": ones})
    assert_close(evaluated(form_of(plan), at), expected)


def test_channels_stand_in_the_form_as_copies() -> None:
    form = form_of(make_linear_plan("2x0e", "3x0e", f_in=4, f_out=5))
    assert [operand.dim for operand in form.operands] == [8, 8 * 15, 15]


def test_layouts() -> None:
    plan = make_linear_plan("2x0e", "3x0e")
    assert expand_layout(plan, "ir_mul") == ("ir_mul", "ir_mul")
    assert expand_layout(make_plan("2x0e", "0e", "2x0e", []), "ir_mul") == ("ir_mul",) * 3
    with pytest.raises(EmitError, match="layout: give one name, or one for each of x1, out"):
        expand_layout(plan, ("mul_ir", "mul_ir", "mul_ir"))
    with pytest.raises(EmitError, match=r"unknown layout 'mulir'.*[Kk]nown layouts: mul_ir, ir_mul"):
        expand_layout(plan, "mulir")
