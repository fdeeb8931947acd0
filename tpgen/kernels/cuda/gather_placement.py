"""Batch schedules placed on blocks and warps."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.cuda.chips import KIB, Chip
from tpgen.kernels.cuda.gathers import Gather, intermediate_dims, make_gathers
from tpgen.kernels.cuda.groups import Unit, assign_units_to_warps
from tpgen.kernels.cuda.steps import RowSteps
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.terms import SLOTS

_WARPS, _MANY = 4, 8
_SMALL = 24 * KIB  # a step of less than that takes more rows
_LONG = 16 * KIB  # bytes of a row that are enough work for more warps


@dataclass(frozen=True)
class GatherPlacement(BatchPlacement, RowSteps):
    """A GPU kernel of paths that mix copies: sums divided among warps."""

    chip: Chip
    rows: int = 1
    warps: int = 1

    small = _SMALL

    def mixes_first(self, term: Term) -> bool:
        """False: weights mix copies after the coupling."""
        return False

    def contracts_weights_with_input2(self, term: Term) -> bool:
        """False: no path multiplies scalars by weights first."""
        return False

    def has_own_area_for_sums(self, operand: str) -> bool:
        """Whether an opened slot is summed over rows."""
        return self.is_summed_over_rows(operand)

    def may_overwrite_operand(self, operand: str) -> bool:
        """True for weights per row, computed last."""
        return operand == "w" and operand in self.row_operands

    @property
    def usual_warps(self) -> int:
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
        """Numbers per row of coupled inputs P and their cotangents D."""
        return intermediate_dims(self._make_gathers(1))

    @cached_property
    def places(self) -> dict[tuple[str, int], int]:
        """First position of each path's P or D."""
        return {(g.target, g.parts[0].term.path): g.place for g in self.gathers}

    @cached_property
    def phases(self) -> tuple[tuple[tuple[Unit, ...], ...], ...]:
        """Units of each warp, by phase."""
        return tuple(
            assign_units_to_warps(self._units_of_phase(phase), self.warps) for phase in self._list_phases_in_order
        )

    @cached_property
    def _list_phases_in_order(self) -> list[tuple[int, bool]]:
        return sorted({self._phase_and_whether_owner(g) for g in self.gathers})

    def _phase_and_whether_owner(self, gather: Gather) -> tuple[int, bool]:
        # sums of owners come after the rest of a phase: an owner's rows take turns
        return gather.phase, gather.target == self.owner

    def adds_to_owners(self, phase: int) -> bool:
        return self._list_phases_in_order[phase][1]

    def _units_of_phase(self, phase: tuple[int, bool]) -> list[Unit]:
        return [
            Unit(g, chunk)
            for g in self.gathers
            if self._phase_and_whether_owner(g) == phase
            for chunk in range(g.chunks)
        ]

    @property
    def units_per_step(self) -> int:
        return sum(len(units) for phase in self.phases for units in phase)

    def _shared_bytes_of_step(self, rows: int) -> int:
        # P, D and results with areas of their own are added
        apart = sum(
            self.row_bytes(o) for o in self.results if o in self.row_operands and not self.may_overwrite_operand(o)
        )
        return super()._shared_bytes_of_step(rows) + (sum(self.intermediate_dims.values()) * self.number + apart) * rows

    def __str__(self) -> str:
        return "\n".join([*self.head, *(f"  gather {g.number}, phase {g.phase}: {g}" for g in self.gathers)])
