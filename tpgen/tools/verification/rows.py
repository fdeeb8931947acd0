"""Laws of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tpgen.planner.equivariance import make_rotation
from tpgen.tools.verification.derivatives import (
    PARAMETER,
    compute_gradients_of_order,
    draw_normal_tensors,
    keep_differentiable_results,
    make_float64_function,
    sum_weighted_entries,
)
from tpgen.tools.verification.findings import NO_POINTS, GotAndExpected, GotAndExpectedOrReason, NotCompared
from tpgen.tools.verification.laws import GotAndExpectedByPart, compare_or_give_reason, pair_results, prefix_part_names
from tpgen.tools.verification.potentials import SPACE
from tpgen.tools.verification.reading import CELLS, ParsedGraphInputs, count_rows
from tpgen.tools.verification.subject import (
    INVARIANT,
    ModuleUnderTest,
    TensorsByName,
    TransformationRule,
    draw_derangement,
    last_dict_key,
)
from tpgen.tools.verification.systems import (
    call_network_detached,
    check_finite_systems,
    compare_finite_entries_with_ones,
)

NO_ROWS = f"{NO_POINTS}, and inputs and results do not share a first length"
KNOW = "rows know of each other, as by a mean over them that may be meant"
OWN = 1e-6  # of results: what a row changes more in another, it knows of it


def _find_common_row_count_of_operands(subject: ModuleUnderTest) -> int | None:
    if subject.fixed or any(last_dict_key(name) in CELLS for name in subject.given):
        return None
    found = {count_rows(x, subject.turns.get(name, INVARIANT)) for name, x in subject.given.items()}
    number = found.pop() if len(found) == 1 else None
    return number if number and number > 1 else None


def reason_for_incomparable_rows(subject: ModuleUnderTest) -> str:
    """Reason why rows cannot be compared, or nothing."""
    if _find_common_row_count_of_operands(subject) is not None:
        return ""
    return subject.parsed if subject.fixed else NO_ROWS


def compare_permuted_rows(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results of permuted, some and single rows with rows of all results."""
    number = _find_common_row_count_of_operands(subject) or 0
    found = subject(subject.given)
    straight = _select_results_with_row_count(subject, found, number)
    first, order = number // 2, draw_derangement(number)
    alone = _select_results_with_row_count(subject, _call_on_selected_rows(subject, torch.arange(first)), first)
    if alone.keys() != straight.keys():
        raise NotCompared(NO_ROWS)
    expected = {name: y[order] if name in straight else y for name, y in found.items()}
    moved = pair_results(_call_on_selected_rows(subject, order), expected)
    # the others in another order, and smaller
    mixed = {name: torch.cat([x[:first], 0.8 * x[first:].flip(0)]) for name, x in subject.given.items()}
    beside = _select_results_with_row_count(subject, call_network_detached(subject, mixed), number)
    know = any(bool((beside[n][:first] - y[:first]).abs().max() > OWN * y.abs().max()) for n, y in straight.items())

    def compare_one_row() -> GotAndExpectedByPart:
        got, expected = _call_on_selected_rows(subject, torch.arange(1)), {n: y[:1] for n, y in straight.items()}
        return pair_results(*({name: 0 * y if know else y for name, y in one.items()} for one in (got, expected)))

    some: dict[str, GotAndExpectedOrReason] = {"some rows alone": KNOW}
    if not know:
        expected = {name: y[:first] for name, y in straight.items()}
        some = prefix_part_names("some rows alone", pair_results(alone, expected))
    return {**moved, **some, **compare_or_give_reason("one row alone", compare_one_row)}


def _select_results_with_row_count(subject: ModuleUnderTest, results: TensorsByName, row_count: int) -> TensorsByName:
    kept = {name: y.detach() for name, y in results.items() if count_rows(y, subject.result_rule(name)) == row_count}
    if not kept:
        raise NotCompared(NO_ROWS)
    return kept


def _call_on_selected_rows(subject: ModuleUnderTest, index: Tensor) -> TensorsByName:
    return call_network_detached(subject, {name: x[index] for name, x in subject.given.items()})


