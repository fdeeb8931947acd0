"""The mode table against expectations written by hand."""

from __future__ import annotations

import pytest

from tpgen.base.errors import PlanError
from tpgen.planner.modes import MODES, find_axis_sizes, find_mode

# mode: weight axes, fan-in axes, axes that only a weight fills
TABLE = {
    "uvw": ("uvw", "uv", "w"),
    "uvu": ("uv", "v", ""),
    "uvv": ("uv", "u", ""),
    "uuw": ("uw", "u", "w"),
    "uuu": ("u", "", ""),
    "uvuv": ("uv", "", ""),
    "uvu<v": ("p", "", ""),
    "u<vw": ("pw", "p", "w"),
}


def test_there_are_eight_modes_in_a_fixed_order() -> None:
    assert list(MODES) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_derived_letters(name: str) -> None:
    mode = MODES[name]
    assert (mode.weight, mode.fan_in, mode.mixing) == TABLE[name]
    assert mode.paired == ("<" in name)


@pytest.mark.parametrize(
    "name, muls, shape",
    [
        ("uvw", (4, 3, 5), (4, 3, 5)),
        ("uvu", (4, 3, 4), (4, 3)),
        ("uvv", (4, 3, 3), (4, 3)),
        ("uuw", (4, 4, 5), (4, 5)),
        ("uuu", (4, 4, 4), (4,)),
        ("uvuv", (4, 3, 12), (4, 3)),
        ("uvu<v", (4, 4, 6), (6,)),
        ("u<vw", (4, 4, 5), (6, 5)),
        ("uvw", (0, 3, 5), (0, 3, 5)),
        ("uvu<v", (1, 1, 0), (0,)),
    ],
)
def test_weight_shape(name: str, muls: tuple[int, int, int], shape: tuple[int, ...]) -> None:
    sizes = find_axis_sizes(MODES[name], *muls, has_weight=True)
    assert tuple(sizes[a] for a in MODES[name].weight) == shape


@pytest.mark.parametrize(
    "name, muls, rule",
    [
        ("uvu", (4, 3, 5), r"'uvu' keeps axis u of input 1, so the output multiplicity must be 4, got 5"),
        ("uvv", (4, 3, 5), r"'uvv' keeps axis v of input 2, so the output multiplicity must be 3, got 5"),
        ("uuw", (4, 3, 5), r"'uuw' keeps axis u of input 1, so the input 2 multiplicity must be 4, got 3"),
        ("uuu", (4, 3, 4), r"'uuu' keeps axis u of input 1, so the input 2 multiplicity must be 4, got 3"),
        ("uuu", (4, 4, 3), r"'uuu' keeps axis u of input 1, so the output multiplicity must be 4, got 3"),
        ("uvuv", (4, 3, 11), r"'uvuv' keeps every pair of axes uv of both inputs, so the output .* must be 12, got 11"),
        ("uvu<v", (4, 4, 5), r"'uvu<v' keeps one copy for each row pair u<v .*, so the output .* must be 6, got 5"),
        ("uvu<v", (4, 3, 6), r"'uvu<v' takes row pairs u<v of both inputs, so the input 2 .* must be 4, got 3"),
        ("u<vw", (4, 3, 6), r"'u<vw' takes row pairs u<v of both inputs, so the input 2 .* must be 4, got 3"),
    ],
)
def test_multiplicities_that_do_not_fit(name: str, muls: tuple[int, int, int], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        find_axis_sizes(MODES[name], *muls, has_weight=True)


@pytest.mark.parametrize("name", ["uvw", "u<vw"])
def test_modes_that_need_a_weight(name: str) -> None:
    with pytest.raises(PlanError, match=f"mode '{name}' fills output axis w from the weights.*has_weight=True"):
        find_axis_sizes(MODES[name], 3, 3, 3, has_weight=False)


def test_uuw_without_weights_sums_into_one_copy() -> None:
    assert find_axis_sizes(MODES["uuw"], 4, 4, 1, has_weight=False) == {"u": 4, "w": 1}
    with pytest.raises(PlanError, match=r"'uuw' without weights sums axis u into one copy, so the output .* must be 1"):
        find_axis_sizes(MODES["uuw"], 4, 4, 2, has_weight=False)


@pytest.mark.parametrize("name", ["uwu", "", None, 3, ["uvu"]])
def test_unknown_mode(name: object) -> None:
    with pytest.raises(PlanError, match=r"unknown mode .*; known modes: uvw, uvu, uvv, uuw, uuu, uvuv, uvu<v, u<vw"):
        find_mode(name)
