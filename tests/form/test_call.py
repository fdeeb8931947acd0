"""Calls at levels against the calls without any that they expand into."""

from __future__ import annotations

import pytest

from tpgen.form.call import Call, expanded
from tpgen.kernels.sweep.terms import SLOTS, raised_call


def points(call: Call) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [
        (tuple(str(one.point[name]) for name in SLOTS if name in one.point), tuple(map(str, one.opened)))
        for one in expanded(call, SLOTS)
    ]


def test_second_derivatives_are_the_gradients_with_each_operand_replaced() -> None:
    found = points(raised_call(SLOTS, ("x1", "x2", "w")))
    assert sorted(found) == [
        (("x1", "x2", "w.1", "out"), ("x1", "x2", "out")),
        (("x1", "x2.1", "w", "out"), ("x1", "w", "out")),
        (("x1.1", "x2", "w", "out"), ("x2", "w", "out")),
    ]


def test_a_call_without_levels_is_itself() -> None:
    assert points(Call.parse("x1 x2 w out -> x2 w")) == [(SLOTS, ("x2", "w"))]


@pytest.mark.parametrize("order", [2, 3])
def test_each_way_to_share_levels_occurs_once(order: int) -> None:
    call = raised_call(SLOTS, ("x1", "x2", "w"))
    for _ in range(order - 1):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    ways = [
        (str(slot), tuple(sorted(str(s) for name, s in one.point.items() if name != slot.operand)))
        for one in expanded(call, SLOTS)
        for slot in one.opened
    ]
    assert len(ways) == len(set(ways))
    for one in expanded(call, SLOTS):
        for slot in one.opened:
            levels = [s.levels for name, s in one.point.items() if name != slot.operand]
            assert sum(levels) == call.levels & ~slot.levels, "levels of the others, each once"