def check_finite_results_with_vanishing_rows(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Check that vanishing vectors give finite results and gradients, and empty batches run."""
    with _fill_uninitialized_memory_with_nan():
        return _check_finite_results_with_vanishing_inputs(
            subject, list(subject.turns)
        ) | _check_result_shapes_of_empty_batch(subject) or {"": NO_ROWS}


def check_finite_results_at_degenerate_points(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Check that degenerate geometries and vanishing vectors give finite results."""
    roles = subject.parsed.roles if isinstance(subject.parsed, ParsedGraphInputs) else {}
    others = [name for name in subject.turns if roles.get(name) not in SPACE]
    with _fill_uninitialized_memory_with_nan():
        return {**check_finite_systems(subject), **_check_finite_results_with_vanishing_inputs(subject, others)}


@contextmanager
def _fill_uninitialized_memory_with_nan() -> Iterator[None]:
    # Memory that nothing has been written to yet holds no numbers.
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def _check_finite_results_with_vanishing_inputs(
    subject: ModuleUnderTest, input_names: list[str]
) -> dict[str, GotAndExpectedOrReason]:
    # Features vanish, and directions, which need not be allowed to; where they are, all vanish together.
    found: dict[str, GotAndExpectedOrReason] = {}
    features, directions = (
        [name for name in input_names if _is_one_vector_per_row(subject, name) is how] for how in (False, True)
    )
    if features:
        found |= prefix_part_names("vectors that vanish", _check_finite_results_and_gradients(subject, features))
    if directions:
        ends = ", ".join(directions)
        wrong = [
            name
            for name, (got, _) in _check_finite_results_and_gradients(subject, directions).items()
            if not bool(got.all())
        ]
        if wrong:
            return found | {"directions": f"no numbers where {ends} vanish, which may be directions"}
        if features:
            found |= prefix_part_names(
                "all vectors that vanish", _check_finite_results_and_gradients(subject, features + directions)
            )
    return found


def _is_one_vector_per_row(subject: ModuleUnderTest, input_name: str) -> bool | None:
    # Whether an input is one vector for each row, which need not be allowed to vanish; None of what does not turn.
    how = subject.turns[input_name]
    return None if how is INVARIANT else how.axes == 1 and subject.given[input_name].shape[-1] == 3


def _check_finite_results_and_gradients(
    subject: ModuleUnderTest, names_of_vanishing_inputs: list[str]
) -> dict[str, GotAndExpected]:
    # Whether the entries of results, and of gradients by inputs and parameters, are numbers.
    vanished = {
        name: _zero_rotating_entries_of_first_row(subject.turns[name], subject.given[name])
        for name in names_of_vanishing_inputs
    }
    given = {**subject.given, **vanished}
    found = call_network_detached(subject, given)
    function, leaves = make_float64_function(subject)
    tracked = keep_differentiable_results(subject, function, leaves)
    if tracked is not None:
        cotangents = draw_normal_tensors(tracked(leaves), seed=7)
        slopes = compute_gradients_of_order(
            1, lambda x, c: sum_weighted_entries(tracked(x), c), {**leaves, **given}, cotangents
        )
        found |= {f"gradient of {name.removeprefix(PARAMETER)}": y for name, y in slopes.items()}
    return compare_finite_entries_with_ones(found)


def _zero_rotating_entries_of_first_row(rule: TransformationRule, operand: Tensor) -> Tensor:
    # The first row with zeros for all that turns, and the others as they are.
    turn = make_rotation(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))
    one = torch.ones_like(operand)
    still = torch.isclose(rule.turn(one, turn), one) & torch.isclose(rule.turn(one, -torch.eye(3).double()), one)
    if operand.dim() > rule.axes:
        still[1:] = True
    return torch.where(still, operand, torch.zeros_like(operand))


def _check_result_shapes_of_empty_batch(subject: ModuleUnderTest) -> dict[str, GotAndExpectedOrReason]:
    number = _find_common_row_count_of_operands(subject)
    if number is None:
        return {}
    try:
        straight, found = subject(subject.given), _call_on_selected_rows(subject, torch.arange(0))
    except NotCompared as why:
        return {"no rows": str(why)}
    shapes = {n: y.shape[1:] for n, y in _select_results_with_row_count(subject, straight, number).items()}
    if wrong := [name for name, shape in shapes.items() if found[name].shape != (0, *shape)]:
        return {"no rows": ValueError(f"{wrong[0]} has shape {tuple(found[wrong[0]].shape)} where there are no rows")}
    return {"no rows": (torch.ones(1), torch.ones(1))}
