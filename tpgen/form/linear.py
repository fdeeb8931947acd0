r"""The form of a linear layer: a product without a second input, its coupling the identity.

.. math::

    L(x, w, g) = \sum_p \alpha_p \sum_{u, v, i} w_p[u, v]\, x[u, i]\, g[v, i]

>>> from tpgen.planner.linear import make_linear_plan
>>> form = linear_form(make_linear_plan("8x1o", "4x1o"))
>>> print(form)
out[4x1o] of x1, w
  path 0: 0.353553 * einsum('zui,uw,ik->zwk', x1, w, _eye_3)
>>> print(form.open("w"))
w[32] of x1, out
  path 0: 0.353553 * einsum('zui,zwk,ik->uw', x1, out, _eye_3)
"""

from __future__ import annotations

from tpgen.errors import EmitError, unknown
from tpgen.form.contraction import Delta, Factor
from tpgen.form.form import LAYOUTS, ROW, SHARED, Form, Leg, Operand, Term, make_form, split_layout
from tpgen.planner.linear import LinearPath, LinearPlan
from tpgen.planner.plan import Plan

AnyPlan = Plan | LinearPlan


def form_of(plan: AnyPlan, layout: str | tuple[str, ...] = "mul_ir") -> Form:
    """The form of any plan, with ``out`` open."""
    if isinstance(plan, LinearPlan):
        return linear_form(plan, layout)
    return make_form(plan, layout)  # type: ignore[arg-type]


def layouts_of(plan: AnyPlan, layout: str | tuple[str, ...]) -> tuple[str, ...]:
    """One layout name for each operand of a plan that has irreps."""
    return split_linear_layout(layout) if isinstance(plan, LinearPlan) else split_layout(layout)  # type: ignore[arg-type]


def linear_form(plan: LinearPlan, layout: str | tuple[str, ...] = "mul_ir") -> Form:
    """The form of a linear layer, with ``out`` open; of its `LinearPlan.flat`, where there are channels.

    ``layout`` is the order of axes in each segment, one name for both ends or one for each.
    """
    plan, layouts = plan.flat, split_linear_layout(layout)
    ends = {"x1": plan.irreps_in, "out": plan.irreps_out}
    x1, out = (Operand(name, tuple((s.start, s.stop) for s in i.slices()), text=str(i)) for name, i in ends.items())
    slices = tuple((s.start, s.stop) for s in plan.weight_slices)
    weights = Operand("w", slices, SHARED if plan.shared_weights else ROW, str(plan.weight_numel))
    return Form(
        operands=(x1, weights, out),
        terms=tuple(_term(path, layouts) for path in plan.paths),
        slots=(("x1",), ("w",), ("out",)),
        opened=("out",),
        plan=plan,
        layout=layouts,
    )


def split_linear_layout(layout: str | tuple[str, ...]) -> tuple[str, str]:
    """One layout name for the input and one for the output.

    >>> split_linear_layout("ir_mul")
    ('ir_mul', 'ir_mul')
    """
    names = (layout,) * 2 if isinstance(layout, str) else tuple(layout)
    if len(names) != 2:
        raise EmitError(f"layout: give one name, or one each for in and out, got {layout!r}")
    for name in names:
        if name not in LAYOUTS:
            raise EmitError(unknown("layout", name, LAYOUTS))
    return names


def _term(path: LinearPath, layouts: tuple[str, str]) -> Term:
    mul_in, mul_out, dim = path.in1.mul, path.out.mul, path.out.ir.dim
    legs = (
        Leg("x1", path.in1.index, LAYOUTS[layouts[0]].format(mul="u", ir="i")),
        Leg("w", path.index, "uw"),
        Leg("out", path.out.index, LAYOUTS[layouts[1]].format(mul="w", ir="k")),
    )
    sizes = (("u", mul_in), ("w", mul_out), ("i", dim), ("k", dim))
    return Term(path.index, legs, (Factor(Delta(dim), "ik"),), sizes, path.coefficient)
