"""The schedule of a form."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import comb, prod

from tpgen.base.errors import EmitError, unknown
from tpgen.base.remember import remembered
from tpgen.form.form import Form, Term
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement, MatrixSchedule, is_linear, make_matrix_schedule
from tpgen.kernels.placement.nodes import NodePlacement, takes_sums_of_nodes
from tpgen.kernels.placement.values import (
    BatchSchedule,
    ChannelSchedule,
    PlacedTable,
    SegmentView,
    Target,
    touched_segments,
)
from tpgen.kernels.rows import EDGE_PAIRS, EDGES, RowRules, select_summed_operands
from tpgen.kernels.sweep.tables import Table, make_tables
from tpgen.kernels.sweep.terms import INDEX, SLOTS, path_terms, row_lengths

# The letter that vectors run over, by mode; ``uvuv`` takes the longer of its two.
CHANNEL_LETTER = {"uvu": "u", "uvv": "v", "uuu": "u", "uvuv": "uv"}
# Above this many non-zeros the text of a kernel would take minutes to compile.
MAX_ENTRIES = 20_000
MAX_PAIRS = 2**18  # of copies, listed as numbers in the text
_FILLED = 4  # channels that fill less of a vector than one part in so many give way to rows
_LARGE = 256  # weights of a path from which on a tile has four vectors of rows


@remembered("schedules of kernels", entries=64)
def plan_schedule(form: Form, target: Target) -> AnySchedule:
    """Choose one loop order for the kernels of a product and its gradients.

    Matrix products without a second input; vectors over channels if all paths have channels, and the most fill a
    quarter of a vector; else vectors over rows.
    Raises `EmitError` for too long kernels.
    """
    if is_linear(form) and target.lanes > 1:
        return make_matrix_schedule(form, target)
    terms = path_terms(form)
    nonzeros = sum(len(t.entries) for t in terms)
    if nonzeros > MAX_ENTRIES:
        raise EmitError(
            f"a kernel holds up to {MAX_ENTRIES} coupling entries, this product has {nonzeros}: use strategy='grouped'"
        )
    pairs = sum(comb(t.pairs, 2) for t in terms)
    if pairs > MAX_PAIRS:
        raise EmitError(
            f"a kernel lists up to {MAX_PAIRS} pairs of copies, this product has {pairs}: use strategy='einsum'"
        )
    return _make_channel_schedule_if_it_fits(form, terms, target) or _make_batch_schedule(form, terms, target)


def _make_channel_schedule_if_it_fits(form: Form, terms: tuple[Term, ...], target: Target) -> ChannelSchedule | None:
    # the channel schedule, or None where it does not fit: see `plan_schedule`
    if not terms or any(t.mode.name not in CHANNEL_LETTER for t in terms):
        return None
    channels = tuple(_choose_letter_to_vectorise(t, terms) for t in terms)
    widest = max(t.size(a) for t, a in zip(terms, channels, strict=True))
    if _FILLED * widest < target.lanes:  # measured: from there on, rows as vectors need twice as long
        return None
    views = _make_segment_views_unless_paths_disagree(form, terms, channels, target.lanes)
    if views is None:
        return None
    tables = _place_coupling_tables_end_to_end(form, make_tables(terms, channels))
    return ChannelSchedule(target, row_lengths(form), not form.operand("w").row, terms, channels, views, tables)


def _choose_letter_to_vectorise(term: Term, all_terms: tuple[Term, ...]) -> str:
    letters = CHANNEL_LETTER[term.mode.name]
    if len(letters) == 1:
        return letters
    # one choice for the whole form, so that an input is either vectorised or tabulated
    full = [dict(t.sizes) for t in all_terms if t.mode.name == "uvuv"]
    return max(letters, key=lambda a: (min(sizes[a] for sizes in full), a == "u"))


def _count_accesses_of_segments(terms: tuple[Term, ...], channel_letters: tuple[str, ...]) -> Counter[tuple[str, int]]:
    touches: Counter[tuple[str, int]] = Counter()
    for term, channel in zip(terms, channel_letters, strict=True):
        loop = [(a, n) for a, n in term.copies if a != channel]
        for leg in (leg for leg in term.legs if channel in leg.letters):
            others = max(prod(n for a, n in loop if a in leg.letters), 1)
            touches[leg.operand, leg.segment] += prod(n for a, n in loop) // others
    return touches


def _make_segment_views_unless_paths_disagree(
    form: Form, terms: tuple[Term, ...], channel_letters: tuple[str, ...], lanes: int
) -> tuple[SegmentView, ...] | None:
    # one view for each vectorised segment; None if two paths see a segment in different ways
    touches = _count_accesses_of_segments(terms, channel_letters)
    views: dict[tuple[str, int], SegmentView] = {}
    roles: dict[tuple[str, int], tuple[int, int, int] | None] = {}
    offsets = dict.fromkeys(SLOTS, 0)
    for term, channel in zip(terms, channel_letters, strict=True):
        for leg in term.legs:
            key = (leg.operand, leg.segment)
            before, along, after = leg.letters.partition(channel)
            # sizes before, along and behind the channels, where the segment has any
            role = (term.size(before), term.size(along), term.size(after)) if along else None
            if roles.setdefault(key, role) != role:
                return None
            if role is None or key in views:
                continue
            axes = tuple((a, term.size(a)) for a in before + after)
            start = form.operand(leg.operand).segments[leg.segment][0]
            view = SegmentView(*key, start, axes, after, *role, lanes, offsets[leg.operand], touches[key])
            offsets[leg.operand] += view.size
            views[key] = view
    return tuple(views.values())


def _place_coupling_tables_end_to_end(form: Form, tables: tuple[Table, ...]) -> tuple[PlacedTable, ...]:
    shapes = [_source_start_copies_and_strides_of_table(form, table) for table in tables]
    sizes = [copies * len(table.places) for table, (_, copies, *_) in zip(tables, shapes, strict=True)]
    offsets = accumulate([0, *sizes[:-1]])
    return tuple(PlacedTable(table, *shape, at) for table, shape, at in zip(tables, shapes, offsets, strict=False))


def _source_start_copies_and_strides_of_table(form: Form, table: Table) -> tuple[int, int, int, int]:
    # start of the tabulated segment, its copies, and the strides of copies and components
    term = table.terms[0]
    leg = term.leg(table.operand)
    assert leg is not None
    index = INDEX[table.operand]
    copies = term.size(leg.letters.replace(index, ""))
    strides = (term.size(index), 1) if leg.letters[0] != index else (1, copies)
    return form.operand(table.operand).segments[leg.segment][0], copies, *strides


def _make_batch_schedule(form: Form, terms: tuple[Term, ...], target: Target) -> BatchSchedule:
    starts = tuple(((o.name, n), start) for o in form.operands for n, (start, _) in enumerate(o.segments))
    segments = tuple((name, tuple(touched_segments(form, terms, name).values())) for name in ("x1", "x2", "out"))
    shared = not form.operand("w").row
    largest = max((t.size(t.mode.weight) for t in terms if t.mode.mixing), default=0)
    rows = target.lanes * (4 if shared and largest >= _LARGE else 1)
    return BatchSchedule(target, row_lengths(form), shared, terms, starts, segments, rows)


Placement = ChannelPlacement | BatchPlacement | MatrixPlacement | NodePlacement


def place(
    schedule: AnySchedule, opened: tuple[str, ...], rules: RowRules = (), raised: tuple[str, ...] = ()
) -> Placement:
    """Lay out a CPU kernel that computes the tensors ``opened``, of x1, x2, w, out.

    At most one may have an index.  Only channel kernels take cotangents of the gradients of ``raised``, or edge pairs
    that share weights.
    Raises `EmitError` for other combinations, unknown names, or none.
    """
    for slot in opened:
        if slot not in SLOTS:
            raise EmitError(unknown("slot", slot, SLOTS))
    opened = tuple(slot for slot in SLOTS if slot in opened)
    owners = select_summed_operands(opened, () if isinstance(schedule, MatrixSchedule) else rules)
    if not opened or len(owners) > 1:
        raise EmitError(f"a kernel opens one slot or more, and an index finds the rows of one at most; got {opened}")
    owner = owners[0] if owners else None
    if isinstance(schedule, ChannelSchedule):
        return ChannelPlacement(schedule, opened, owner, raised=raised, rules=rules)
    if raised:
        raise EmitError("only channel kernels take cotangents of gradients; see tpgen.form.call.expanded")
    if EDGE_PAIRS in rules:
        raise EmitError("only channel kernels let two edges share their weights")
    if isinstance(schedule, MatrixSchedule):
        if not {*EDGES}.isdisjoint(rules):
            raise EmitError("a linear layer has no edges: its kernels are not indexed")
        return MatrixPlacement(schedule, opened, None, rules=rules)
    if takes_sums_of_nodes(schedule, rules):
        return NodePlacement(schedule, opened, "out", rules=rules)
    return BatchPlacement(schedule, opened, owner, rules=rules)
