r"""The rule of differentiation, for whatever computes open slots of a multilinear form.

At a point (one tensor for each slot), for cotangents :math:`c_s` of the slots s that were open,

.. math:: \sum_s \langle c_s, \partial L/\partial s\rangle = \sum_s L(\ldots, s := c_s, \ldots),

so the derivative with respect to another slot t is a sum of :math:`\partial L/\partial t` at points where one tensor is
replaced.  The same holds for tangents.  Applied again it gives every order; nothing else here or elsewhere knows how to
differentiate a form.

>>> def evaluate(replaced, point, opened):  # L = x * y * g
...     x, y, g = point
...     return [{0: lambda: y * g, 1: lambda: x * g, 2: lambda: x * y}[slot]() for slot in opened]
>>> pull_back(evaluate, (2.0, 3.0, None), opened=(2,), cotangents=[10.0], wanted=(0, 1))
[30.0, 20.0, None]
>>> push_forward(evaluate, (2.0, 3.0, None), opened=(2,), tangents=[1.0, None])
[3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

# (slot that something else stands in, point, open slots) -> a value for each open slot.  What stands in the replaced
# slot counts where a term reads it, and only there: terms without it drop out.
Evaluate = Callable[[int, Sequence[Any], tuple[int, ...]], Sequence[Any]]
Add = Callable[[Any, Any], Any]  # of what was evaluated, and of nothing else: it may write into the first


def pull_back(
    evaluate: Evaluate,
    point: Sequence[Any],
    opened: Sequence[int],
    cotangents: Sequence[Any],
    wanted: Sequence[int],
    add: Add = add,
) -> list[Any]:
    """Gradients of the slots that are wanted, None for the others, for cotangents of the slots that were open."""
    totals: list[Any] = [None] * len(point)
    for slot, cotangent in zip(opened, cotangents, strict=True):
        _accumulate(totals, evaluate, point, slot, cotangent, wanted, add)
    return totals


def push_forward(evaluate: Evaluate, point: Sequence[Any], opened: Sequence[int], tangents: Sequence[Any]) -> list[Any]:
    """Tangents of the open slots, None where they are zero, for tangents of the point."""
    totals: list[Any] = [None] * len(point)
    for slot, tangent in enumerate(tangents):
        _accumulate(totals, evaluate, point, slot, tangent, opened, add)
    return [totals[slot] for slot in opened]


def _accumulate(
    totals: list[Any],
    evaluate: Evaluate,
    point: Sequence[Any],
    slot: int,
    replacement: Any,
    opened: Sequence[int],
    add: Add,
) -> None:
    others = tuple(n for n in opened if n != slot)  # the form is linear in each slot
    if replacement is None or not others:
        return
    moved = (*point[:slot], replacement, *point[slot + 1 :])
    for n, value in zip(others, evaluate(slot, moved, others), strict=True):
        totals[n] = value if totals[n] is None else add(totals[n], value)
