"""Read plans of linear layers from JSON text: inputs are written (`LinearPlan.to_json`), the rest is planned anew."""

from __future__ import annotations

from typing import Any

from tpgen.planner.linear import FORMAT, NORMALIZATIONS, LinearPlan, make_linear_plan
from tpgen.planner.strict import (
    MAX_DIM,
    MAX_WEIGHTS,
    Reader,
    boolean,
    check,
    constant,
    entries,
    index,
    irreps,
    list_of,
    one_of,
    read_fields,
)


def linear_plan_from_json(text: str) -> LinearPlan:
    """Read a plan back, strictly.

    Raises `PlanError` that names the field where anything is missing, unknown, of a wrong type or out of range.

    >>> plan = make_linear_plan("2x0e", "2x0e", biases=True)
    >>> linear_plan_from_json(plan.to_json()) == plan
    True
    """
    values = read_fields(text, _READERS)
    del values["format"]
    plan = make_linear_plan(**values)
    weights = plan.weight_numel * (plan.f_in or 1) * (plan.f_out or 1)
    check(weights <= MAX_WEIGHTS, "pairs", f"at most {MAX_WEIGHTS} weights", weights)
    for name, dim in (("f_in", plan.flat.irreps_in.dim), ("f_out", plan.flat.irreps_out.dim)):
        check(dim <= MAX_DIM, name, f"the dimension of all channels may be at most {MAX_DIM}", dim)
    return plan


def _channel_count(name: str, value: Any) -> int | None:
    return None if value is None else index(name, value)


_READERS: dict[str, Reader] = {
    "format": constant(FORMAT),
    "irreps_in": irreps,
    "irreps_out": irreps,
    "pairs": entries(lambda where, entry: tuple(index(where, i) for i in entry), 2, "instructions"),
    "biases": list_of(boolean, "flags"),
    "f_in": _channel_count,
    "f_out": _channel_count,
    "path_normalization": one_of(NORMALIZATIONS),
    "shared_weights": boolean,
}
