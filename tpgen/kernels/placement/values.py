"""Schedules: layouts of a form for a target, for any open slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from tpgen.base.locks import cached_property
from tpgen.form.form import Form, Term
from tpgen.kernels.sweep.statements import TextOfPaths
from tpgen.kernels.sweep.tables import Table
from tpgen.kernels.sweep.terms import INDEX

_GRAIN = 16384  # numbers a block should touch at least: handing a block to a thread costs about as much as 200 of them
_SUMS = 2**24  # numbers in the blocks' parts of a sum over all rows: 64 MB
MOST_BLOCKS = 32  # where each has such a part
WORTH_THREADS = 65536  # numbers that a call touches


@dataclass(frozen=True)
class RowBlockSizes:
    """Sizes of blocks and tiles of rows that a CPU's threads take."""

    tile: int  # rows taken at a time
    touched: int  # numbers that one row touches
    part: int  # numbers summed over all rows

    @property
    def rows_of_block(self) -> int:
        return self.tile * max(1, _GRAIN // max(1, self.tile * self.touched))

    def __str__(self) -> str:
        if self.part:
            return f"rows in up to {min(MOST_BLOCKS, self.most_blocks)} blocks, tiles of {self.tile}"
        return f"blocks of {self.rows_of_block} rows, tiles of {self.tile}"

    @property
    def most_blocks(self) -> int:
        return max(1, _SUMS // max(1, self.part))


def areas_text(areas: dict[str, int]) -> str:
    """Format scratch areas and sizes.

    >>> areas_text({"s_x1": 64, "T": 16})
    's_x1[64], T[16], 80 numbers a thread'
    """
    return ", ".join([*(f"{name}[{size}]" for name, size in areas.items()), f"{sum(areas.values())} numbers a thread"])


@dataclass(frozen=True)
class Target:
    """A dtype on a machine: lanes and vector registers."""

    dtype: str  # float32, float64, bfloat16
    lanes: int  # numbers in a vector
    registers: int  # vector registers

    @property
    def itemsize(self) -> int:
        return {"float32": 4, "float64": 8, "bfloat16": 2}[self.dtype]

    def round_up_to_whole_vectors(self, size: int) -> int:
        return -(-size // self.lanes) * self.lanes


@dataclass(frozen=True)
class SegmentView:
    """Layout of a segment: ``[outer][channels][inner]`` in memory, ``[outer][inner][padded channels]`` in scratch."""

    operand: str
    segment: int
    start: int
    axes: tuple[tuple[str, int], ...]  # the axes that are not channels, in memory order
    behind: str  # those of them that stand behind the channels
    outer: int
    channels: int
    inner: int
    lanes: int
    scratch: int  # offset in the operand's scratch
    touches: int  # how often one row reads or writes the segment

    @property
    def padded(self) -> int:
        return -(-self.channels // self.lanes) * self.lanes

    @property
    def is_staged(self) -> bool:
        """Whether the segment is copied into scratch."""
        a_tile = self.inner == 1 or self.behind == INDEX.get(self.operand)
        return self.touches > 1 or self.channels % self.lanes != 0 or not a_tile

    @property
    def components(self) -> int:
        """Components of the irrep."""
        return dict(self.axes).get(INDEX.get(self.operand, ""), 1)

    def scratch_strides(self) -> dict[str, int]:
        """Distance of neighbours along each axis, in scratch."""
        sizes = [n for _, n in self.axes]
        return {a: prod(sizes[n + 1 :]) * self.padded for n, (a, _) in enumerate(self.axes)}

    def memory_strides(self) -> dict[str, int]:
        """Distance of neighbours along each axis, in memory."""
        outer = [(a, n) for a, n in self.axes if a not in self.behind]
        block = self.channels * self.inner
        return {a: prod(n for _, n in outer[m + 1 :]) * block for m, (a, _) in enumerate(outer)}

    @property
    def size(self) -> int:
        return self.outer * self.inner * self.padded


@dataclass(frozen=True)
class PlacedTable:
    """A coupling table and its source in memory; entry n of copy v is at ``offset + v * entries + n``."""

    table: Table
    start: int
    copies: int
    copy_stride: int
    index_stride: int
    offset: int  # in table entries

    @property
    def operand(self) -> str:
        return self.table.operand

    @property
    def entries(self) -> int:
        """Entries of one copy."""
        return len(self.table.places)

    @property
    def size(self) -> int:
        return self.copies * self.entries


@dataclass(frozen=True)
class ChannelSchedule(TextOfPaths):
    """Layout of a product's kernels with SIMD vectors over channels, row by row."""

    target: Target
    dims: tuple[int, int, int, int]
    shared_weights: bool
    terms: tuple[Term, ...]
    channels: tuple[str, ...]  # the letter that vectors run over, of each term
    views: tuple[SegmentView, ...]  # every vectorised segment
    tables: tuple[PlacedTable, ...]
    name: str = "channel"

    @cached_property
    def _view_of_segment(self) -> dict[tuple[str, int], SegmentView]:
        return {(v.operand, v.segment): v for v in self.views}

    def view(self, term: Term, operand: str) -> SegmentView | None:
        """Segment of an operand that a path vectorises, or None."""
        leg = term.leg(operand)
        return self._view_of_segment.get((operand, leg.segment)) if leg else None

    @cached_property
    def _channel_of_path(self) -> dict[int, str]:
        return {term.path: letter for term, letter in zip(self.terms, self.channels, strict=True)}

    @cached_property
    def _table_of_path(self) -> dict[int, PlacedTable]:
        return {path: placed for placed in self.tables for path in placed.table.paths}

    def channel(self, term: Term) -> str:
        """Letter that a path's vectors run over."""
        return self._channel_of_path[term.path]

    def table(self, term: Term) -> PlacedTable | None:
        return self._table_of_path.get(term.path)

    def copy_loop(self, term: Term) -> tuple[str, int]:
        """Letter and size of the loop around the channels."""
        return next(((a, n) for a, n in term.copies if a != self.channel(term)), ("", 1))

    def count_padded_channels(self, term: Term) -> int:
        return self.target.round_up_to_whole_vectors(term.size(self.channel(term)))

    def path_numbers_of_segment(self, operand: str, segment_start: int) -> tuple[int, ...]:
        found = [t.path for t in self.terms if (v := self.view(t, operand)) and v.start == segment_start]
        tables = (p.table for p in self.tables if (p.operand, p.start) == (operand, segment_start))
        return tuple(sorted({*found, *(path for table in tables for path in table.paths)}))

    def views_of(self, operand: str) -> list[SegmentView]:
        return [v for v in self.views if v.operand == operand]

    def scratch_size(self, operand: str) -> int:
        return max((v.scratch + v.size for v in self.views_of(operand)), default=0)

    @property
    def scalar_operands(self) -> tuple[str, ...]:
        """Tabulated inputs."""
        return tuple(s for s in ("x1", "x2") if any(t.operand == s for t in self.tables))

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        yield f"channel schedule: {self.target.lanes} lanes of {self.target.dtype}, {len(self.tables)} tables", ()
        for t in self.terms:
            seen = [v for leg in t.legs if (v := self.view(t, leg.operand))]
            views = ", ".join(f"{v.operand}[{v.channels}]{' staged' if v.is_staged else ''}" for v in seen)
            yield f"  path {t.path}: {t.text}; {views}; {len(t.entries)} non-zeros", (t.path,)


@dataclass(frozen=True)
class ScratchSegment:
    """A segment in memory: start, copies, components and axis order."""

    start: int
    mul: int
    dim: int
    mul_first: bool  # whether memory is [copies][components]


def touched_segments(form: Form, terms: Iterable[Term], operand: str) -> dict[int, ScratchSegment]:
    """Segments of an operand that paths use, by segment number."""
    found: dict[int, ScratchSegment] = {}
    for term in terms:
        if leg := term.leg(operand):
            start, stop = form.operand(operand).segments[leg.segment]
            dim = term.size(INDEX[operand])
            found[leg.segment] = ScratchSegment(start, (stop - start) // dim, dim, leg.letters[-1] == INDEX[operand])
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class BatchSchedule(TextOfPaths):
    """Layout of a product's kernels with SIMD vectors over rows; scratch is ``[copy][irrep axis][rows]``."""

    target: Target
    dims: tuple[int, int, int, int]
    shared_weights: bool
    terms: tuple[Term, ...]
    starts: tuple[tuple[tuple[str, int], int], ...]  # of each segment of each operand
    segments: tuple[tuple[str, tuple[ScratchSegment, ...]], ...]  # those that some path touches
    rows: int
    name: str = "batch"

    @cached_property
    def _start_of_segment(self) -> dict[tuple[str, int], int]:
        return dict(self.starts)

    def segment_start(self, term: Term, operand: str) -> int:
        return self._start_of_segment[operand, term.segment(operand)]

    def path_numbers_of_segment(self, operand: str, segment_start: int) -> tuple[int, ...]:
        return tuple(t.path for t in self.terms if t.leg(operand) and self.segment_start(t, operand) == segment_start)

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        yield f"batch schedule: tiles of {self.rows} rows, {self.target.lanes} lanes of {self.target.dtype}", ()
        for t in self.terms:
            products = "matrix products, " if t.mode.mixing else ""
            yield f"  path {t.path}: {t.text}; {products}{len(t.entries)} non-zeros", (t.path,)


Schedule = ChannelSchedule | BatchSchedule
