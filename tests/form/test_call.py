"""Calls at levels against the calls without any that they expand into."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest

from tpgen.form.call import Call, split_by_levels
from tpgen.form.derivative import list_call_parts, pull_back, sum_call_parts
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call


def points(call: Call) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [
        (tuple(str(one.point[name]) for name in SLOTS if name in one.point), tuple(map(str, one.opened)))
        for one in split_by_levels(call, SLOTS)
    ]


def test_second_derivatives_are_the_gradients_with_each_operand_replaced() -> None:
    found = points(make_second_derivative_call(SLOTS, ("x1", "x2", "w")))
    assert sorted(found) == [
        (("x1", "x2", "w.1", "out"), ("x1", "x2", "out")),
        (("x1", "x2.1", "w", "out"), ("x1", "w", "out")),
        (("x1.1", "x2", "w", "out"), ("x2", "w", "out")),
    ]


def test_a_call_without_levels_is_itself() -> None:
    assert points(Call.parse("x1 x2 w out -> x2 w")) == [(SLOTS, ("x2", "w"))]


@pytest.mark.parametrize("order", [2, 3])
def test_each_way_to_share_levels_occurs_once(order: int) -> None:
    call = make_second_derivative_call(SLOTS, ("x1", "x2", "w"))
    for _ in range(order - 1):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    ways = [
        (str(slot), tuple(sorted(str(s) for name, s in one.point.items() if name != slot.operand)))
        for one in split_by_levels(call, SLOTS)
        for slot in one.opened
    ]
    assert len(ways) == len(set(ways))
    for one in split_by_levels(call, SLOTS):
        for slot in one.opened:
            levels = [s.levels for name, s in one.point.items() if name != slot.operand]
            assert sum(levels) == call.levels & ~slot.levels, "levels of the others, each once"


BASE = 10**9


def power(levels: int) -> int:
    """A number for a product of levels: of up to three that are the same it is that of no others."""
    return BASE ** sum(4**n for n in range(9) if levels >> n & 1)


def multiplied(_raised: tuple[int, ...], point: Sequence[int | None], opened: tuple[int, ...]) -> list[int]:
    """Open the operands of their product."""
    return [prod(x for n, x in enumerate(point) if n != slot and x is not None) for slot in opened]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_parts_sum_to_the_derivative(order: int) -> None:
    """Of ``a * b * c * g``, by numbers whose digits are what stands at each set of levels."""
    names, call = ("a", "b", "c", "g"), Call.parse("a b c -> g")
    for _ in range(order):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    given = {slot: n + 2 for n, slot in enumerate(call.given)}
    wholes = [sum(x * power(slot.levels) for slot, x in given.items() if slot.operand == name) for name in names]
    found = sum_call_parts(list_call_parts(call, names), list(given.values()), len(call.opened), multiplied)
    for slot, value in zip(call.opened, found, strict=True):
        (whole,) = multiplied((), wholes, (names.index(slot.operand),))
        assert value == whole // power(call.levels & ~slot.levels) % BASE


def test_a_sum_of_nothing_is_zero() -> None:
    assert sum_call_parts((), [], 2, multiplied) == [None, None]


def test_nothing_pulled_back_is_nothing() -> None:
    """A call without levels is the form itself, no derivative of it."""

    def refuse(*_: object) -> list[float]:
        raise AssertionError("evaluated")

    point = (1.0, 2.0, 3.0)
    assert pull_back(refuse, point, (0, 1), [None, None], (0, 1, 2)) == [None, None, None]
