"""Read plans from JSON text: inputs are written (`Plan.to_json`), everything derived is planned anew."""

from __future__ import annotations

from tpgen.planner.modes import MODES
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import FORMAT, Plan, make_plan
from tpgen.planner.strict import (
    MAX_WEIGHTS,
    Reader,
    boolean,
    check,
    constant,
    entries,
    index,
    irreps,
    list_of,
    number,
    one_of,
    read_fields,
)


def plan_from_json(text: str) -> Plan:
    """Read a plan back, strictly.

    Raises `PlanError` that names the field where anything is missing, unknown, of a wrong type or out of range.

    >>> plan = make_plan("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", True)])
    >>> plan_from_json(plan.to_json()) == plan
    True
    """
    values = read_fields(text, _READERS)
    del values["format"]
    plan = make_plan(**values)
    check(plan.weight_numel <= MAX_WEIGHTS, "instructions", f"at most {MAX_WEIGHTS} weights", plan.weight_numel)
    return plan


def _instruction(where: str, entry: list) -> tuple:
    i_in1, i_in2, i_out, mode, has_weight, path_weight = entry
    known = isinstance(mode, str) and mode in MODES
    positions = [index(where, i) for i in (i_in1, i_in2, i_out)]
    check(known, where, f"mode must be one of {', '.join(MODES)}", mode)
    check(type(has_weight) is bool, where, "has_weight must be true or false", has_weight)
    return (*positions, mode, has_weight, number(where, path_weight))


_READERS: dict[str, Reader] = {
    "format": constant(FORMAT),
    "irreps_in1": irreps,
    "irreps_in2": irreps,
    "irreps_out": irreps,
    "instructions": entries(_instruction, 6, "instructions"),
    "in1_var": list_of(number, "numbers"),
    "in2_var": list_of(number, "numbers"),
    "out_var": list_of(number, "numbers"),
    "irrep_normalization": one_of(IRREP_NORMALIZATIONS),
    "path_normalization": one_of(PATH_NORMALIZATIONS),
    "shared_weights": boolean,
}
