"""Laws of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import torch
from e3nn import o3
from torch import Tensor

from tpgen.base._e3nn import default_dtype
from tpgen.planner.equivariance import make_rotation
from tpgen.planner.plan import Plan
from tpgen.tools.verification.findings import (
    GotAndExpected,
    GotAndExpectedOrReason,
    GotAndExpectedWithRemark,
    NotCompared,
)
from tpgen.tools.verification.subject import INVARIANT, ModuleUnderTest, TensorsByName, change_layout

GotAndExpectedByPart = Mapping[str, GotAndExpectedOrReason]  # by the part of a result or a case, in words
Of = TypeVar("Of")


@dataclass(frozen=True)
class Law:
    """A required property of modules: comparison, applicable modules, allowed error."""

    about: str
    compare: Callable[[ModuleUnderTest], GotAndExpectedByPart]
    applies: Callable[[ModuleUnderTest], Any] = lambda subject: True
    slack: float = 1.0  # allowed error, times the tolerance of the dtype
    limit: float | None = None  # allowed error in every dtype, instead
    lacks: Callable[[ModuleUnderTest], str] = lambda subject: ""  # why a subject cannot be compared
    slopes: bool = False  # it takes differences of energies
    floored: bool = True  # errors that rounding explains are allowed


def pair_results(got: TensorsByName, expected: TensorsByName) -> dict[str, GotAndExpected]:
    """Pair results with expected ones by name; ``out`` becomes empty."""
    return {"" if name == "out" else name: (got[name], expected[name]) for name in expected}


def prefix_part_names(prefix: str, comparisons: Mapping[str, Of]) -> dict[str, Of]:
    """Prefix outcome names with a part's name."""
    return {f"{prefix}{', ' + name if name else ''}": pair for name, pair in comparisons.items()}


def compare_or_give_reason(
    part_name: str, compare: Callable[[], Mapping[str, GotAndExpectedOrReason]]
) -> dict[str, GotAndExpectedOrReason]:
    """Run a comparison; `NotCompared` becomes its reason as text."""
    try:
        return prefix_part_names(part_name, compare())
    except NotCompared as why:
        return {part_name: str(why)}


