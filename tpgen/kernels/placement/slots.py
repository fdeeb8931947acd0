"""Slots of placements: places of tensors in a product; kernels compute the open ones."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from tpgen.base.locks import cached_property
from tpgen.kernels.rows import SOURCES, RowRule, RowRules
from tpgen.kernels.sweep.statements import TextOfPaths
from tpgen.kernels.sweep.terms import SLOTS, list_given_slots, make_second_derivative_call, operand_of


@dataclass(frozen=True)
class PlacementBase(TextOfPaths):
    """Base of kernel layouts: tensors, row lengths, used ranges."""

    schedule: Any
    opened: tuple[str, ...]
    owner: str | None  # the open slot that is summed over the rows of a gather
    raised: tuple[str, ...] = field(default=(), kw_only=True)  # given at level 1 too: cotangents of gradients
    rules: RowRules = field(default=(), kw_only=True)  # by which rows find those of operands

    def rule(self, operand: str) -> RowRule | None:
        return next((rule for rule in self.rules if rule.operand == operand), None)

    @property
    def indexed(self) -> bool:
        """Whether rows are edges."""
        return SOURCES in self.rules

    @cached_property
    def call_slots(self) -> tuple[str, ...]:
        """Names of tensors in the order of a call."""
        if not self.raised:
            return SLOTS
        return tuple(str(slot) for slot in make_second_derivative_call(self.opened, self.raised).given)

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Slots that the kernel reads."""
        return list_given_slots(self.opened)

    @property
    def by_element(self) -> bool:
        """Whether tasks have rows of one element."""
        return getattr(self.schedule, "by_element", False)

    @property
    def sums_weights(self) -> bool:
        """Whether the gradient of shared weights is open."""
        return self.schedule.shared_weights and "w" in self.opened

    @property
    def scratch_size_of_shared_weights(self) -> int:
        raise NotImplementedError

    @property
    def block_sums(self) -> int:
        """Numbers that a block of rows sums for shared weights."""
        return max(self.scratch_size_of_shared_weights, self.schedule.target.lanes)

    def is_summed_over_rows(self, slot: str) -> bool:
        """Whether the kernel's result for an operand is summed over rows."""
        operand = operand_of(slot)
        return operand == self.owner or (operand == "w" and self.schedule.shared_weights)

    @cached_property
    def dim(self) -> dict[str, int]:
        """Row lengths by tensor name."""
        dims = dict(zip(SLOTS, self.schedule.dims, strict=True))
        return {slot: dims[operand_of(slot)] for slot in self.call_slots}

    @property
    def pair_gradient_size(self) -> int:
        return 0

    @property
    def transposed_segments(self) -> set[tuple[int, int]]:
        """(width, items) of segments transposed between memory and vectors."""
        return set()

    @abstractmethod
    def starts_and_sizes_used_by_paths(self, operand: str) -> list[tuple[int, int]]:
        """(start, size) of each segment that paths use."""

    def starts_and_sizes_that_no_path_uses(self, operand: str) -> list[tuple[int, int]]:
        return unreached_ranges(self.starts_and_sizes_used_by_paths(operand), self.dim[operand])


def unreached_ranges(reached: list[tuple[int, int]], dim: int) -> list[tuple[int, int]]:
    """(start, size) of each range not in ``reached``.

    >>> unreached_ranges([(2, 3)], 6)
    [(0, 2), (5, 1)]
    """
    found, at = [], 0
    for start, size in sorted(reached):
        if start > at:
            found.append((at, start - at))
        at = max(at, start + size)
    return found + ([(at, dim - at)] if dim > at else [])
