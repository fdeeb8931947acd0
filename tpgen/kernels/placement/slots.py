"""Slots of a placement, whatever its schedule."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tpgen.kernels.sweep.terms import SLOTS, given_slots, operand_of, raised_call


class OpenedSlots:
    """The slots that are given, and how long a row of each slot is."""

    schedule: Any
    opened: tuple[str, ...]
    raised: tuple[str, ...] = ()  # operands that are given at level 1 too: cotangents of gradients

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
    def sums_weights(self) -> bool:
        """Whether the gradient of weights that all rows share is open."""
        return self.schedule.shared_weights and "w" in self.opened

    @cached_property
    def dim(self) -> dict[str, int]:
        dims = dict(zip(SLOTS, self.schedule.dims, strict=True))
        return {slot: dims[operand_of(slot)] for slot in self.call_slots}
