"""Read plans from JSON."""

from __future__ import annotations

from tpgen.base.errors import PlanError
from tpgen.planner.linear import LINEAR
from tpgen.planner.plan import Maker, Plan
from tpgen.planner.polynomial_plan import POLYNOMIAL
from tpgen.planner.product import PRODUCT
from tpgen.planner.strict import MAX_DIM, MAX_WEIGHTS, check_field, parse_json_object, read_json_fields

# Every kind of plan, by the format of its JSON text.
MAKERS: dict[str, Maker] = {maker.format: maker for maker in (PRODUCT, LINEAR, POLYNOMIAL)}


def read_plan(text: str) -> Plan:
    """Read a plan from `Plan.to_json`.

    Raises `PlanError` naming the wrong field.

    >>> from tpgen.planner.product import make_plan
    >>> plan = make_plan("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", True)])
    >>> read_plan(plan.to_json()) == plan
    True
    """
    fields = parse_json_object(text)
    if "format" not in fields:
        raise PlanError(f"plan field 'format': is missing; it must be one of {', '.join(MAKERS)}")
    name = fields.pop("format")
    known = isinstance(name, str) and name in MAKERS
    check_field(known, "format", f"must be one of {', '.join(MAKERS)}", name)
    maker = MAKERS[name]
    plan = maker.make(**read_json_fields(fields, maker.readers))
    check_field(
        plan.flat.weight_numel <= MAX_WEIGHTS, "weights", f"at most {MAX_WEIGHTS} weights", plan.flat.weight_numel
    )
    for operand in plan.flat.inputs:
        check_field(operand.dim <= MAX_DIM, operand.name, f"the dimension may be at most {MAX_DIM}", operand.dim)
    return plan
