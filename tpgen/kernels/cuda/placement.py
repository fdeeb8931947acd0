"""A channel schedule on blocks and warps: what stands where in shared memory, and which warp does what.

A block works on a few rows at a time, a *step*: it fetches them whole, computes, and writes the results away whole,
while the rows of a later step are on their way into another *stage*.  Results stand in the place of the operand of
their slot where that was fetched.  What rows or paths add to stands in an area of its own, in the numbers that are
computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tpgen.errors import EmitError
from tpgen.kernels.cuda.chips import KIB, Chip
from tpgen.kernels.cuda.groups import LANES, Group, Unit, balance, make_groups
from tpgen.kernels.cuda.tables import TableSet, table_sets
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.place import place
from tpgen.kernels.placement.values import ChannelSchedule, Target, View
from tpgen.kernels.sweep.terms import SLOTS

_SIXTEEN = 16  # bytes that copies come in
_SHORT = 512  # of a row: such a row may be copied number by number
_SMALL = 8 * KIB  # a step of less than that takes more rows
_ROWS = 32  # and at most so many
_WARPS = 4


def cuda_target(dtype: str) -> Target:
    """The numbers of a device: a lane has one channel."""
    return Target(dtype, lanes=1, registers=255)


@dataclass(frozen=True)
class CudaPlacement(ChannelPlacement):
    """A `ChannelPlacement` of single lanes on a chip; an indexed one finds the rows of x1 and out by its edges."""

    chip: Chip
    indexed: bool = False

    # -- rows --

    @cached_property
    def row_operands(self) -> tuple[str, ...]:
        """Given operands that are fetched row by row."""
        return tuple(o for o in self.given if self.dim[o] and not self.shared_weights(o))

    def shared_weights(self, operand: str) -> bool:
        return operand == "w" and self.schedule.shared_weights

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Open slots that are written row by row."""
        return tuple(o for o in self.opened if not self.carried(o) and self.dim[o])

    @cached_property
    def rows(self) -> int:
        """Rows of a step."""
        if self.indexed:
            return next((r for r in (4, 2) if self._bytes(2 * r) <= self.chip.block_shared // 3), 1)
        large = [o for o in self._moved if self.row_bytes(o) > _SHORT]
        whole = next((r for r in (1, 2, 4, 8) if all(self._sixteens(o, r) for o in large)), 1)
        if self._bytes(whole) > self.chip.block_shared // 2:
            return 1
        while whole < _ROWS and self._bytes(2 * whole) <= _SMALL:
            whole *= 2
        return whole

    @property
    def _moved(self) -> tuple[str, ...]:
        return tuple(o for o in SLOTS if o in self.row_operands or o in self.results)

    def _bytes(self, rows: int) -> int:
        return sum(self.row_bytes(o) for o in self._moved) * rows

    def row_bytes(self, operand: str) -> int:
        return self.dim[operand] * self.schedule.target.itemsize

    def _sixteens(self, operand: str, rows: int) -> bool:
        return self.row_bytes(operand) * rows % _SIXTEEN == 0

    def whole(self, operand: str) -> bool:
        """Whether the rows of a step, or each of them on edges, fill multiples of 16 bytes: they are copied whole."""
        return self._sixteens(operand, 1 if self.indexed else self.rows)

    @property
    def serial(self) -> bool:
        """Whether a warp takes all rows of a step, one after the other, because they add to the same numbers."""
        return self.sums_weights or self.owner is not None

    # -- what adds and what stores --

    def added(self, operand: str) -> bool:
        """Whether an open slot has an area of its own, to add to: rows meet in it, or paths in a loop over copies."""
        return self.carried(operand) or any(v.touches > 1 and looped(v) for v in self.schedule.views_of(operand))

    # -- work --

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return make_groups(self.schedule, self.sweep.paths, 1 if self.serial else self.rows)

    @property
    def slots(self) -> int:
        """Parts that the sum over channels has for each row: 32 channels of a group each."""
        return sum(group.chunks for group in self.groups)

    def sets(self, group: Group) -> int:
        """Sets of rows that warps take."""
        return self.rows // group.rows

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        return tuple(
            Unit(group, chunk, rows)
            for group in self.groups
            for chunk in range(group.chunks)
            for rows in range(1 if self.serial else self.sets(group))
        )

    @cached_property
    def work(self) -> tuple[tuple[Unit, ...], ...]:
        return balance(self.units, self.warps)

    @property
    def warps(self) -> int:
        return next((w for w in (1, 2) if len(self.units) <= w), _WARPS)

    @property
    def threads(self) -> int:
        return self.warps * LANES

    # -- tables and sums over channels --

    @cached_property
    def table_sets(self) -> tuple[TableSet, ...]:
        return table_sets(self.schedule.tables, self.sweep.tables)

    @property
    def table_size(self) -> int:
        """Numbers of all tables of one row."""
        return max((s.offset + s.size for s in self.table_sets), default=0)

    @property
    def summed(self) -> tuple[str, ...]:
        """Open slots that are sums over channels."""
        return tuple(o for o in self.schedule.scalar_operands if o in self.opened)

    def sum_ranges(self, operand: str) -> list[tuple[int, int]]:
        """Start and size of what of such a slot is summed: all of it, where it has no channels."""
        return self.scalars(operand) if self.schedule.views_of(operand) else [(0, self.dim[operand])]

    # -- shared memory --

    @cached_property
    def stage(self) -> dict[str, int]:
        """Where the rows of each fetched operand stand in a stage, in bytes."""
        return _stacked({o: self.row_bytes(o) * self.rows for o in self.row_operands})

    @property
    def stage_bytes(self) -> int:
        return _end({o: self.row_bytes(o) * self.rows for o in self.row_operands})

    @cached_property
    def _areas(self) -> dict[str, int]:
        """Bytes of what stands once in a block."""
        number = 8 if self.schedule.target.dtype == "float64" else 4
        areas = {"T": self.table_size * self.rows * number}
        areas |= {f"p_{o}": self.slots * self.dim[o] * self.rows * number for o in self.summed}
        for o in self.opened:
            if self.added(o) and not self.shared_weights(o):
                areas[f"d_{o}"] = self.dim[o] * (1 if self.carried(o) else self.rows) * number
            elif o in self.results and o not in self.row_operands:
                areas[f"d_{o}"] = self.row_bytes(o) * self.rows
        return {name: size for name, size in areas.items() if size}

    @cached_property
    def areas(self) -> dict[str, int]:
        """Where each of those stands, behind the stages' barriers."""
        return _stacked(self._areas, 8 * self.stage_count)

    @property
    def _once(self) -> int:
        return _end(self._areas, 64)

    @cached_property
    def stage_count(self) -> int:
        """Two where they fit."""
        return 2 if self._once + 2 * self.stage_bytes <= self.chip.block_shared else 1

    @property
    def stages_at(self) -> int:
        """Where the first stage begins, in bytes."""
        return _up(_end(self._areas, 8 * self.stage_count), 128)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages_at + self.stage_count * _up(self.stage_bytes, 128)

    @property
    def blocks_at_once(self) -> int:
        """Blocks of one multiprocessor, as far as shared memory decides; a block leaves 1 KiB to the system."""
        return max(1, min(self.chip.shared // (self.shared + KIB), 64 // self.warps, 32))

    def __str__(self) -> str:
        owned = f", summed by the owner of {self.owner}" if self.owner else ""
        lines = [
            f"cuda placement: opens {', '.join(self.opened)}{owned}; {self.schedule.target.dtype}, {self.chip}",
            f"  a step is {self.rows} row{'s' * (self.rows > 1)}: {len(self.units)} units on {self.warps} warps",
            f"  shared memory: {self.shared} bytes, {self.stage_count} stages of {self.stage_bytes}",
        ]
        for n, units in enumerate(self.work):
            lines.append(f"  warp {n}: " + ", ".join(f"group {u.group.number}.{u.chunk} rows {u.rows}" for u in units))
        for group in self.groups:
            paths = ", ".join(str(p.term.path) for p in group.paths)
            lines.append(f"  group {group.number}: paths {paths}; {group.channels} channels, {group.width} lanes a row")
        return "\n".join(lines)


def looped(view: View) -> bool:
    """Whether a segment has copies of the other input as well."""
    return prod(n for _, n in view.axes) > view.components


def check_room(placement: CudaPlacement) -> None:
    """Raise `EmitError` where a row does not fit a block's shared memory."""
    if placement.shared > placement.chip.block_shared:
        raise EmitError(
            f"a row of this product needs {placement.shared} bytes of shared memory, and a block of {placement.chip} "
            f"has {placement.chip.block_shared}: use strategy='grouped'"
        )


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _stacked(sizes: dict[str, int], start: int = 0) -> dict[str, int]:
    """Where areas begin that stand behind each other, each on a multiple of 32 bytes."""
    places, at = {}, _up(start, 32)
    for name, size in sizes.items():
        places[name], at = at, at + _up(size, 32)
    return places


def _end(sizes: dict[str, int], start: int = 0) -> int:
    return _up(start, 32) + sum(_up(size, 32) for size in sizes.values())


def place_cuda(schedule: ChannelSchedule, opened: tuple[str, ...], chip: Chip, indexed: bool = False) -> CudaPlacement:
    """Where a kernel that opens some slots, given in any order, keeps what it works on.

    Raises `EmitError` where it has no room, and as `place` does.
    """
    base = place(schedule, opened, indexed)
    assert isinstance(base, ChannelPlacement)
    placement = CudaPlacement(schedule, base.opened, base.owner, chip, indexed)
    check_room(placement)
    return placement
