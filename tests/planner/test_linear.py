"""Plans of linear layers: e3nn's slices and coefficients, strict JSON, and an error for whatever does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from e3nn import o3

from tpgen.base.errors import PlanError, PlanIndexError
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.read import read_plan
from tpgen.planner.strict import MAX_WEIGHTS

ARGUMENTS: list[dict[str, Any]] = [
    {"irreps_in": "4x0e + 3x1o + 2x0e", "irreps_out": "2x1o + 8x0e"},
    {"irreps_in": "4x0e + 3x1o + 2x0e", "irreps_out": "2x1o + 8x0e", "path_normalization": "path"},
    {"irreps_in": "4x0e + 3x1o + 2x0e", "irreps_out": "2x1o + 8x0e", "pairs": [(2, 1), (1, 0)], "biases": True},
    {"irreps_in": "0e + 1e", "irreps_out": "0e + 2x1e + 3x0e", "biases": [True, False, False], "f_in": 3, "f_out": 2},
    {"irreps_in": "2x1o + 0x3e + 2e", "irreps_out": "2x1o + 0x3e + 3x2e + 0x2e", "shared_weights": False},
    {"irreps_in": "", "irreps_out": "2x0e", "biases": True},
    {"irreps_in": "2x0e", "irreps_out": ""},
]
PLAN = make_linear_plan(**ARGUMENTS[3])


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(PLAN.to_json()), **changes})


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_instructions_are_those_of_e3nn(arguments: dict[str, Any]) -> None:
    plan = make_linear_plan(**arguments)
    given = {("instructions" if name == "pairs" else name): value for name, value in arguments.items()}
    theirs = o3.Linear(given.pop("irreps_in"), given.pop("irreps_out"), _optimize_einsums=False, **given)
    assert plan.weight_numel == theirs.weight_numel
    assert plan.bias_numel == theirs.bias_numel
    assert [tuple(i) for i in plan.instructions] == [tuple(i) for i in theirs.instructions]
    mask = torch.cat(
        [torch.zeros(0), *(torch.full((m.dim,), float(r)) for m, r in zip(plan.irreps_out, plan.reached, strict=True))]
    )
    assert torch.equal(mask, theirs.output_mask)


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_channels_are_copies(arguments: dict[str, Any]) -> None:
    plan = make_linear_plan(**arguments)
    flat = plan.flat
    assert flat.flat is flat
    assert flat.irreps_in.dim == plan.irreps_in.dim * (plan.f_in or 1)
    assert flat.weight_numel == plan.weight_numel * (plan.f_in or 1) * (plan.f_out or 1)
    assert flat.flops == plan.flops
    assert [p.coefficient for p in flat.paths] == pytest.approx([p.coefficient for p in plan.paths], rel=1e-15)


def test_digest_depends_on_every_field() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"irreps_in": "0e + 2x1e"},
        {"irreps_out": "0e + 2x1e + 4x0e"},
        {"pairs": [[0, 0], [0, 2]]},
        {"biases": [True, False, True]},
        {"f_in": 4},
        {"f_out": 4},
        {"path_normalization": "path"},
        {"shared_weights": False},
    ]
    assert len({read_plan(changed(**change)).digest for change in changes}) == len(changes)


def test_text_says_what_was_planned() -> None:
    text = str(PLAN)
    assert text.startswith(f"linear {PLAN.digest}: 1x0e+1x1e -> 1x0e+2x1e+3x0e, 3 -> 2 channels\nelement normalisation")
    assert "2  1x1e  2x1e      4:6      0.57735     12     36" in text


def test_without_normalisation_weights_are_the_matrices() -> None:
    plan = make_linear_plan("4x0e+3x1o", "2x1o+8x0e", path_normalization="none")
    assert {path.coefficient for path in plan.paths} == {1.0}


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"format": "tpgen.plan/1"}, "'irreps_in': is not a field of a plan"),
        ({"format": "tpgen.linear/2"}, "'format': must be one of tpgen.plan/1, tpgen.linear/1, tpgen.polynomial/1"),
        ({"pairs": [[0]]}, r"pairs\[0\]': must be a list of 2 values"),
        ({"pairs": [[0, -1]]}, r"pairs\[0\]': indices must be small integers, got '-1'"),
        ({"pairs": 3}, "'pairs': must be a list of instructions"),
        ({"biases": [1, 0, 0]}, r"'biases\[0\]': must be true or false, got '1'"),
        ({"biases": True}, "'biases': must be a list of flags"),
        ({"f_in": "3"}, "'f_in': indices must be small integers"),
        ({"f_in": None}, "f_in and f_out go together"),
        ({"f_in": 2**23}, "'x1': the dimension may be at most"),
        ({"f_in": 2**20, "f_out": 2**20}, f"'weights': at most {MAX_WEIGHTS} weights"),
        ({"path_normalization": "half"}, "'path_normalization': must be one of element, path, none"),
        ({"irreps_in": "1e+3"}, "'irreps_in': has an unreadable entry"),
        ({"extra": 1}, "'extra': is not a field of a plan"),
    ],
    ids=str,
)
def test_hostile_json(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        read_plan(changed(**changes))


@pytest.mark.parametrize(
    "arguments, error, match",
    [
        (
            {"pairs": [(0, 1)]},
            PlanError,
            r"instruction 0 \(0, 1\): a linear layer joins equal irreps, got .*4x0e and .*2x1o",
        ),
        (
            {"pairs": [(0, 0), (4, 0)]},
            PlanIndexError,
            "instruction 1 .*i_in = 4 is out of range: irreps_in has 1 entries",
        ),
        ({"pairs": [(0, 0), (0, 2)]}, IndexError, "i_out = 2 is out of range"),
        ({"pairs": [(-1, 0)]}, PlanIndexError, "i_in = -1 is out of range"),
        ({"pairs": [(0, 0, 0)]}, PlanError, r"instruction 0: expected \(i_in, i_out\)"),
        (
            {"pairs": make_linear_plan("4x0e", "4x0e").instructions},
            PlanError,
            r"instruction 0: .* of a built layer: give \[\(i.i_in, i.i_out\)",
        ),
        ({"pairs": [(0, 0.5)]}, PlanError, "instruction 0: i_out must be an integer"),
        ({"pairs": 3}, PlanError, "instructions must be a list of tuples"),
        ({"biases": [True]}, PlanError, "biases: give one flag for each of the 2 entries of irreps_out"),
        ({"biases": [True, True]}, PlanError, r"biases\[1\]: only scalars \(0e\) can have a bias"),
        ({"biases": [2, False]}, PlanError, r"biases\[0\]: must be True or False, got 2"),
        ({"f_in": 2}, PlanError, "f_in and f_out go together: give both numbers of channels or none, got 2 and None"),
        ({"f_in": 2, "f_out": 0}, PlanError, "f_out must be a number of channels, 1 or more, got 0"),
        ({"path_normalization": "half"}, PlanError, "unknown path_normalization 'half'.*: element, path, none"),
        ({"irreps_in": "4xx"}, PlanError, "irreps_in: cannot read irreps '4xx'"),
    ],
    ids=str,
)
def test_errors_name_what_is_wrong(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make_linear_plan(**{"irreps_in": "4x0e", "irreps_out": "4x0e + 2x1o", **arguments})


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        PLAN.f_in = 3  # type: ignore[misc]
    assert isinstance(PLAN, Plan)


def test_a_layer_without_a_path_says_so() -> None:
    assert str(make_linear_plan("1o", "1e")).endswith("no path: the output is zero")
    assert str(make_linear_plan("1o", "2x0e", biases=True)).endswith("the output is biases alone")
