"""Channel schedules placed on blocks and warps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tpgen.base.locks import cached_property
from tpgen.kernels.cuda.chips import LANES, Chip
from tpgen.kernels.cuda.groups import PathGroup, WorkUnit, assign_units_to_warps, make_path_groups
from tpgen.kernels.cuda.steps import SharedMemoryPlacement
from tpgen.kernels.cuda.tables import TableSet, make_table_sets
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.values import SegmentView

_WARPS = 4
_UNIT_BYTES = 6  # its group, channels and rows, two bytes each


@dataclass(frozen=True)
class CudaChannelPlacement(ChannelPlacement, SharedMemoryPlacement):
    """GPU placement of paths that keep multiplicities: blocks, warps, one channel per lane."""

    chip: Chip
    rows: int = 1
    warps: int = 1
    held: str | None = None

    # -- what adds and what stores --

    def needs_accumulation_buffer(self, operand: str) -> bool:
        # rows meet in the slot, or paths in a loop over copies
        return self.is_summed_over_rows(operand) or any(
            v.touches > 1 and has_copy_axis(v) for v in self.schedule.views_of(operand)
        )

    def may_overwrite_operand(self, operand: str) -> bool:
        return operand in self.row_operands

    # -- work --

    @cached_property
    def groups(self) -> tuple[PathGroup, ...]:
        return make_path_groups(self.schedule, self.sweep.paths, 1 if self.serial else self.rows)

    @property
    def slots(self) -> int:
        """Partial sums over channels per row: one per warp, or per 32 channels of a group."""
        return self.warps if self.has_one_lane_sum_per_warp else sum(group.chunks for group in self.groups)

    @property
    def has_one_lane_sum_per_warp(self) -> bool:
        """Whether a lane adds up all units of its warp before one sum over lanes."""
        copies = (t.copies for t in self.schedule.tables if t.operand in self.opened)
        return self.rows == 1 < self.depth and all(n == 1 for n in copies)

    def count_row_sets(self, group: PathGroup) -> int:
        """Times that ``group`` runs to cover a step's rows."""
        return self.rows // group.rows

    @cached_property
    def work_units(self) -> tuple[WorkUnit, ...]:
        """All work of a step."""
        return tuple(
            WorkUnit(group, chunk, rows)
            for group in self.groups
            for chunk in range(group.chunks)
            for rows in range(1 if self.serial else self.count_row_sets(group))
        )

    @cached_property
    def work(self) -> tuple[tuple[WorkUnit, ...], ...]:
        """Units of each warp."""
        return assign_units_to_warps(self.work_units, self.warps)

    @property
    def depth(self) -> int:
        """Most units of a warp."""
        return max(map(len, self.work))

    @property
    def constants(self) -> int:
        """Bytes of constant memory."""
        return _UNIT_BYTES * self.warps * self.depth

    @property
    def default_warps(self) -> int:
        return next((w for w in (1, 2) if len(self.work_units) <= w), _WARPS)

    @property
    def units_per_step(self) -> int:
        return len(self.work_units)

    # -- tables and sums over channels --

    @property
    def intermediate_dims(self) -> dict[str, int]:
        """Numbers per row of tables and channel sums, by area."""
        return {"T": self.table_size} | {f"p_{o}": self.slots * self.dim[o] for o in self.channel_sums}

    @cached_property
    def table_sets(self) -> tuple[TableSet, ...]:
        return make_table_sets(self.schedule.tables, self.sweep)

    @property
    def table_size(self) -> int:
        """Numbers of one row's tables."""
        return max((s.offset + s.size for s in self.table_sets), default=0)

    @property
    def channel_sums(self) -> tuple[str, ...]:
        """Opened slots that are sums over channels."""
        return tuple(o for o in self.schedule.scalar_operands if o in self.opened)

    @cached_property
    def lane_sum_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """(operand, start, size) of each sum over a warp's lanes; at most 32 numbers."""
        ranges = (
            (o, *place) for o in self.channel_sums if self.has_one_lane_sum_per_warp for place in self.sum_ranges(o)
        )
        return tuple((o, n, min(LANES, at + size - n)) for o, at, size in ranges for n in range(at, at + size, LANES))

    def sum_ranges(self, operand: str) -> list[tuple[int, int]]:
        """(start, size) of a slot's parts that are sums over channels."""
        return self.tabulated_ranges(operand) if self.schedule.views_of(operand) else [(0, self.dim[operand])]

    def __str__(self) -> str:
        lines = self.header_lines
        for n, units in enumerate(self.work):
            lines.append(f"  warp {n}: " + ", ".join(f"group {u.work.number}.{u.chunk} rows {u.rows}" for u in units))
        for group in self.groups:
            paths = ", ".join(str(p.term.path) for p in group.paths)
            lines.append(f"  group {group.number}: paths {paths}; {group.channels} channels, {group.width} lanes a row")
        return "\n".join(lines)


def has_copy_axis(view: SegmentView) -> bool:
    """Whether a segment has copies of the other input."""
    return prod(n for _, n in view.axes) > view.components
