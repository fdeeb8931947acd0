"""Batch schedules placed on blocks and warps."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.cuda.chips import KIB, Chip
from tpgen.kernels.cuda.gathers import Gather, count_intermediate_numbers, make_gathers
from tpgen.kernels.cuda.groups import WorkUnit, assign_units_to_warps
from tpgen.kernels.cuda.steps import SharedMemoryPlacement
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.terms import SLOTS

_WARPS, _MANY = 4, 8
_SMALL = 24 * KIB  # a step of less than that takes more rows
_LONG = 16 * KIB  # bytes of a row that are enough work for more warps


@dataclass(frozen=True)
class CudaGatherPlacement(BatchPlacement, SharedMemoryPlacement):
    """GPU placement of paths that mix multiplicities: sums divided among warps."""

    chip: Chip
    rows: int = 1
    warps: int = 1

    small = _SMALL

    def mixes_first(self, term: Term) -> bool:
        return False  # weights mix copies after the coupling

    def contracts_weights_with_input2(self, term: Term) -> bool:
        return False  # no path multiplies scalars by weights first

    def needs_accumulation_buffer(self, operand: str) -> bool:
        return self.is_summed_over_rows(operand)

    def may_overwrite_operand(self, operand: str) -> bool:
        # weights per row are computed last
        return operand == "w" and operand in self.row_operands

    @property
    def default_warps(self) -> int:
        return _MANY if sum(map(self.row_bytes, self.row_operands)) > _LONG else _WARPS

    # -- gathers --

    @cached_property
    def gathers(self) -> tuple[Gather, ...]:
        return self._make_gathers(self.rows)

    def _make_gathers(self, rows: int) -> tuple[Gather, ...]:
        return make_gathers(
            self.schedule, self.opened, tuple(filter(self.is_summed_over_rows, SLOTS)), rows, self.warps
        )

    @cached_property
    def intermediate_dims(self) -> dict[str, int]:
        """Numbers per row of intermediates P and D."""
        return count_intermediate_numbers(self._make_gathers(1))

    @cached_property
    def places(self) -> dict[tuple[str, int], int]:
        """First position of each path's P or D."""
        return {(g.target, g.parts[0].term.path): g.start for g in self.gathers}

    @cached_property
    def work_by_phase_and_warp(self) -> tuple[tuple[tuple[WorkUnit, ...], ...], ...]:
        """Work units by phase, then by warp; a barrier separates phases."""
        return tuple(
            assign_units_to_warps(self._list_work_units_of_phase(phase), self.warps)
            for phase in self._list_phases_in_order
        )

    @cached_property
    def _list_phases_in_order(self) -> list[tuple[int, bool]]:
        return sorted({self._phase_and_whether_owner(g) for g in self.gathers})

    def _phase_and_whether_owner(self, gather: Gather) -> tuple[int, bool]:
        # sums of owners come after the rest of a phase: an owner's rows take turns
        return gather.phase, gather.target == self.owner

    def adds_to_owners(self, phase: int) -> bool:
        return self._list_phases_in_order[phase][1]

    def _list_work_units_of_phase(self, phase_and_whether_owner: tuple[int, bool]) -> list[WorkUnit]:
        return [
            WorkUnit(g, chunk)
            for g in self.gathers
            if self._phase_and_whether_owner(g) == phase_and_whether_owner
            for chunk in range(g.chunks)
        ]

    @property
    def units_per_step(self) -> int:
        return sum(len(units) for phase in self.work_by_phase_and_warp for units in phase)

    def _count_shared_bytes_for_rows(self, rows: int) -> int:
        # P, D and results with areas of their own are added
        apart = sum(
            self.row_bytes(o) for o in self.results if o in self.row_operands and not self.may_overwrite_operand(o)
        )
        return (
            super()._count_shared_bytes_for_rows(rows)
            + (sum(self.intermediate_dims.values()) * self.number + apart) * rows
        )

    def __str__(self) -> str:
        return "\n".join([*self.header_lines, *(f"  gather {g.number}, phase {g.phase}: {g}" for g in self.gathers)])
