"""What a kernel loops over, vectorises, tabulates and keeps in scratch: a value, before any text.

Two schedules cover every form:

- *channel*: vectors run over the copies of one segment (``u`` of ``uvu``), rows one after the other.  The other input, if
  it is not vectorised as well, is tabulated once per row: ``T[a, k] = alpha * sum_b C[a, b, k] * x[b]``.
- *batch*: vectors run over rows.  Mixing modes (``uvw`` and its kin) become small matrix products of whole tiles.

Another target reads the same values; nothing here knows C++.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tpgen.errors import EmitError
from tpgen.form.form import Form, Leg, Term
from tpgen.planner.modes import MODES, Mode

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
            lines.append(f"  path {t.path}: {t.text}; {'matrix products, ' if t.mixing else ''}{len(t.entries)} non-zeros")
        return "\n".join(lines)


Schedule = ChannelSchedule | BatchSchedule

# The letter that vectors run over, by mode; ``uvuv`` takes the longer of its two.
CHANNEL_LETTER = {"uvu": "u", "uvv": "v", "uuu": "u", "uvuv": "uv"}
# Above this many non-zeros the text of a kernel would take minutes to compile.
MAX_ENTRIES = 20_000


def plan_schedule(form: Form, target: Target) -> Schedule:
    """Choose and fill in a schedule for every direction of a form.

    Channels where every path has them and they fill at least half a vector, rows otherwise.
    Raises `EmitError` where the text would be too long.
    """
    terms = [t for t in form.terms if t.coefficient != 0.0]
    nonzeros = sum(len(_entries(t)) for t in terms)
    if nonzeros > MAX_ENTRIES:
        raise EmitError(f"a kernel holds up to {MAX_ENTRIES} coupling entries, this product has {nonzeros}: use strategy='grouped'")
    return _channel_schedule(form, terms, target) or _batch_schedule(form, terms, target)


def _entries(term: Term) -> tuple[Entry, ...]:
    c = term.coupling.array()
    return tuple(
        Entry(int(i), int(j), int(k), float(c[i, j, k]) * term.coefficient) for i, j, k in zip(*c.nonzero(), strict=True)
    )


def mode_of(term: Term) -> Mode:
    """The mode that wrote a term, read off its letters."""
    letters = {leg.operand: "".join(a for a in leg.letters if a not in "ijk") for leg in term.legs}
    if term.pairs:
        return MODES["uvu<v" if letters["out"] == "p" else "u<vw"]
    key = (letters["x1"], letters["x2"], letters["out"])
    return next(m for m in MODES.values() if (m.in1, m.in2, m.out) == key)


def _text(form: Form, term: Term) -> str:
    parts = []
    for leg in term.legs:
        if leg.operand != "w":
            parts.append(form.operand(leg.operand).text.split("+")[leg.segment].strip())
    return f"{parts[0]} x {parts[1]} -> {parts[2]} ({mode_of(term).name})"


def _dims(form: Form) -> tuple[int, int, int, int]:
    d1, d2, dw, dout = (form.operand(name).dim for name in SLOTS)
    return d1, d2, dw, dout


# -- channel ---------------------------------------------------------------------------------------------------------


def _channel_schedule(form: Form, terms: list[Term], target: Target) -> ChannelSchedule | None:
    """The channel schedule, or None where it does not fit: see `plan_schedule`."""
    if not terms or any(mode_of(t).name not in CHANNEL_LETTER for t in terms):
        return None
    letters = [_channel_letter(t, terms) for t in terms]
    widest = max(dict(t.sizes)[a] for t, a in zip(terms, letters, strict=True))
    if 2 * widest < target.lanes:
        return None
    touches = _count_touches(terms, letters)
    views = _views(form, terms, letters, touches, target.lanes)
    if views is None:
        return None
    tables: dict[tuple, Table] = {}
    made = [_channel_term(form, t, a, views, tables) for t, a in zip(terms, letters, strict=True)]
    return ChannelSchedule(target, _dims(form), not form.operand("w").row, tuple(made), tuple(tables.values()))


def _channel_letter(term: Term, terms: list[Term]) -> str:
    letters = CHANNEL_LETTER[mode_of(term).name]
    if len(letters) == 1:
        return letters
    # one choice for the whole form, so that an input is either vectorised or tabulated
    full = [dict(t.sizes) for t in terms if mode_of(t).name == "uvuv"]
    return max(letters, key=lambda a: (min(sizes[a] for sizes in full), a == "u"))


def _scalar_operand(term: Term, channel: str) -> str | None:
    scalar = [leg.operand for leg in term.legs if leg.operand in ("x1", "x2") and channel not in leg.letters]
    return scalar[0] if scalar else None


def _count_touches(terms: list[Term], letters: list[str]) -> dict[tuple[str, int], int]:
    touches: dict[tuple[str, int], int] = {}
    for term, channel in zip(terms, letters, strict=True):
        loop = prod(n for a, n in term.sizes if a not in "ijk" and a != channel)
        for leg in term.legs:
            if channel in leg.letters:
                shared = prod(n for a, n in term.sizes if a not in "ijk" and a != channel and a in leg.letters)
                key = (leg.operand, leg.segment)
                touches[key] = touches.get(key, 0) + loop // max(shared, 1)
    return touches


def _views(form: Form, terms: list[Term], letters: list[str], touches: dict, lanes: int) -> dict[tuple[str, int], View] | None:
    """One view per vectorised segment; None where two paths see a segment in different ways."""
    views: dict[tuple[str, int], View] = {}
    roles: dict[tuple[str, int], tuple] = {}
    offsets = dict.fromkeys(SLOTS, 0)
    for term, channel in zip(terms, letters, strict=True):
        sizes = dict(term.sizes)
        for leg in term.legs:
            key = (leg.operand, leg.segment)
            before, found, after = leg.letters.partition(channel)
            role = (prod(sizes[a] for a in before), sizes[channel], prod(sizes[a] for a in after)) if found else ()
            if roles.setdefault(key, role) != role:
                return None
            if not found or key in views:
                continue
            view = View(
                leg.operand,
                form.operand(leg.operand).segments[leg.segment][0],
                tuple((a, sizes[a]) for a in before + after),
                after,
                *role,
                lanes,
                offsets[leg.operand],
                touches[key],
            )
            offsets[leg.operand] += view.size
            views[key] = view
    return views


def _channel_term(form: Form, term: Term, channel: str, views: dict, tables: dict[tuple, Table]) -> ChannelTerm:
    sizes = dict(term.sizes)
    scalar = _scalar_operand(term, channel)
    entries = _entries(term)
    loop = next(((a, n) for a, n in term.sizes if a not in "ijk" and a != channel), ("", 1))
    table = None
    if scalar is not None:
        leg = term.leg(scalar)
        assert leg is not None
        copy_stride, index_stride = (sizes[INDEX[scalar]], 1) if leg.letters[0] == loop[0] else (1, loop[1])
        start = form.operand(scalar).segments[leg.segment][0]
        key = (scalar, start, entries)
        if key not in tables:
            offset = sum(t.size for t in tables.values())
            vector_letter = "j" if scalar == "x1" else "i"
            tables[key] = Table(scalar, start, loop[1], copy_stride, index_stride, vector_letter, entries, offset)
        table = list(tables).index(key)
    mine = tuple(_renamed(views[leg.operand, leg.segment], leg, channel) for leg in term.legs if channel in leg.letters)
    return ChannelTerm(term.path, _text(form, term), scalar, loop, mine, entries, table)


def _renamed(view: View, leg: Leg, channel: str) -> View:
    """Views are shared by segment, and letters agree: an operand's irrep axis always has the same letter."""
    assert "".join(a for a, _ in view.axes) == leg.letters.replace(channel, "")
    return view


