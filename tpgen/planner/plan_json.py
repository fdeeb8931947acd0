"""Plans as JSON text: inputs are written, everything derived is planned anew when read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tpgen.planner.modes import MODES
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import Plan, make_plan
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

FORMAT = "tpgen.plan/1"


def plan_to_json(plan: Plan) -> str:
    """The plan as one line of JSON, keys in a fixed order."""
    return json.dumps(_fields(plan), ensure_ascii=True, allow_nan=False)


def digest_of(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a plan's JSON text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_digest(plan: Plan) -> str:
    """The stable name of a plan."""
    return digest_of(plan_to_json(plan))


def _fields(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "irreps_in1": str(plan.irreps_in1),
        "irreps_in2": str(plan.irreps_in2),
        "irreps_out": str(plan.irreps_out),
        "instructions": [list(instruction[:6]) for instruction in plan.instructions],
        "in1_var": list(plan.in1_var),
        "in2_var": list(plan.in2_var),
        "out_var": list(plan.out_var),
        "irrep_normalization": plan.irrep_normalization,
        "path_normalization": plan.path_normalization,
        "shared_weights": plan.shared_weights,
    }


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
