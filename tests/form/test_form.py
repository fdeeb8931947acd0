"""The form against autograd of the slow definition, in float64: every operand, orders one and two."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, LAYOUTS, ROWS, Case, assert_close, operands, reference_right
from tests.forms import reference_form
from tpgen.base.errors import EmitError
from tpgen.form.form import Form, Layout, expand_layout, form_of, right_form
from tpgen.form.reference import reference_product
from tpgen.planner.product import make_plan

all_cases = pytest.mark.parametrize("case, layout", list(product(CASES, LAYOUTS)), ids=str)


@all_cases
def test_the_form_with_out_open_is_the_product(case: Case, layout: Layout) -> None:
    given = operands(case.plan)
    want = reference_product(case.plan, *given.values(), layout=layout)
    assert_close(reference_form(form_of(case.plan, layout), given, ROWS), want)


@all_cases
def test_open_slots_are_derivatives_of_the_product(case: Case, layout: Layout) -> None:
    leaves = operands(case.plan, requires_grad=True)
    out = reference_product(case.plan, *leaves.values(), layout=layout)
    check_family(form_of(case.plan, layout), "out", leaves, out)


@all_cases
def test_right_and_its_derivatives(case: Case, layout: Layout) -> None:
    leaves = operands(case.plan, requires_grad=True)
    del leaves["x1"]
    form = right_form(case.plan, layout)
    want = reference_right(case.plan, *leaves.values(), layout)
    assert_close(reference_form(form, leaves, ROWS), want)
    check_family(form, "x1*out", leaves, want)


def check_family(form: Form, open_now: str, leaves: dict[str, Tensor], out: Tensor) -> None:
    """First and second derivatives of ``out`` by autograd equal the form with other slots open."""
    slots = {**leaves, open_now: torch.randn_like(out, requires_grad=True)}
    scalar = (slots[open_now] * out).sum()
    slots = {name: x for name, x in slots.items() if x.numel() > 0}
    gradients = dict(zip(slots, torch.autograd.grad(scalar, list(slots.values()), create_graph=True), strict=True))
    for name in slots:
        assert_close(evaluate(form, name, slots), gradients[name])
        cotangent = torch.randn_like(slots[name])
        others = [other for other in slots if other != name]
        seconds = torch.autograd.grad(
            (gradients[name] * cotangent).sum(), [slots[o] for o in others], retain_graph=True, materialize_grads=True
        )
        # the derivative of "name open" along a cotangent: the cotangent stands in that slot, another one is open
        for other, second in zip(others, seconds, strict=True):
            assert_close(evaluate(form, other, {**slots, name: cotangent}), second)


def evaluate(form: Form, name: str, slots: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return reference_form(form.open(*name.split("*")), {n: x for n, x in slots.items() if n != name}, ROWS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_is_bilinear_in_the_sense_of_the_layout(case: Case) -> None:
    """Both layouts are the same function up to a permutation of entries."""
    plan = case.plan
    given = operands(plan)

    def to_ir_mul(x: Tensor, irreps) -> Tensor:
        pieces = [
            x[:, s].reshape(-1, mul, ir.dim).transpose(1, 2).reshape(x.shape[0], -1)
            for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
        ]
        return torch.cat(pieces, dim=1)

    want = to_ir_mul(reference_product(plan, *given.values()), plan.irreps_out)
    x1, x2 = to_ir_mul(given["x1"], plan.irreps_in1), to_ir_mul(given["x2"], plan.irreps_in2)
    assert_close(reference_product(plan, x1, x2, given["w"], layout="ir_mul"), want)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opening_and_closing_again_is_the_same_form(case: Case) -> None:
    form = form_of(case.plan)
    assert form.open("x1").open("out") == form
    assert form.open("w").given == (("x1",), ("x2",), ("out",))
    merged = form.merge("x1", "out")
    assert merged == right_form(case.plan)
    assert merged.given == (("x2",), ("w",))
    assert merged.open("x2").given == (("x1", "out"), ("w",))


def test_weights_shared_by_all_rows_have_no_batch() -> None:
    plan = make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)])
    assert not form_of(plan).row(("w",))
    assert str(form_of(plan).open("w")).endswith("einsum('zui,zvj,zuk,ijk->uv', x1, x2, out, _w3j_1_1_0)")


def test_paths_without_weights_have_no_gradient_for_them() -> None:
    plan = make_plan("2x1o", "1o", "2x0e + 2x2e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False)])
    assert [t.path for t in form_of(plan).live_terms] == [0, 1]
    assert [t.path for t in form_of(plan).open("w").live_terms] == [0]


def test_paths_with_coefficient_zero_are_not_computed() -> None:
    plan = make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True, 0.0), (0, 0, 0, "uvu", True)])
    assert [t.path for t in form_of(plan).live_terms] == [1]


def test_forms_are_values() -> None:
    case = CASES[0]
    assert form_of(case.plan) == form_of(case.plan)
    assert hash(form_of(case.plan)) == hash(form_of(case.plan))
    assert form_of(case.plan) != form_of(case.plan, "ir_mul")
    with pytest.raises(AttributeError):
        form_of(case.plan).opened = ("x1",)  # type: ignore[misc]


def test_errors() -> None:
    form = form_of(CASES[0].plan)
    with pytest.raises(EmitError, match="unknown operand 'x3'; known operands: x1, x2, w, out"):
        form.open("x3")
    with pytest.raises(EmitError, match=r"unknown operand 'x1\*out'; known operands: x1, x2, w, out"):
        form.open("x1", "out")
    with pytest.raises(EmitError, match=r"'mul':.*'mul_ir'.*mul_ir, ir_mul"):
        form_of(CASES[0].plan, "mul")
    with pytest.raises(EmitError, match="layout: give one name, or one for each of x1, x2, out"):
        expand_layout(CASES[0].plan, ("mul_ir", "ir_mul"))
