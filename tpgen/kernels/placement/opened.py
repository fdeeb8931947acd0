"""What every placement knows of its slots, whatever its schedule."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tpgen.kernels.sweep.terms import SLOTS, given_slots


class OpenedSlots:
    """The slots that are given, and how long a row of each slot is."""

    schedule: Any
    opened: tuple[str, ...]

    @cached_property
    def given(self) -> tuple[str, ...]:
        return given_slots(self.opened)

    @cached_property
    def dim(self) -> dict[str, int]:
        return dict(zip(SLOTS, self.schedule.dims, strict=True))
