"""Layout of rows in a block's shared memory."""

# A *step* is some rows: a block fetches, computes and delivers whole rows, while later rows arrive in another *stage*.

from __future__ import annotations

from abc import abstractmethod

from tpgen.base.errors import EmitError
from tpgen.base.locks import cached_property
from tpgen.kernels.cuda.chips import KIB, LANES, KernelOnChip
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.kernels.placement.slots import PlacementBase
from tpgen.kernels.sweep.terms import SLOTS

SLOTS_AREA = "slots"  # of the edges of steps to come
SUMMERS = 16  # warps that share the parts of 32 weights, as sum.h has them: few threads have work where weights are few
CONSTANTS = 64 * KIB  # bytes of a kernel
_ENDS, _SLOTS = 24, 3  # bytes of an edge with what it joins, and steps of them, as edges.h has them
_SIXTEEN = 16  # bytes that copies come in
_SHORT = 512  # of a row: such a row may be copied number by number
_ROWS = 32  # of a step, at most
_BATCH = 2_000  # rows that are to reach every multiprocessor
_NUMBERS = 128  # that a thread has in registers, at least


class SharedMemoryPlacement(KernelOnChip, PlacementBase):
    """Base of placements of products: rows that a block computes together, laid out in shared memory."""

    held: str | None = None  # the given operand whose row stays, while edges of one node come
    rows: int  # of a step
    alignment = _SIXTEEN
    small = 8 * KIB  # bytes: a step of less than that takes more rows

    @property
    @abstractmethod
    def default_warps(self) -> int:
        """Default warps of a block."""

    @property
    @abstractmethod
    def units_per_step(self) -> int:
        """Units of work in a step, shared out to warps."""

    @abstractmethod
    def needs_accumulation_buffer(self, operand: str) -> bool:
        """Whether an opened slot accumulates in an area of its own."""

    @abstractmethod
    def may_overwrite_operand(self, operand: str) -> bool:
        """Whether a slot's results may overwrite its fetched operand."""

    @property
    @abstractmethod
    def intermediate_dims(self) -> dict[str, int]:
        """Numbers per row of intermediate results, by area."""

    @property
    def serial(self) -> bool:
        """Whether a warp runs a step's rows one by one."""
        return self.sums_weights or self.by is not None

    @property
    def by(self) -> str | None:
        """Operand whose nodes sort edges: the owner of sums, or the held operand."""
        return self.owner or self.held

    @property
    def dtype(self) -> str:
        return str(self.schedule.target.dtype)

    @property
    def registers(self) -> int:
        """Registers per thread."""
        return _NUMBERS * self.number // 4

    @property
    def block_sizes_by_kernel(self) -> dict[str, tuple[int, int]]:
        """Threads and shared bytes by kernel name."""
        found = {ENTRY: (self.threads, self.shared)}
        if self.sums_weights:
            found[SUM_ENTRY] = (LANES * SUMMERS, LANES * SUMMERS * self.number)
        if self.owner:
            found[JOIN_ENTRY] = (self.threads, 0)
        if self.scattered:
            found[COLLECT_ENTRY] = (self.threads, 0)
        return found

    # -- rows --

    @cached_property
    def row_operands(self) -> tuple[str, ...]:
        """Given operands fetched row by row."""
        return tuple(o for o in self.given if self.dim[o] and not self.has_shared_weights(o) and o != self.held)

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """Operands whose nodes sort edges."""
        return (*((self.by,) if self.by else ()), *self.scattered)

    def has_rows_of_nodes(self, operand: str) -> bool:
        """Whether edges index an operand's rows."""
        return self.indexed and operand in ("x1", "out")

    @property
    def scattered(self) -> tuple[str, ...]:
        """Results per edge that a second kernel adds per node."""
        return tuple(o for o in self.results if self.has_rows_of_nodes(o))

    def has_shared_weights(self, operand: str) -> bool:
        return operand == "w" and self.schedule.shared_weights

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Opened slots written row by row."""
        return tuple(o for o in self.opened if not self.is_summed_over_rows(o) and self.dim[o])

    @cached_property
    def default_rows(self) -> int:
        """Default rows that a block computes together."""
        if self.indexed:
            return next(
                (r for r in (4, 2) if self._count_shared_bytes_for_rows(2 * r) <= self.chip.block_shared // 3), 1
            )
        rows = self._min_rows_for_aligned_copies
        if self._count_shared_bytes_for_rows(rows) > self.chip.block_shared // 2:
            return 1
        while rows < _ROWS and self._count_shared_bytes_for_rows(2 * rows) <= self.small:
            rows *= 2
        return rows

    @property
    def row_choices(self) -> tuple[int, ...]:
        """Numbers of rows per step to try."""
        most = max(self.default_rows, _BATCH // self.chip.processors)
        return tuple(r for r in (1, 2, 4, 8, 16, _ROWS) if self._min_rows_for_aligned_copies <= r <= most)

    @property
    def _min_rows_for_aligned_copies(self) -> int:
        # 1 where no number of rows fills multiples of 16 bytes
        large = [] if self.indexed else [o for o in self._operands_copied_by_rows if self.row_bytes(o) > _SHORT]
        return next((r for r in (1, 2, 4, 8) if all(self._is_multiple_of_16_bytes(o, r) for o in large)), 1)

    @property
    def _operands_copied_by_rows(self) -> tuple[str, ...]:
        return tuple(o for o in SLOTS if o in self.row_operands or o in self.results)

    def _count_shared_bytes_for_rows(self, rows: int) -> int:
        return sum(self.row_bytes(o) for o in self._operands_copied_by_rows) * rows

    def row_bytes(self, operand: str) -> int:
        return self.dim[operand] * self.schedule.target.itemsize

    def _is_multiple_of_16_bytes(self, operand: str, rows: int) -> bool:
        return self.row_bytes(operand) * rows % _SIXTEEN == 0

    def copies_rows_whole(self, operand: str) -> bool:
        """Whether rows are multiples of 16 bytes, copied whole."""
        return self._is_multiple_of_16_bytes(operand, 1 if self.indexed else self.rows)

    @property
    def header_lines(self) -> list[str]:
        """First lines of the printed placement."""
        owned = f", summed by the owner of {self.owner}" if self.owner else ""
        owned += f", by the owner of {self.held}" if self.held else ""
        return [
            f"cuda placement: opens {', '.join(self.opened)}{owned}; {self.dtype}, {self.chip}",
            f"  a step is {self.rows} row{'s' * (self.rows > 1)}: {self.units_per_step} units on {self.warps} warps",
            f"  shared memory: {self.shared} bytes, {self.stage_count} stages of {self.stage_bytes}",
        ]

    # -- shared memory --

    @cached_property
    def stage(self) -> dict[str, int]:
        """Byte offset in a stage of each operand's rows."""
        return _aligned_area_offsets({o: self.row_bytes(o) * self.rows for o in self.row_operands})

    @property
    def stage_bytes(self) -> int:
        return _end_of_aligned_areas({o: self.row_bytes(o) * self.rows for o in self.row_operands})

    @cached_property
    def _shared_bytes_by_area(self) -> dict[str, int]:
        # bytes of what stands once in a block
        number = self.number
        areas = {SLOTS_AREA: _ENDS * _SLOTS * self.rows} if self.indexed else {}
        areas |= {self.held: self.row_bytes(self.held)} if self.held else {}
        areas |= {name: size * self.rows * number for name, size in self.intermediate_dims.items()}
        for o in self.opened:
            if self.needs_accumulation_buffer(o) and not self.has_shared_weights(o):
                areas[f"d_{o}"] = self.dim[o] * (1 if self.is_summed_over_rows(o) else self.rows) * number
            elif o in self.results and not self.may_overwrite_operand(o):
                areas[f"d_{o}"] = self.row_bytes(o) * self.rows
        return {name: size for name, size in areas.items() if size}

    @cached_property
    def areas(self) -> dict[str, int]:
        """Byte offset of each permanent area."""
        return _aligned_area_offsets(self._shared_bytes_by_area, 8 * (self.stage_count + 1))

    @cached_property
    def stage_count(self) -> int:
        """Buffers for fetched rows: two if both fit shared memory, else one."""
        return (
            2
            if _end_of_aligned_areas(self._shared_bytes_by_area, 64) + 2 * self.stage_bytes <= self.chip.block_shared
            else 1
        )

    @property
    def first_stage_offset(self) -> int:
        """Byte offset of the first stage."""
        return _round_up(_end_of_aligned_areas(self._shared_bytes_by_area, 8 * self.stage_count), 128)

    @property
    def shared(self) -> int:
        """Shared bytes of a block."""
        return self.first_stage_offset + self.stage_count * _round_up(self.stage_bytes, 128)

    @property
    def constants(self) -> int:
        """Bytes of constant memory."""
        return 0


