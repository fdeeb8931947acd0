r"""Gradients of a multilinear form L from a function that computes open slots.

.. math:: \sum_s ⟨c_s, ∂L/∂s⟩ = \sum_s L(…, s := c_s, …)

for cotangents c of open slots s.

>>> def evaluate(raised, point, opened):  # L = x * y * g
...     x, y, g = point
...     return [{0: lambda: y * g, 1: lambda: x * g, 2: lambda: x * y}[slot]() for slot in opened]
>>> pull_back(evaluate, (2.0, 3.0, None), opened=(2,), cotangents=[10.0], wanted=(0, 1))
[30.0, 20.0, None]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any, NamedTuple

from tpgen.base.remember import remembered
from tpgen.form.call import Call, Slot, split_by_levels

# (operands that something at a level stands in, what stands in each operand, operands to open) -> a value for each of
# the last.  What stands in a replaced operand counts where a term reads it, and only there: terms without it drop out.
EvaluateCall = Callable[[tuple[int, ...], Sequence[Any], tuple[int, ...]], Sequence[Any]]
Add = Callable[[Any, Any], Any]  # of what was evaluated, and of nothing else: it may write into the first


class CallPart(NamedTuple):
    """Summand of a `Call`: a plain call of the form; operands and slots by position."""

    raised: tuple[int, ...]  # operands whose place something at a level takes
    point: tuple[int | None, ...]  # what is given in each operand
    opened: tuple[int, ...]  # operands, in their order
    results: tuple[int, ...]  # of what the call at levels opens: where each of these adds to


def list_call_parts(call: Call, operands: Sequence[str]) -> tuple[CallPart, ...]:
    """Split a call into plain calls of the form to sum, if no term reads an operand twice."""
    given = {slot: n for n, slot in enumerate(call.given)}
    found = []
    for one in split_by_levels(call, operands):
        slots = sorted(one.opened, key=lambda slot: operands.index(slot.operand))
        raised = tuple(n for n, name in enumerate(operands) if name in one.raised)
        point = tuple(given.get(one.point.get(name, Slot(name))) for name in operands)
        opened = tuple(operands.index(slot.operand) for slot in slots)
        found.append(CallPart(raised, point, opened, tuple(map(call.opened.index, slots))))
    return tuple(found)


def sum_call_parts(
    parts: Iterable[CallPart], given: Sequence[Any], result_count: int, evaluate: EvaluateCall, add: Add = add
) -> list[Any]:
    """Evaluate parts; sum values for each of ``result_count`` opened slots, None for zero."""
    totals: list[Any] = [None] * result_count
    for part in parts:
        point = [None if n is None else given[n] for n in part.point]
        for n, value in zip(part.results, evaluate(part.raised, point, part.opened), strict=True):
            totals[n] = value if totals[n] is None else add(totals[n], value)
    return totals


def pull_back(
    evaluate: EvaluateCall,
    point: Sequence[Any],
    opened: Sequence[int],
    cotangents: Sequence[Any],
    wanted: Sequence[int],
    add: Add = add,
) -> list[Any]:
    """Gradients of ``wanted`` operands, else None, from cotangents of ``opened`` operands."""
    raised = {n: c for n, c in zip(opened, cotangents, strict=True) if c is not None}
    if not raised:  # a call without levels, which would be the form itself
        return [None] * len(point)
    given = tuple(n for n, x in enumerate(point) if x is not None)
    parts = _split_gradient_call_into_parts(len(point), given, tuple(raised), tuple(wanted))
    sums = sum_call_parts(parts, [*(point[n] for n in given), *raised.values()], len(wanted), evaluate, add)
    found = dict(zip(wanted, sums, strict=True))
    return [found.get(n) for n in range(len(point))]


@remembered("derivatives of forms")
def _split_gradient_call_into_parts(
    operand_count: int, given: tuple[int, ...], with_cotangent: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[CallPart, ...]:
    names = [f"x{n}" for n in range(operand_count)]
    slots = (*(Slot(names[n]) for n in given), *(Slot(names[n], 1) for n in with_cotangent))
    return list_call_parts(Call(slots, tuple(Slot(names[n]) for n in wanted)), names)
