"""Slots of a placement, whatever its schedule."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tpgen.base.locks import cached_property
from tpgen.kernels.rows import SOURCES, RowRule, Rules
from tpgen.kernels.sweep.statements import TextOfPaths
from tpgen.kernels.sweep.terms import SLOTS, given_slots, operand_of, raised_call


class OpenedSlots(TextOfPaths):
    """The slots that are given, how long a row of each slot is, and what nothing writes."""

    schedule: Any
    opened: tuple[str, ...]
    owner: str | None  # the open slot that is summed over the rows of a gather
    raised: tuple[str, ...] = ()  # operands that are given at level 1 too: cotangents of gradients
    rules: Rules = ()  # by which rows find those of operands

    def rule(self, operand: str) -> RowRule | None:
        """The rule by which rows find those of an operand, if any."""
        return next((rule for rule in self.rules if rule.operand == operand), None)

    @property
    def indexed(self) -> bool:
        """Whether rows are edges."""
        return SOURCES in self.rules

    @cached_property
    def call_slots(self) -> tuple[str, ...]:
        """Slots in the order in which a call gives their tensors."""
        if not self.raised:
            return SLOTS
        return tuple(str(slot) for slot in raised_call(self.opened, self.raised).given)

    @cached_property
    def given(self) -> tuple[str, ...]:
        return given_slots(self.opened)

    @property
    def by_element(self) -> bool:
        """Whether rows of one element come together, and a thread has its weights at hand."""
        return getattr(self.schedule, "by_element", False)

    @property
    def sums_weights(self) -> bool:
        """Whether the gradient of weights that rows share is open."""
        return self.schedule.shared_weights and "w" in self.opened

    @property
    def weight_scratch(self) -> int:
        raise NotImplementedError

    @property
    def block_sums(self) -> int:
        """Numbers of the sums that a block of rows adds to the gradient of shared weights, in whole vectors."""
        return max(self.weight_scratch, self.schedule.target.lanes)

    def carried(self, slot: str) -> bool:
        """Whether the open slot of an operand is summed over rows."""
        operand = operand_of(slot)
        return operand == self.owner or (operand == "w" and self.schedule.shared_weights)

    @cached_property
    def dim(self) -> dict[str, int]:
        dims = dict(zip(SLOTS, self.schedule.dims, strict=True))
        return {slot: dims[operand_of(slot)] for slot in self.call_slots}

    @property
    def second_weights(self) -> int:
        """Size of the gradients of weights that are added to those of another edge."""
        return 0

    @property
    def tiles(self) -> set[int]:
        """Widths of the transposes between memory and vectors."""
        return set()

    @property
    def tails(self) -> set[tuple[int, int]]:
        """Width and items of the transposes for what is left over behind whole vectors."""
        return set()

    @abstractmethod
    def reached(self, operand: str) -> list[tuple[int, int]]:
        """Start and size of the segments of an operand that some path touches."""

    def unreached(self, operand: str) -> list[tuple[int, int]]:
        """Start and size of what no path writes."""
        return gaps(self.reached(operand), self.dim[operand])


def gaps(reached: list[tuple[int, int]], dim: int) -> list[tuple[int, int]]:
    """Start and size of what is not covered.

    >>> gaps([(2, 3)], 6)
    [(0, 2), (5, 1)]
    """
    found, at = [], 0
    for start, size in sorted(reached):
        if start > at:
            found.append((at, start - at))
        at = max(at, start + size)
    return found + ([(at, dim - at)] if dim > at else [])
