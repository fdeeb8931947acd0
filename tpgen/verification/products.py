"""The laws that products alone obey: equal to e3nn's, and to their own `right`."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from tpgen._e3nn import default_dtype
from tpgen.planner.plan import Plan
from tpgen.verification.findings import Pair
from tpgen.verification.laws import Outcomes
from tpgen.verification.subject import Named, Subject, change_layout

MAX_RIGHT = 2**23  # entries of a result of `right` that is compared
# e3nn raises NotImplementedError for `right` of these; tpgen's is compared with its forward all the same.
E3NN_LACKS_RIGHT = ("uvu<v", "u<vw")


def e3nn_product(plan: Plan, compile_right: bool = False) -> o3.TensorProduct:
    """e3nn's product of a plan, in the default dtype."""
    return o3.TensorProduct(
        plan.irreps_in1,
        plan.irreps_in2,
        plan.irreps_out,
        [tuple(instruction[:6]) for instruction in plan.instructions],
        in1_var=plan.in1_var,
        in2_var=plan.in2_var,
        out_var=plan.out_var,
        irrep_normalization=plan.irrep_normalization,
        path_normalization=plan.path_normalization,
        shared_weights=plan.shared_weights,
        internal_weights=False,
        compile_right=compile_right,
    )


def e3nn(subject: Subject) -> Outcomes:
    """e3nn's product, and its `right` where it has one."""
    return {"": _forward_of_e3nn(subject), "right": _right_of_e3nn(subject)}


def _forward_of_e3nn(subject: Subject) -> Pair:
    plan, layouts = _plan(subject), _layouts(subject)
    x1 = change_layout(subject.given["x1"], plan.irreps_in1, layouts[0], "mul_ir")
    x2 = change_layout(subject.given["x2"], plan.irreps_in2, layouts[1], "mul_ir")
    with default_dtype(torch.float64):
        expected = e3nn_product(plan)(x1, x2, *_weight(subject.given))
    return change_layout(subject(subject.given)["out"], plan.irreps_out, layouts[2], "mul_ir"), expected


def _right_of_e3nn(subject: Subject) -> Pair | str:
    plan, layouts, given = _plan(subject), _layouts(subject), _narrow(subject)
    lacking = [mode for mode in E3NN_LACKS_RIGHT if any(i.connection_mode == mode for i in plan.instructions)]
    if lacking:
        return f"e3nn has no right for mode {' and '.join(map(repr, lacking))}"
    x2 = change_layout(given["x2"], plan.irreps_in2, layouts[1], "mul_ir")
    with default_dtype(torch.float64):
        expected = e3nn_product(plan, compile_right=True).right(x2, *_weight(given))
    got = change_layout(_right(subject, given), plan.irreps_out, layouts[2], "mul_ir")
    return change_layout(got.transpose(1, 2), plan.irreps_in1, layouts[0], "mul_ir").transpose(1, 2), expected


def right(subject: Subject) -> Outcomes:
    """`right`, the product as a matrix, on input 1."""
    given = _narrow(subject)
    return {"": (torch.einsum("zi,zik->zk", given["x1"], _right(subject, given)), subject(given)["out"])}


def _right(subject: Subject, given: Named) -> Tensor:
    module: Any = subject.module
    own = subject.own(given)
    return module.right(own["x2"], *_weight(own)).to("cpu", torch.float64)


def _narrow(subject: Subject) -> Named:
    """As many of the rows as `right` has room for: its result is a matrix for each row, which can be large."""
    plan = _plan(subject)
    rows = max(1, MAX_RIGHT // max(1, plan.irreps_in1.dim * plan.irreps_out.dim))
    whole = ("w",) if plan.shared_weights else ()
    return {name: x if name in whole else x[:rows] for name, x in subject.given.items()}


def _weight(given: Named) -> list[Tensor]:
    return [given["w"]] if "w" in given else []


def _plan(subject: Subject) -> Plan:
    return subject.module.plan  # type: ignore[return-value]


def _layouts(subject: Subject) -> tuple[str, str, str]:
    return subject.module.layout  # type: ignore[return-value]
