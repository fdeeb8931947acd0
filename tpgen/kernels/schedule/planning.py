"""From a form to its schedule: which one fits, and everything in it filled in."""

from __future__ import annotations

from math import comb, prod

from tpgen.errors import EmitError
from tpgen.form.form import Form, Term
from tpgen.kernels.schedule.values import (
    INDEX,
    SLOTS,
    BatchSchedule,
    BatchTerm,
    ChannelSchedule,
    ChannelTerm,
    Entry,
    Schedule,
    Segment,
    Table,
    Target,
    View,
)
from tpgen.planner.modes import MODES, Mode

# The letter that vectors run over, by mode; ``uvuv`` takes the longer of its two.
CHANNEL_LETTER = {"uvu": "u", "uvv": "v", "uuu": "u", "uvuv": "uv"}
# Above this many non-zeros the text of a kernel would take minutes to compile.
MAX_ENTRIES = 20_000
MAX_PAIRS = 2**18  # of copies, listed as numbers in the text


def plan_schedule(form: Form, target: Target) -> Schedule:
    """Choose and fill in a schedule for every direction of a form.

    Channels where every path has them and they fill at least half a vector, rows otherwise.
    Raises `EmitError` where the text would be too long.
    """
    terms = [t for t in form.terms if t.coefficient != 0.0]
    nonzeros = sum(len(_entries(t)) for t in terms)
    if nonzeros > MAX_ENTRIES:
        raise EmitError(
            f"a kernel holds up to {MAX_ENTRIES} coupling entries, this product has {nonzeros}: use strategy='grouped'"
        )
    pairs = sum(comb(t.pairs, 2) for t in terms)
    if pairs > MAX_PAIRS:
        raise EmitError(
            f"a kernel lists up to {MAX_PAIRS} pairs of copies, this product has {pairs}: use strategy='einsum'"
        )
    return _channel_schedule(form, terms, target) or _batch_schedule(form, terms, target)


def _entries(term: Term) -> tuple[Entry, ...]:
    c = term.coupling.array()
    return tuple(
        Entry(int(i), int(j), int(k), float(c[i, j, k]) * term.coefficient)
        for i, j, k in zip(*c.nonzero(), strict=True)
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


def _views(
    form: Form, terms: list[Term], letters: list[str], touches: dict, lanes: int
) -> dict[tuple[str, int], View] | None:
    """One view per vectorised segment; None where two paths see a segment in different ways."""
    views: dict[tuple[str, int], View] = {}
    roles: dict[tuple[str, int], tuple[int, int, int] | None] = {}
    offsets = dict.fromkeys(SLOTS, 0)
    for term, channel in zip(terms, letters, strict=True):
        sizes = dict(term.sizes)
        for leg in term.legs:
            key = (leg.operand, leg.segment)
            before, found, after = leg.letters.partition(channel)
            role = (prod(sizes[a] for a in before), sizes[channel], prod(sizes[a] for a in after)) if found else None
            if roles.setdefault(key, role) != role:
                return None
            if role is None or key in views:
                continue
            view = View(
                leg.operand,
                form.operand(leg.operand).segments[leg.segment][0],
                tuple((a, sizes[a]) for a in before + after),
                after,
                role[0],
                role[1],
                role[2],
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
    mine = tuple(views[leg.operand, leg.segment] for leg in term.legs if channel in leg.letters)
    return ChannelTerm(term.path, _text(form, term), scalar, loop, mine, entries, table)


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