# -- batch -----------------------------------------------------------------------------------------------------------


def _batch_schedule(form: Form, terms: list[Term], target: Target) -> BatchSchedule:
    made = tuple(_batch_term(form, t) for t in terms)
    segments = tuple((name, _segments(form, terms, name)) for name in ("x1", "x2", "out"))
    shared = not form.operand("w").row
    largest = max((t.size(t.mode.weight) for t in made if t.mixing), default=0)
    rows = target.lanes * (4 if shared and largest >= 256 else 1)
    return BatchSchedule(target, _dims(form), shared, made, segments, rows)


def _batch_term(form: Form, term: Term) -> BatchTerm:
    starts = tuple((leg.operand, form.operand(leg.operand).segments[leg.segment][0]) for leg in term.legs)
    return BatchTerm(
        term.path,
        _text(form, term),
        mode_of(term),
        term.sizes,
        starts,
        (term.coupling.l1, term.coupling.l2, term.coupling.l3),
        _entries(term),
        term.leg("w") is not None,
        term.pairs,
    )


def _segments(form: Form, terms: list[Term], operand: str) -> tuple[Segment, ...]:
    """The segments that some path touches."""
    found: dict[int, Segment] = {}
    for term in terms:
        leg = term.leg(operand)
        assert leg is not None
        start, stop = form.operand(operand).segments[leg.segment]
        dim = dict(term.sizes)[INDEX[operand]]
        found[leg.segment] = Segment(start, (stop - start) // dim, dim, leg.letters[-1] == INDEX[operand])
    return tuple(found[s] for s in sorted(found))
