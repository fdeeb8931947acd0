"""What a kernel loops over, vectorises, tabulates and keeps in scratch: a value, before any text.

Two schedules cover every form:

- *channel*: vectors run over the copies of one segment (``u`` of ``uvu``), rows one after the other.  The other
  input, if it is not vectorised as well, is tabulated once per row: ``T[a, k] = alpha * sum_b C[a, b, k] * x[b]``.
- *batch*: vectors run over rows.  Mixing modes (``uvw`` and its kin) become small matrix products of whole tiles.

Another target reads the same values; nothing here knows C++.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tpgen.planner.modes import Mode

SLOTS = ("x1", "x2", "w", "out")
INDEX = {"x1": "i", "x2": "j", "out": "k"}  # the letter of each operand's irrep axis


@dataclass(frozen=True)
class Target:
    """What the machine and the numbers are: ``storage`` in memory, ``compute`` in registers."""

    dtype: str  # float32, float64, bfloat16
    lanes: int  # numbers in a vector
    registers: int  # vector registers

    @property
    def itemsize(self) -> int:
        return {"float32": 4, "float64": 8, "bfloat16": 2}[self.dtype]


@dataclass(frozen=True)
class Entry:
    """One non-zero of a coupling, the path's coefficient multiplied in."""

    i: int
    j: int
    k: int
    value: float

    def at(self, letter: str) -> int:
        return int(getattr(self, letter))


@dataclass(frozen=True)
class View:
    """A segment seen as ``[outer][channels][inner]`` in memory and ``[outer][inner][padded channels]`` in scratch."""

    operand: str
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
    def staged(self) -> bool:
        """Whether the segment goes through scratch: touched more than once, or not in whole vectors."""
        a_tile = self.inner == 1 or self.behind == INDEX.get(self.operand)
        return self.touches > 1 or self.channels % self.lanes != 0 or not a_tile

    def stride(self, letter: str) -> int:
        """Distance in scratch between neighbours along an axis."""
        sizes = [n for _, n in self.axes]
        position = [a for a, _ in self.axes].index(letter)
        return prod(sizes[position + 1 :]) * self.padded

    @property
    def size(self) -> int:
        return self.outer * self.inner * self.padded


@dataclass(frozen=True)
class Table:
    """Sums of one coupling with one scalar segment: entry (a, k) for every copy ``v``."""

    operand: str  # x1 or x2
    start: int
    copies: int
    copy_stride: int
    index_stride: int
    vector_letter: str  # i or j
    entries: tuple[Entry, ...]
    offset: int  # in table entries

    @property
    def scalar_letter(self) -> str:
        return INDEX[self.operand]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The (a, k) that are not always zero, in order."""
        return tuple(sorted({(e.at(self.vector_letter), e.k) for e in self.entries}))

    @property
    def size(self) -> int:
        return self.copies * len(self.pairs)


@dataclass(frozen=True)
class ChannelTerm:
    """One path: a loop over scalar copies, inside it a loop over channels."""

    path: int
    text: str
    scalar: str | None  # the operand that is tabulated, or none (``uuu``)
    loop: tuple[str, int]  # letter and size of the scalar copies
    views: tuple[View, ...]
    entries: tuple[Entry, ...]
    table: int | None

    def view(self, operand: str) -> View | None:
        return next((v for v in self.views if v.operand == operand), None)


@dataclass(frozen=True)
class ChannelSchedule:
    """Vectors over channels."""

    target: Target
    dims: tuple[int, int, int, int]
    shared_weights: bool
    terms: tuple[ChannelTerm, ...]
    tables: tuple[Table, ...]
    name: str = "channel"

    @property
    def views(self) -> tuple[View, ...]:
        """Every vectorised segment once."""
        return tuple(dict.fromkeys(v for t in self.terms for v in t.views))

    def scratch_size(self, operand: str) -> int:
        return max((v.scratch + v.size for v in self.views if v.operand == operand), default=0)

    @property
    def scalar_operands(self) -> tuple[str, ...]:
        return tuple(s for s in ("x1", "x2") if any(t.scalar == s for t in self.terms))

    def __str__(self) -> str:
        lines = [f"channel schedule: {self.target.lanes} lanes of {self.target.dtype}, {len(self.tables)} tables"]
        for t in self.terms:
            views = ", ".join(f"{v.operand}[{v.channels}]{' staged' if v.staged else ''}" for v in t.views)
            lines.append(f"  path {t.path}: {t.text}; {views}; {len(t.entries)} non-zeros")
        return "\n".join(lines)


@dataclass(frozen=True)
class BatchTerm:
    """One path with its copies as loops; operands stand in scratch as ``[copy][irrep axis][rows]``."""

    path: int
    text: str
    mode: Mode
    sizes: tuple[tuple[str, int], ...]
    starts: tuple[tuple[str, int], ...]  # start of the segment (of the weights) in each operand
    degrees: tuple[int, int, int]
    entries: tuple[Entry, ...]
    weighted: bool
    pairs: int

    def size(self, letters: str) -> int:
        sizes = dict(self.sizes)
        return prod(sizes[a] for a in letters)

    def start(self, operand: str) -> int:
        return dict(self.starts)[operand]

    @property
    def mixing(self) -> bool:
        """Whether a sum over the input copies is a matrix product with the weights."""
        return bool(self.mode.mixing)

    @property
    def inputs(self) -> str:
        """Input letters, the rows of the weight matrix."""
        return "".join(dict.fromkeys(self.mode.in1 + self.mode.in2))


@dataclass(frozen=True)
class Segment:
    """A segment in memory order: ``mul_ir`` or not, so that scratch can always hold ``[copy][irrep axis]``."""

    start: int
    mul: int
    dim: int
    mul_first: bool


@dataclass(frozen=True)
class BatchSchedule:
    """Vectors over rows, ``rows`` of them in a tile."""

    target: Target
    dims: tuple[int, int, int, int]
    shared_weights: bool
    terms: tuple[BatchTerm, ...]
    segments: tuple[tuple[str, tuple[Segment, ...]], ...]
    rows: int
    name: str = "batch"

    def __str__(self) -> str:
        lines = [f"batch schedule: tiles of {self.rows} rows, {self.target.lanes} lanes of {self.target.dtype}"]
        for t in self.terms:
            lines.append(
                f"  path {t.path}: {t.text}; {'matrix products, ' if t.mixing else ''}{len(t.entries)} non-zeros"
            )
        return "\n".join(lines)


Schedule = ChannelSchedule | BatchSchedule
