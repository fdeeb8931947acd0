"""Forms as strings, by which saved programs find kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tpgen.base.errors import EmitError, InputError, PlanError, TpgenError, unknown
from tpgen.base.locks import cached_property
from tpgen.base.remember import Shelf, remembered
from tpgen.form.call import Call
from tpgen.form.form import Form, Layout, Term, expand_layout, form_of
from tpgen.kernels.build.compiler import DTYPES, cpu_target
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.placement.matrix import AnySchedule, MatrixSchedule, is_linear
from tpgen.kernels.placement.planning import Placement, place, plan_schedule
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.kernels.rows import EDGE_PAIRS, ELEMENTS, ROWS, SHARED, RowRule, RowRules, select_summed_operands
from tpgen.kernels.runtime.call import OperandShape, make_product_call
from tpgen.kernels.runtime.polynomials import PolynomialDescription, describe_polynomial
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call, row_lengths
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS, OUT, Plan
from tpgen.planner.read import read_plan
from tpgen.planner.strict import MAX_TEXT

_FORMAT = "tpgen.kernel/1"
_FIELDS = ("check_index", "format", "layout", "paths", "plan")

# Which paths of a plan a kernel computes.
PATHS: dict[str, Callable[[Term], bool]] = {
    "all": lambda term: True,
    "weighted": lambda term: term.leg("w") is not None,
}

# What each field of a description must be beside its plan: in words, and whether a value is that.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": (f"be {_FORMAT!r}", lambda x: x == _FORMAT),
    "layout": ("be a list of names", lambda x: isinstance(x, list) and all(isinstance(name, str) for name in x)),
    "paths": (f"be one of {', '.join(PATHS)}", lambda x: isinstance(x, str) and x in PATHS),
    "check_index": ("be true or false", lambda x: isinstance(x, bool)),
}

OPENED_BY_DIRECTION: dict[str, tuple[str, ...]] = {"forward": ("out",), "backward": ("x1", "x2", "w")}
# Further calls of training on forces: the gradient of x2, the gradients of that, and those of all gradients together.
_FORCES = (
    make_product_call(("x2",)),
    make_product_call(("x1", "w", "out")),
    make_second_derivative_call(SLOTS, SLOTS[:3]),
)


@dataclass(frozen=True)
class ProductDescription:
    """A product's plan, layout and choice of paths, from which kernels of any dtype are generated."""

    plan: Plan
    layout: tuple[str, ...]
    paths: str = "all"
    check_index: bool = True  # whether a convolution refuses edges out of range; its derivatives do as it does

    format = _FORMAT
    any_level = False  # kernels take calls without levels, and some at one

    @cached_property
    def form(self) -> Form:
        """Multilinear form of the product, with the chosen paths."""
        form = form_of(self.plan, self.layout)
        return replace(form, terms=tuple(t for t in form.terms if PATHS[self.paths](t)))

    @cached_property
    def dims(self) -> tuple[int, int, int, int]:
        """Row lengths of x1, x2, w, out."""
        return row_lengths(self.form)

    def schedule(self, dtype: torch.dtype) -> AnySchedule:
        """Choose how kernels of a dtype vectorize the product on this CPU.

        Raises `EmitError` for too long code, or a coefficient beyond the dtype.
        """
        beyond = next((t for t in self.form.live_terms if abs(t.coefficient) > torch.finfo(dtype).max), None)
        if beyond is not None:
            raise EmitError(
                f"instruction {beyond.path} has the coefficient {beyond.coefficient:.3g}, beyond "
                f"{cpu_target(dtype).dtype}: choose other path weights or variances, or convert the product with "
                ".double()"
            )
        return plan_schedule(self.form, cpu_target(dtype))

    def placement(self, call: Call, dtype: torch.dtype, rules: RowRules = ()) -> Placement:
        """Assign a call's values to registers, scratch and tensors of one kernel."""
        opened, raised = self.computed_and_cotangent_operands(call)
        return place(self.schedule(dtype), opened, rules, raised)

    def calls(self, forces: bool = False) -> tuple[Call, ...]:
        """Forward call and gradients; ``forces`` adds calls of training on input gradients."""
        return (*map(make_product_call, OPENED_BY_DIRECTION.values()), *(_FORCES if forces else ()))

    def source(self, call: Call, dtype: torch.dtype, rules: RowRules = ()) -> GeneratedSource:
        """C++ of a call."""
        return generate(self.placement(call, dtype, rules))

    def computed_and_cotangent_operands(self, call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Operands that a call computes, and operands whose gradients have given cotangents.

        Raises `InputError` unless the call is a first or second derivative of a product.
        """
        opened = tuple(slot.operand for slot in call.opened)
        raised = tuple(slot.operand for slot in call.given if slot.levels)
        known = set(raised) <= set(SLOTS) and opened == tuple(slot for slot in SLOTS if slot in opened)
        if not known or call not in (make_product_call(opened), make_second_derivative_call(opened, raised)):
            raise InputError(
                f"call {str(call)[:60]!r}: a product is given x1 x2 w, then out where gradients are opened, then "
                "cotangents at level 1, and opens slots in this order, as in 'x1 x2 w -> out' or "
                "'x1 x2 w out x1.1 w.1 -> x2 out'"
            )
        return opened, raised

    def opened_bits(self, call: Call) -> int:
        """Operands opened by a call without levels, as bits."""
        return 0 if call.levels else sum(1 << SLOTS.index(slot.operand) for slot in call.opened)

    def split_call(self, call: Call, rules: RowRules) -> tuple[Call, ...]:
        """Split a call into calls that one kernel each computes."""
        opened, raised = self.computed_and_cotangent_operands(call)
        groups: list[tuple[str, ...]] = [()]
        for slot in opened:
            if len(select_summed_operands((*groups[-1], slot), rules)) > 1:
                groups.append(())
            groups[-1] += (slot,)
        return tuple(
            make_second_derivative_call(group, raised) if raised else make_product_call(group) for group in groups
        )

    def operand_shapes(self, rules: RowRules) -> dict[str, OperandShape]:
        """Expected tensor shape of each operand, by name.

        Raises `InputError` for weights by element without rule, or shared weights with one.
        """
        (d1, d2, dw, dout), shared = self.dims, self.plan.operand("w").rows == SHARED
        if self.plan.by_element and ELEMENTS not in rules:
            raise InputError("index: weights of this plan are by element: give the element of each row")
        dims = {"x2": d2, "x1": d1, "w": dw, OUT: dout}
        if shared and dw and any(rule.operand == "w" for rule in rules):
            raise InputError("w: rows share one set of weights, so no rule says which are whose: leave it out")
        counts = dict.fromkeys(dims, ROWS) | ({"w": SHARED} if shared else {}) | {r.operand: r.into for r in rules}
        if not dw:  # weights without numbers may have any shape
            counts["w"] = SHARED
        return {operand: OperandShape(dim, counts[operand]) for operand, dim in dims.items()}

    @cached_property
    def groups(self) -> bool:
        """Whether kernels group rows by element, without index."""
        return is_linear(self.form) and cpu_target(torch.float32).lanes > 1

    def supports_row_rule(self, rule: RowRule, dtype: torch.dtype) -> bool:
        """Whether CPU kernels gather or sum an operand's rows by a rule, in a dtype."""
        if rule is ELEMENTS:
            return True
        try:
            schedule = self.schedule(dtype)
        except TpgenError:  # too large, or no number of the dtype
            return rule is not EDGE_PAIRS
        edges = rule is not EDGE_PAIRS and not isinstance(schedule, MatrixSchedule)
        return edges or isinstance(schedule, ChannelSchedule)

    @cached_property
    def has_live_paths(self) -> bool:
        """Whether any path contributes."""
        return bool(self.form.live_terms)

    def rounds_partial_sums(self, call: Call, rules: RowRules) -> bool:
        """Whether a bfloat16 kernel rounds each partial sum over rows."""
        sums = select_summed_operands(tuple(slot.operand for slot in call.opened), rules)
        return bool(sums) and self.schedule(torch.bfloat16).name == "batch"

    @cached_property
    def text_with_row_weights(self) -> str:
        """Description text with weights for every row."""
        return describe(self.plan.remade(shared_weights=False), self.layout, self.paths, self.check_index)

    @cached_property
    def text_with_weighted_paths(self) -> str:
        """Description text with the weighted paths alone."""
        everything = all(term.leg("w") for term in form_of(self.plan, self.layout).terms)
        return describe(self.plan, self.layout, self.paths if everything else "weighted", self.check_index)

    other_dtypes = "convert it with .float() or .bfloat16() (a module with its operands), or use strategy='grouped'"
    other_devices = "strategy='unrolled'"


AnyDescription = ProductDescription | PolynomialDescription
_DESCRIBED: dict[str, Callable[[Plan, Layout], AnyDescription]] = {
    OF_PATHS: lambda plan, layout: ProductDescription(plan, expand_layout(plan, layout)),
    OF_MONOMIALS: lambda plan, _layout: describe_polynomial(plan),
}


def description_of_plan(plan: Plan, layout: Layout = "mul_ir") -> AnyDescription:
    """Kernel description of a plan; polynomials ignore ``layout``."""
    return _DESCRIBED[plan.maker.form](plan, layout)


@remembered("descriptions of kernels")
def describe(
    plan: Plan,
    layout: str | tuple[str, ...] = "mul_ir",
    paths: str = "all",
    check_index: bool = True,
) -> str:
    """Write a product's plan, layout and paths (``all`` or ``weighted``) as JSON text for `kernel_product`.

    Without ``check_index`` convolutions trust edges: an index out of range is undefined behaviour.

    >>> from tpgen.planner.product import make_plan
    >>> plan = make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)])
    >>> read_description(describe(plan)).plan == plan
    True
    """
    fields = {
        "check_index": check_index,
        "format": _FORMAT,
        "layout": list(expand_layout(plan, layout)),
        "paths": paths,
        "plan": json.loads(plan.to_json()),
    }
    text = json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    _made[text] = ProductDescription(plan, expand_layout(plan, layout), paths, check_index)
    return text


_made: Shelf[str, ProductDescription] = Shelf("descriptions that were made here")  # they need no reading


@remembered("descriptions that were read")
def read_description(text: str) -> AnyDescription:
    """Parse and check the text of `describe`, or of a polynomial's plan; cached.

    Raises `PlanError` with the field that is missing, unknown or out of range.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise PlanError(
            f"kernel description: must be text of at most {MAX_TEXT} characters; make one with describe(plan, layout)"
        )
    if (made := _made.get(text)) is not None:
        return made
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with too many digits
        raise PlanError(f"kernel description: not valid JSON ({error}); make one with describe(plan, layout)") from None
    if isinstance(fields, dict) and fields.get("format") == PolynomialDescription.format:
        return describe_polynomial(read_plan(text))
    if not isinstance(fields, dict) or tuple(fields) != _FIELDS:
        raise PlanError(f"kernel description: must be an object with the fields {', '.join(_FIELDS)}, in this order")
    for name, (rule, keeps) in _RULES.items():
        if name in fields and not keeps(fields[name]):
            raise PlanError(f"kernel description: {name} must {rule}, got {str(fields[name])[:40]!r}")
    try:
        plan = _parse_product_plan(fields["plan"])
        layout = expand_layout(plan, tuple(fields["layout"]))
        return ProductDescription(plan, layout, fields["paths"], fields["check_index"])
    except EmitError as error:
        raise PlanError(f"kernel description: {error}") from None


def _parse_product_plan(fields: Any) -> Plan:
    plan = read_plan(json.dumps(fields))
    if description_of_plan(plan).format != _FORMAT:
        raise PlanError("kernel description: the plan must be one of a product or a linear layer, not of a polynomial")
    return plan


def can_share_weights_of_edge_pairs(plan: Plan, layout: Layout, dtype: torch.dtype) -> bool:
    """Whether kernels can read one row of weights for two edges."""
    if plan.shared_weights or not plan.weight_numel or dtype not in DTYPES:
        return False
    own = ProductDescription(plan, expand_layout(plan, layout))
    return all(
        d.supports_row_rule(EDGE_PAIRS, dtype)
        for d in (own, ProductDescription(own.plan, own.layout, "weighted"))
        if d.has_live_paths
    )


def kernel_source(
    plan: Plan,
    layout: str | tuple[str, ...] = "mul_ir",
    direction: str = "forward",
    dtype: torch.dtype = torch.float32,
) -> GeneratedSource:
    """Generate the C++ of a product's ``forward`` or ``backward`` kernel.

    Raises `EmitError` for an unknown direction or a too large product.

    >>> from tpgen.planner.product import make_plan
    >>> plan = make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)])
    >>> "// path 0: 8x0e x 1x1o -> 8x1o (uvu)" in kernel_source(plan).text
    True
    """
    if direction not in OPENED_BY_DIRECTION:
        raise EmitError(unknown("direction", direction, OPENED_BY_DIRECTION))
    call, rules = make_product_call(OPENED_BY_DIRECTION[direction]), (ELEMENTS,) if plan.by_element else ()
    return ProductDescription(plan, expand_layout(plan, layout)).source(call, dtype, rules)