def has_room(placement: SharedMemoryPlacement) -> bool:
    """Whether a placement fits its chip's memory."""
    return placement.shared <= placement.chip.block_shared and placement.constants <= CONSTANTS


def check_room(placement: SharedMemoryPlacement) -> None:
    """Raise `EmitError` for lack of shared or constant memory."""
    if placement.shared > placement.chip.block_shared:
        raise EmitError(
            f"a row of this product needs {placement.shared} bytes of shared memory, and a block of {placement.chip} "
            f"has {placement.chip.block_shared}: use strategy='grouped'"
        )
    if placement.constants > CONSTANTS:
        raise EmitError(
            f"a step of this product is {placement.units_per_step} parts, whose table takes {placement.constants} "
            f"bytes of constant memory, and a kernel has {CONSTANTS}: use strategy='grouped'"
        )


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _aligned_area_offsets(sizes: dict[str, int], start: int = 0) -> dict[str, int]:
    # each area begins at a multiple of 32 bytes
    places, at = {}, _round_up(start, 32)
    for name, size in sizes.items():
        places[name], at = at, at + _round_up(size, 32)
    return places


def _end_of_aligned_areas(sizes: dict[str, int], start: int = 0) -> int:
    return _round_up(start, 32) + sum(_round_up(size, 32) for size in sizes.values())
