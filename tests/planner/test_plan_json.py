"""Plans as JSON: there and back, a stable digest, and nothing but a `PlanError` for hostile text."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cases import CASES, random_arguments, run_python
from tests.planner.test_linear import ARGUMENTS
from tests.polynomials import PLANS as POLYNOMIALS
from tpgen.base.errors import PlanError
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.problems import LINEARS, PROBLEMS
from tpgen.planner.problems import POLYNOMIALS as NAMED_POLYNOMIALS
from tpgen.planner.product import make_plan
from tpgen.planner.read import read_plan
from tpgen.planner.strict import MAX_DIM, MAX_INSTRUCTIONS, MAX_READ_DEGREE, MAX_TEXT, MAX_WEIGHTS

PLAN = make_plan(
    "2x0e + 3x1o",
    "1x0e + 1x1o",
    "2x0e + 3x1e",
    [(0, 0, 0, "uvu", True, 0.5), (1, 1, 1, "uvu", False)],
    in1_var=[0.5, 2.0],
    out_var=[1.0, 3.0],
)


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(PLAN.to_json()), **changes})


MAKERS: dict[str, Callable[[], Plan]] = {
    **{str(case): partial(getattr, case, "plan") for case in CASES},
    **{str(arguments): partial(make_linear_plan, **arguments) for arguments in ARGUMENTS},
    **POLYNOMIALS,
    **{name: problem.make for name, problem in {**PROBLEMS, **LINEARS, **NAMED_POLYNOMIALS}.items()},  # with tables
    "nothing": partial(make_plan, "", "0x1o", "", []),
}


@pytest.mark.parametrize(
    "again", [lambda plan: read_plan(plan.to_json()), lambda plan: pickle.loads(pickle.dumps(plan))]
)
@pytest.mark.parametrize("name", MAKERS)
def test_round_trip(name: str, again: Callable[[Plan], Plan]) -> None:
    plan = MAKERS[name]()
    other = again(plan)
    assert other == plan
    assert (hash(other), other.digest, str(other)) == (hash(plan), plan.digest, str(plan))
    assert (other.paths, other.weight_slices) == (plan.paths, plan.weight_slices)


def test_round_trip_of_random_products() -> None:
    for arguments, keywords in map(random_arguments, range(50)):
        plan = make_plan(*arguments, **keywords)
        assert read_plan(plan.to_json()) == plan


def test_one_line_with_the_format_first() -> None:
    text = PLAN.to_json()
    assert "\n" not in text
    assert text.startswith('{"format": "tpgen.plan/1"')


@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "plans").glob("*.json")), ids=lambda file: file.stem)
def test_files_of_each_format_are_read(file: Path) -> None:
    text = file.read_text(encoding="utf-8").strip()
    assert read_plan(text).to_json() == text


def test_digest_is_the_same_in_every_process() -> None:
    code = "from tests.planner.test_plan_json import MAKERS; print(*(make().digest for make in MAKERS.values()))"
    assert run_python(code).split() == [make().digest for make in MAKERS.values()]


def test_digest_does_not_change_between_versions() -> None:
    """It names files on users' disks: changing the format needs a new name for it."""
    assert make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)]).digest == "f0af13f212f11190"
    assert make_linear_plan("2x1o", "3x1o").digest == "becec5506870b46f"