def compare_with_definition(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results with the slow reference."""
    assert subject.reference is not None
    return pair_results(subject(subject.given), subject.reference(subject.given))


def compare_linearity(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of linearly combined operands with combined results."""
    outcomes: dict[str, GotAndExpected | str] = {}
    for groups, (a, b) in ((subject.linear, (0.7, -1.3)), (subject.affine, (0.7, 0.3))):
        for part, names in groups.items():
            one, two = ({name: found[name] for name in names} for found in (subject.given, subject.others))
            mixed = {name: a * one[name] + b * two[name] for name in names}
            got, first, second = (subject({**subject.given, **changed})["out"] for changed in (mixed, one, two))
            outcomes[part] = (got, a * first + b * second)
    return outcomes


def compare_degree(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results along a line with polynomial interpolation."""
    return {
        name: _compare_with_polynomial_interpolation(subject, name, degree) for name, degree in subject.degrees.items()
    }


def _compare_with_polynomial_interpolation(subject: ModuleUnderTest, operand_name: str, degree: int) -> GotAndExpected:
    x, other, at = subject.given[operand_name], subject.others[operand_name], 0.4
    nodes = torch.linspace(-1, 1, degree + 1, dtype=torch.float64).tolist()

    def result_at(position: float) -> Tensor:
        return subject({**subject.given, operand_name: 0.5 * (x + position * other)})["out"]

    factors = [prod((at - m) / (n - m) for m in nodes if m != n) for n in nodes]  # Lagrange's
    expected = torch.stack([f * result_at(n) for f, n in zip(factors, nodes, strict=True)]).sum(0)
    return result_at(at), expected


UNDECLARED = "inputs undeclared: say how they turn, irreps_in={'x': '1o'} (--turns x=1o), None for what stays"

_BEHIND = "found behind parameters that are zero now, here random: {}"
_ZEROS_SIZE, _ZEROS_SHOWN = 0.1, 4  # of the random numbers in place of zeros, and how many names a message has


def compare_equivariance(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of rotated or inverted inputs with transformed results."""
    if subject.undeclared:
        return {"": UNDECLARED}
    return {
        **_compare_under_rotations_and_parity(subject),
        **_compare_rotations_with_zero_parameters_randomized(subject),
    }


def _compare_under_rotations_and_parity(subject: ModuleUnderTest) -> dict[str, GotAndExpected]:
    generator = torch.Generator().manual_seed(1)
    turns = [make_rotation(torch.randn(3, 3, dtype=torch.float64, generator=generator)) for _ in range(3)]
    straight = subject(subject.given)
    improper = [-torch.eye(3, dtype=torch.float64), -turns[2]]
    rotations = prefix_part_names("rotations", _compare_under_orthogonal_matrices(subject, straight, turns[:2]))
    return {**rotations, **prefix_part_names("parity", _compare_under_orthogonal_matrices(subject, straight, improper))}


def _compare_rotations_with_zero_parameters_randomized(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    # of a copy in which no trainable parameter is zero: a branch may be silent until training has begun
    try:
        other, names = _copy_with_zero_parameters_randomized(subject)
        found = _compare_under_rotations_and_parity(other) if names else {}
    except Exception:  # the copy, and not the network, has failed
        return {}
    if not all(bool(x.isfinite().all()) for pair in found.values() for x in pair):
        return {}
    more = f" and {len(names) - _ZEROS_SHOWN} more" if len(names) > _ZEROS_SHOWN else ""
    why = _BEHIND.format(", ".join(names[:_ZEROS_SHOWN]) + more)
    return {
        f"behind zeros, {part}": GotAndExpectedWithRemark(pair, why, of_failure=True) for part, pair in found.items()
    }


def _copy_with_zero_parameters_randomized(subject: ModuleUnderTest) -> tuple[ModuleUnderTest, list[str]]:
    # random numbers in the place of parameters that are zero, whose names are returned
    module = subject.make_fresh_copy()
    zeros = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel() and not p.detach().any()}
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for p in zeros.values():
            p.copy_(_ZEROS_SIZE * torch.randn(p.shape, dtype=torch.float64, generator=generator))
    return replace(subject, module=module), list(zeros)


def _compare_under_orthogonal_matrices(
    subject: ModuleUnderTest, unrotated_results: TensorsByName, matrices: list[Tensor]
) -> dict[str, GotAndExpected]:
    got: dict[str, list[Tensor]] = {name: [] for name in unrotated_results}
    expected: dict[str, list[Tensor]] = {name: [] for name in unrotated_results}
    for matrix in matrices:
        turned = {name: subject.turns.get(name, INVARIANT).turn(x, matrix) for name, x in subject.given.items()}
        for name, value in subject(turned).items():
            got[name].append(value)
            expected[name].append(subject.result_rule(name).turn(unrotated_results[name], matrix))
    return pair_results(*({name: torch.stack(values) for name, values in found.items()} for found in (got, expected)))


def compare_translations(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results before and after all positions shift."""
    shift = torch.tensor([0.3, -0.7, 0.45], dtype=torch.float64)
    moved = {name: x + shift if subject.turns.get(name, INVARIANT).moves else x for name, x in subject.given.items()}
    straight = subject(subject.given)
    expected = {name: y + shift if subject.result_rule(name).moves else y for name, y in straight.items()}
    return pair_results(subject(moved), expected)


def compare_permutations(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of permuted rows or atoms with permuted results."""
    assert subject.results_of_reordered_rows is not None
    return pair_results(*subject.results_of_reordered_rows(subject))


def compare_normalisation(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare mean squares of random inputs' results with normalised values."""
    assert subject.moments is not None
    return subject.moments()


MAX_RIGHT = 2**23  # entries of a result of `right` that is compared
# e3nn raises NotImplementedError for `right` of these; tpgen's is compared with its forward all the same.
E3NN_LACKS_RIGHT = ("uvu<v", "u<vw")


def build_e3nn_product(plan: Plan, compile_right: bool = False) -> o3.TensorProduct:
    """Build e3nn's product of a plan, with external weights."""
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


def compare_with_e3nn(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare a product and its matrix `right` with e3nn's."""
    return {"": _compare_forward_with_e3nn(subject), "right": _compare_right_method_with_e3nn(subject)}


def _compare_forward_with_e3nn(subject: ModuleUnderTest) -> GotAndExpected:
    plan, layouts = _plan_of_subject(subject), _layouts_of_x1_x2_out(subject)
    x1 = change_layout(subject.given["x1"], plan.irreps_in1, layouts[0], "mul_ir")
    x2 = change_layout(subject.given["x2"], plan.irreps_in2, layouts[1], "mul_ir")
    with default_dtype(torch.float64):
        expected = build_e3nn_product(plan)(x1, x2, *_list_weight_if_any(subject.given))
    return change_layout(subject(subject.given)["out"], plan.irreps_out, layouts[2], "mul_ir"), expected


def _compare_right_method_with_e3nn(subject: ModuleUnderTest) -> GotAndExpected | str:
    plan, layouts, given = (
        _plan_of_subject(subject),
        _layouts_of_x1_x2_out(subject),
        _limit_operand_rows_for_right_method(subject),
    )
    lacking = [mode for mode in E3NN_LACKS_RIGHT if any(i.connection_mode == mode for i in plan.instructions)]
    if lacking:
        return f"e3nn has no right for mode {' and '.join(map(repr, lacking))}"
    x2 = change_layout(given["x2"], plan.irreps_in2, layouts[1], "mul_ir")
    with default_dtype(torch.float64):
        expected = build_e3nn_product(plan, compile_right=True).right(x2, *_list_weight_if_any(given))
    got = change_layout(_call_right_method(subject, given), plan.irreps_out, layouts[2], "mul_ir")
    return change_layout(got.transpose(1, 2), plan.irreps_in1, layouts[0], "mul_ir").transpose(1, 2), expected


def compare_right_method_with_forward(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare the matrix of `right`, times input 1, with the product."""
    given = _limit_operand_rows_for_right_method(subject)
    return {"": (torch.einsum("zi,zik->zk", given["x1"], _call_right_method(subject, given)), subject(given)["out"])}


def _call_right_method(subject: ModuleUnderTest, operands: TensorsByName) -> Tensor:
    module: Any = subject.module
    own = subject.move_operands_to_module(operands)
    return module.right(own["x2"], *_list_weight_if_any(own)).to("cpu", torch.float64)


def _limit_operand_rows_for_right_method(subject: ModuleUnderTest) -> TensorsByName:
    # as many of the rows as `right` has room for: its result is a matrix for each row, which can be large
    plan = _plan_of_subject(subject)
    rows = max(1, MAX_RIGHT // max(1, plan.irreps_in1.dim * plan.irreps_out.dim))
    whole = ("w",) if plan.shared_weights else ()
    return {name: x if name in whole else x[:rows] for name, x in subject.given.items()}


def _list_weight_if_any(operands: TensorsByName) -> list[Tensor]:
    return [operands["w"]] if "w" in operands else []


def _plan_of_subject(subject: ModuleUnderTest) -> Plan:
    return subject.module.plan  # type: ignore[return-value]


def _layouts_of_x1_x2_out(subject: ModuleUnderTest) -> tuple[str, str, str]:
    return subject.module.layout  # type: ignore[return-value]
