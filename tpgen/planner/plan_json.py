"""Plans as JSON text: inputs are written, everything derived is planned anew when read.

A plan read from a file is untrusted input.  `plan_from_json` checks types, ranges and sizes before
anything is planned, and planning checks the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

from tpgen.errors import PlanError
from tpgen.planner.modes import MODES
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import Plan, make_plan

FORMAT = "tpgen.plan/1"

# Far above any real network, far below what could exhaust a machine before planning notices.
MAX_DEGREE = 20
MAX_DIM = 2**24
MAX_INSTRUCTIONS = 20_000
MAX_TEXT = 2**24
MAX_WEIGHTS = 2**30


def plan_to_json(plan: Plan) -> str:
    """The plan as one line of JSON, keys in a fixed order."""
    return json.dumps(_fields(plan), ensure_ascii=True, allow_nan=False)


def plan_digest(plan: Plan) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the JSON text."""
    return hashlib.sha256(plan_to_json(plan).encode()).hexdigest()[:16]


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
    if len(text) > MAX_TEXT:
        raise PlanError(f"plan: the JSON text is longer than {MAX_TEXT} characters")
    try:
        fields = json.loads(text, parse_constant=_reject_constant)
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:  # a ValueError also where a number has too many digits
        raise PlanError(f"plan: not valid JSON ({error})") from None
    _check(isinstance(fields, dict), "plan", "must be a JSON object", fields)
    for name in fields:
        _check(name in _READERS, name, f"is not a field of a plan; known fields: {', '.join(_READERS)}", fields[name])
    for name in _READERS:
        if name not in fields:
            raise PlanError(f"plan field {name!r}: is missing; a plan has the fields {', '.join(_READERS)}")
    values = {name: read(name, fields[name]) for name, read in _READERS.items()}
    del values["format"]
    plan = make_plan(**values)
    _check(plan.weight_numel <= MAX_WEIGHTS, "instructions", f"at most {MAX_WEIGHTS} weights", plan.weight_numel)
    return plan


def _reject_constant(name: str) -> float:
    raise PlanError(f"plan: {name} is not a number that a plan may hold")


def _check(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise PlanError(f"plan field {name!r}: {rule}, got {str(value)[:80]!r}")


def _format(name: str, value: object) -> object:
    _check(value == FORMAT, name, f"must be {FORMAT!r}", value)
    return value


def _irreps(name: str, value: object) -> str:
    _check(isinstance(value, str) and len(value) < 2**16, name, "must be irreps as text, like '8x0e+4x1o'", value)
    assert isinstance(value, str)
    dim = 0
    for part in value.split("+") if value.strip() else []:
        mul, x, ir = part.strip().rpartition("x")
        degree, parity = ir[:-1], ir[-1:]
        _check(
            _digits(degree) and parity in ("e", "o") and (not x or _digits(mul)), name, "has an unreadable entry", part
        )
        _check(int(degree) <= MAX_DEGREE, name, f"degrees go up to {MAX_DEGREE}", part)
        dim += (int(mul) if x else 1) * (2 * int(degree) + 1)
        _check(dim <= MAX_DIM, name, f"the dimension may be at most {MAX_DIM}", part)
    return value


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _instructions(name: str, value: object) -> list[tuple]:
    _check(isinstance(value, list) and len(value) <= MAX_INSTRUCTIONS, name, "must be a list of instructions", value)
    assert isinstance(value, list)
    for index, entry in enumerate(value):
        where = f"{name}[{index}]"
        _check(isinstance(entry, list) and len(entry) == 6, where, "must be a list of 6 values", entry)
        for i in entry[:3]:
            _check(type(i) is int and 0 <= i < MAX_DIM, where, "indices must be small integers", i)
        _check(
            isinstance(entry[3], str) and entry[3] in MODES, where, f"mode must be one of {', '.join(MODES)}", entry[3]
        )
        _check(type(entry[4]) is bool, where, "has_weight must be true or false", entry[4])
        _number(where, entry[5])
    return [tuple(entry) for entry in value]


def _numbers(name: str, value: object) -> list[float]:
    _check(isinstance(value, list), name, "must be a list of numbers", value)
    assert isinstance(value, list)
    return [_number(name, v) for v in value]


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _check(is_number and 0.0 <= value <= 1e12 and math.isfinite(value), name, "must be a number from 0 to 1e12", value)  # type: ignore[operator,arg-type]
    return float(value)  # type: ignore[arg-type]


def _one_of(known: dict) -> Callable[[str, object], object]:
    def read(name: str, value: object) -> object:
        _check(isinstance(value, str) and value in known, name, f"must be one of {', '.join(known)}", value)
        return value

    return read


def _boolean(name: str, value: object) -> object:
    _check(type(value) is bool, name, "must be true or false", value)
    return value


_READERS: dict[str, Callable[[str, object], Any]] = {
    "format": _format,
    "irreps_in1": _irreps,
    "irreps_in2": _irreps,
    "irreps_out": _irreps,
    "instructions": _instructions,
    "in1_var": _numbers,
    "in2_var": _numbers,
    "out_var": _numbers,
    "irrep_normalization": _one_of(IRREP_NORMALIZATIONS),
    "path_normalization": _one_of(PATH_NORMALIZATIONS),
    "shared_weights": _boolean,
}
