r"""Calls of a form L: derivatives of L at given tensors.

A *slot* is an operand t at a set of levels T.  With P the coefficient of all levels in

.. math:: L(t + \sum_T ε_T t_T, …), \quad ε_n^2 = 0, \quad ε_{\{1,2\}} = ε_1 ε_2,

a call computes :math:`∂P/∂t_T` for each opened slot.  Without levels, P = L.  A cotangent or tangent of slot (t, T)
fills slot (t, T + new level).

>>> forward = Call.parse("x -> out")
>>> print(forward.pulled_back([True], [True]))
x out.1 -> x
>>> print(forward.pulled_back([True], [True]).pulled_back([True], [True, True]))
x out.1 x.2 -> x out.1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from tpgen.base.errors import PlanError
from tpgen.base.locks import cached_property
from tpgen.base.remember import remembered

MAX_LEVELS = 9
_SLOT = re.compile(r"([A-Za-z_]\w*)(?:\.([1-9]+))?", re.ASCII)


@dataclass(frozen=True)
class Slot:
    """Operand, or its tangent or cotangent at derivative levels; level n is the bit ``1 << (n - 1)``.

    >>> print(Slot("x"), Slot("x", 0b101))
    x x.13
    """

    operand: str
    levels: int = 0

    def __str__(self) -> str:
        digits = "".join(str(n + 1) for n in range(MAX_LEVELS) if self.levels >> n & 1)
        return f"{self.operand}.{digits}" if digits else self.operand


@dataclass(frozen=True)
class Call:
    """Derivative of a form to compute: given slots, and opened slots (results)."""

    given: tuple[Slot, ...]
    opened: tuple[Slot, ...]

    @cached_property
    def levels(self) -> int:
        """Derivative levels of all given slots, as bits."""
        found = 0
        for slot in self.given:
            found |= slot.levels
        return found

    def pulled_back(self, cotangents: Sequence[bool], wanted: Sequence[bool]) -> Call:
        """Call for gradients of the ``wanted`` given slots from cotangents of the flagged opened slots."""
        raised = self._add_new_level_to_slots(
            slot for slot, there in zip(self.opened, cotangents, strict=True) if there
        )
        return Call(self.given + raised, tuple(s for s, yes in zip(self.given, wanted, strict=True) if yes))

    def pushed_forward(self, tangents: Sequence[bool]) -> Call:
        """Call for tangents of the opened slots from tangents of the flagged given slots."""
        raised = self._add_new_level_to_slots(slot for slot, there in zip(self.given, tangents, strict=True) if there)
        return Call(self.given + raised, self.opened)

    def _add_new_level_to_slots(self, slots: Iterable[Slot]) -> tuple[Slot, ...]:
        level = self.levels.bit_length()
        if level >= MAX_LEVELS:
            raise PlanError(f"derivatives go up to order {MAX_LEVELS}, and this one is of a higher order")
        return tuple(Slot(s.operand, s.levels | 1 << level) for s in slots)

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.given))} -> {' '.join(map(str, self.opened))}"

    @staticmethod
    @remembered("calls of forms")
    def parse(text: str) -> Call:
        """Parse a printed call, ``x w -> out``; `PlanError` for other text.

        >>> Call.parse("x w -> out").opened
        (Slot(operand='out', levels=0),)
        """
        given, arrow, opened = text.partition(" -> ")
        call = Call(_parse_slots(given), _parse_slots(opened))
        if not arrow or str(call) != text or not call.opened:
            raise PlanError(f"not a call: {text[:60]!r}; it reads 'x w -> out', with levels behind a dot")
        return call


def _parse_slots(text: str) -> tuple[Slot, ...]:
    found = [_SLOT.fullmatch(part) for part in text.split()]
    slots = tuple(Slot(m[1], sum(1 << int(n) - 1 for n in set(m[2] or ""))) for m in found if m)
    return slots if len(slots) == len(found) == len(set(slots)) else ()


@dataclass
class _PlainFormCall:
    """Plain call: the slot of each operand, and opened slots that results add to."""

    point: dict[str, Slot]
    opened: list[Slot] = field(default_factory=list)

    @property
    def raised(self) -> tuple[str, ...]:
        """Operands whose slot has levels."""
        return tuple(name for name, slot in self.point.items() if slot.levels)

    def is_compatible_with(self, slots: dict[str, Slot]) -> bool:
        """Whether slots by operand can join this call: one slot per operand, no level twice."""
        agrees = all(self.point.get(name, slot) == slot for name, slot in slots.items())
        return agrees and _union_of_levels_if_disjoint((self.point | slots).values()) is not None


def split_by_levels(call: Call, operands: Sequence[str]) -> tuple[_PlainFormCall, ...]:
    """Split a higher derivative into plain calls of the form to sum, if no term reads an operand twice.

    >>> second = Call.parse("x1 x2 out x1.1 x2.1 -> x1 x2 out")
    >>> for one in split_by_levels(second, ("x1", "x2", "out")):
    ...     print(*(one.point[name] for name in ("x1", "x2", "out")), "opens", *one.opened)
    x1 x2.1 out opens x1 out
    x1.1 x2 out opens x2 out
    """
    found: list[_PlainFormCall] = []
    for slot in call.opened:
        for others in _list_slot_choices_that_cover_levels(
            call, [name for name in operands if name != slot.operand], call.levels & ~slot.levels
        ):
            taker = next((one for one in found if slot not in one.opened and one.is_compatible_with(others)), None)
            if taker is None:
                found.append(taker := _PlainFormCall({}))
            taker.point.update(others)
            taker.opened.append(slot)
    return tuple(found)


def _list_slot_choices_that_cover_levels(
    call: Call, operands: Sequence[str], wanted_levels: int
) -> Iterator[dict[str, Slot]]:
    given = [[slot for slot in call.given if slot.operand == name] for name in operands]
    for chosen in product(*given):
        if _union_of_levels_if_disjoint(chosen) == wanted_levels:
            yield dict(zip(operands, chosen, strict=True))


def _union_of_levels_if_disjoint(slots: Iterable[Slot]) -> int | None:
    # all levels of some slots, None where two of them share one
    found = 0
    for slot in slots:
        if found & slot.levels:
            return None
        found |= slot.levels
    return found