def test_digest_depends_on_every_field() -> None:
    texts = [
        PLAN.to_json(),
        changed(irreps_in1="2x0e + 3x1o + 1x1o", in1_var=[0.5, 2.0, 1.0]),
        changed(irreps_in2="1x0e + 1x1o + 1x1o", in2_var=[1.0, 1.0, 1.0]),
        changed(irreps_out="2x0e + 3x1e + 1x1o", out_var=[1.0, 3.0, 1.0]),
        changed(instructions=[[0, 0, 0, "uvu", True, 0.5]]),
        changed(instructions=[[0, 0, 0, "uvu", True, 0.5], [1, 1, 1, "uvu", True, 1.0]]),
        changed(instructions=[[0, 0, 0, "uvu", True, 0.25], [1, 1, 1, "uvu", False, 1.0]]),
        changed(in1_var=[0.5, 1.0]),
        changed(in2_var=[0.5, 1.0]),
        changed(out_var=[1.0, 1.0]),
        changed(irrep_normalization="norm"),
        changed(path_normalization="path"),
        changed(shared_weights=False),
    ]
    plans = [read_plan(text) for text in texts]
    assert len({plan.digest for plan in plans}) == len(texts)
    assert len(set(plans)) == len(texts)


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text, match",
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (PLAN.to_json()[:-1], "not valid JSON"),
        (PLAN.to_json()[:100], "not valid JSON"),
        (PLAN.to_json() + "x", "not valid JSON"),
        (NESTED, "not valid JSON"),
        ("[]", "field 'plan': must be a JSON object"),
        ("null", "field 'plan': must be a JSON object"),
        ("3", "field 'plan': must be a JSON object"),
        ("{}", "field 'format': is missing; it must be one of tpgen.plan/1, .*polynomial/1$"),
        ("NaN", "NaN is not a number that a plan may hold"),
        ("1" * 10_000, "not valid JSON"),
        (changed(in1_var=[float("nan"), 1.0]), "NaN is not a number that a plan may hold"),
        (changed(in1_var=[float("inf"), 1.0]), "Infinity is not a number that a plan may hold"),
        (changed(in1_var=[-float("inf"), 1.0]), "-Infinity is not a number that a plan may hold"),
        (PLAN.to_json().replace("0.5", "1e999"), "must be a number from 0 to 1e12, got 'inf'"),
        (PLAN.to_json().replace("0.5", "9" * 400), "must be a number from 0 to 1e12"),
        (PLAN.to_json().replace("0.5", "9" * 10_000), "not valid JSON"),
        (changed(extra=1), "field 'extra': is not a field of a plan; known fields: irreps_in1"),
        (" " * (MAX_TEXT + 1), f"longer than {MAX_TEXT} characters"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_malformed_text(text: str, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        read_plan(text)


def test_more_weights_than_any_machine_holds() -> None:
    text = changed(
        irreps_in1="9000x0e", irreps_in2="9000x0e", irreps_out="9000x0e", in1_var=[1], in2_var=[1], out_var=[1],
        instructions=[[0, 0, 0, "uvw", True, 1.0]],
    )  # fmt: skip
    with pytest.raises(PlanError, match=f"field 'weights': at most {MAX_WEIGHTS} weights, got '729000000000'"):
        read_plan(text)


def test_deep_nesting_of_any_depth() -> None:
    for depth in [*range(900, 1000, 3), 5000]:
        with pytest.raises(PlanError, match="plan"):
            read_plan("[" * depth + "]" * depth)
        with pytest.raises(PlanError, match="plan"):
            read_plan(PLAN.to_json().replace("0.5", "[" * depth + "]" * depth))


@pytest.mark.parametrize("name", list(json.loads(PLAN.to_json())))
def test_missing_field(name: str) -> None:
    fields = json.loads(PLAN.to_json())
    del fields[name]
    with pytest.raises(PlanError, match=f"field '{name}': is missing"):
        read_plan(json.dumps(fields))


IRREPS = [
    (3, "must be irreps as text"),
    (None, "must be irreps as text"),
    (["2x0e"], "must be irreps as text"),
    ("x0e", "has an unreadable entry"),
    ("2x", "has an unreadable entry"),
    ("2x0e+", "has an unreadable entry"),
    ("-2x0e", "has an unreadable entry"),
    ("2x-1e", "has an unreadable entry"),
    ("2x0u", "has an unreadable entry"),
    ("2x0ee", "has an unreadable entry"),
    ("٣x0e", "has an unreadable entry"),
    ("2x²e", "has an unreadable entry"),
    ("2_0x0e", "has an unreadable entry"),
    ("__import__('os')", "has an unreadable entry"),
    (f"{MAX_READ_DEGREE + 1}e", f"degrees go up to {MAX_READ_DEGREE}"),
    ("1x999999999999e", "has an unreadable entry"),
    (f"{MAX_DIM + 1}x0e", f"the dimension may be at most {MAX_DIM}"),
    ("999999999x0e", f"the dimension may be at most {MAX_DIM}"),
    ("9" * 5000 + "x0e", "has an unreadable entry"),
    ("+".join(["4000000x1o"] * 3), f"the dimension may be at most {MAX_DIM}"),
    ("0e+" * 40_000 + "0e", "must be irreps as text"),
]
NUMBERS = [
    (1.0, "must be a list of numbers"),
    ("1.0", "must be a list of numbers"),
    ({}, "must be a list of numbers"),
    ([True, 1.0], "must be a number from 0 to 1e12, got 'True'"),
    (["1", 1.0], "must be a number from 0 to 1e12"),
    ([None, 1.0], "must be a number from 0 to 1e12"),
    ([-1.0, 1.0], "must be a number from 0 to 1e12, got '-1.0'"),
    ([1e13, 1.0], "must be a number from 0 to 1e12"),
    ([[1.0], 1.0], "must be a number from 0 to 1e12"),
    ([1.0], "needs one variance for each of the 2 entries"),
]
INSTRUCTIONS = [
    (None, "must be a list of instructions"),
    ({}, "must be a list of instructions"),
    ([[0, 0, 0, "uvu", True, 1.0]] * (MAX_INSTRUCTIONS + 1), "must be a list of instructions"),
    ([3], r"\[0\]': must be a list of 6 values"),
    ([[0, 0, 0, "uvu", True]], r"\[0\]': must be a list of 6 values"),
    ([[0, 0, 0, "uvu", True, 1.0, []]], r"\[0\]': must be a list of 6 values"),
    ([[0.0, 0, 0, "uvu", True, 1.0]], r"\[0\]': indices must be small integers, got '0.0'"),
    ([[True, 0, 0, "uvu", True, 1.0]], r"\[0\]': indices must be small integers, got 'True'"),
    ([[-1, 0, 0, "uvu", True, 1.0]], r"\[0\]': indices must be small integers"),
    ([["0", 0, 0, "uvu", True, 1.0]], r"\[0\]': indices must be small integers"),
    ([[10**300, 0, 0, "uvu", True, 1.0]], r"\[0\]': indices must be small integers"),
    ([[7, 0, 0, "uvu", True, 1.0]], r"i_in1 = 7 is out of range"),
    ([[0, 0, 0, "uwu", True, 1.0]], r"\[0\]': mode must be one of uvw, uvu"),
    ([[0, 0, 0, ["uvu"], True, 1.0]], r"\[0\]': mode must be one of"),
    ([[0, 0, 0, "uvu", 1, 1.0]], r"\[0\]': has_weight must be true or false"),
    ([[0, 0, 0, "uvu", True, 1.0], [0, 0, 0, "uvu", True, "1"]], r"\[1\]': must be a number from 0 to 1e12"),
    ([[0, 0, 0, "uvu", True, -1.0]], r"\[0\]': must be a number from 0 to 1e12"),
    ([[0, 0, 0, "uvw", False, 1.0]], "cannot be unweighted"),
    ([[0, 1, 0, "uvu", True, 1.0]], "parity"),
]
FIELDS: dict[str, list[tuple[Any, str]]] = {
    "format": [
        (1, "must be one of tpgen.plan/1"),
        ("tpgen.plan/2", "must be one of tpgen.plan/1.*, got 'tpgen.plan/2'"),
    ],
    "irreps_in1": IRREPS,
    "irreps_in2": IRREPS,
    "irreps_out": IRREPS,
    "instructions": INSTRUCTIONS,
    "in1_var": NUMBERS,
    "in2_var": NUMBERS,
    "out_var": NUMBERS,
    "irrep_normalization": [
        (None, "must be one of component, norm, none"),
        ("all", "must be one of"),
        ([], "must be one"),
    ],
    "path_normalization": [
        (None, "must be one of element, path, none"),
        ("all", "must be one of"),
        ({}, "must be one"),
    ],
    "shared_weights": [
        (None, "must be true or false"),
        (1, "must be true or false"),
        ("true", "must be true or false"),
    ],
}


@pytest.mark.parametrize("name", FIELDS)
def test_hostile_values(name: str) -> None:
    for value, match in FIELDS[name]:
        with pytest.raises(PlanError, match=match) as caught:
            read_plan(changed(**{name: value}))
        assert len(str(caught.value)) < 2000


def test_every_field_is_attacked() -> None:
    assert set(FIELDS) == set(json.loads(PLAN.to_json()))


def test_text_with_random_damage_is_read_or_refused() -> None:
    rng = random.Random(0)
    text = PLAN.to_json()
    for _ in range(2000):
        damaged = list(text)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randint(0, 2)] = rng.choice(
                ['"', "[", "]", "9", "-", "e", ",", "x", "", "null"]
            )
        try:
            plan = read_plan("".join(damaged))
        except PlanError:
            continue
        assert read_plan(plan.to_json()) == plan


def test_many_instructions_are_planned_in_reasonable_time() -> None:
    """Planning is linear in the number of instructions: a hostile plan must not keep a machine busy for minutes."""
    plan = read_plan(changed(instructions=[[0, 0, 0, "uvu", True, 1.0]] * MAX_INSTRUCTIONS))
    assert plan.weight_numel == 2 * MAX_INSTRUCTIONS


def test_a_plan_of_the_largest_degree_can_be_read() -> None:
    text = make_plan(f"{MAX_READ_DEGREE}e", f"{MAX_READ_DEGREE}e", "0e", [(0, 0, 0, "uuu", False)]).to_json()
    assert read_plan(text).weight_numel == 0
