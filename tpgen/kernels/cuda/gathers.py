"""Gathers: products that mix copies.

A *gather* fills a segment of a result, or a path's P or D.  *Items* are copies of the target (per row); an item's
lanes loop over copies of other operands.  Gathers of one *phase* are independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tpgen.base.locks import cached_property
from tpgen.base.remember import remembered
from tpgen.form.form import Term
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.placement.values import BatchSchedule
from tpgen.kernels.sweep.statements import Accumulate, Load, Statement, SweepStage
from tpgen.kernels.sweep.sweep import make_sweep
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, D, P

# Weights come last: their gradients stand where they stood.
PHASES = {P: 0, D: 1, "out": 1, "x1": 2, "x2": 2, "w": 3}
_AT_ONCE = 8  # numbers of float32 in a sector, the least that memory gives


@dataclass(frozen=True)
class GatherPart:
    """One path's statements for an item, repeated for each copy that the item lacks."""

    term: Term
    own: str  # letters of the item's copies
    over: tuple[tuple[str, int], ...]  # letters and sizes of the others
    statements: tuple[Statement, ...]

    @property
    def times(self) -> int:
        """Repetitions of the statements."""
        return prod(size for _, size in self.over)

    @property
    def reads(self) -> tuple[str, ...]:
        """Operands, P and D included, once per number read."""
        return tuple(s.target.operand for s in self.statements if isinstance(s, Load))


@dataclass(frozen=True)
class Gather:
    """Sums that fill one segment of a result, or a path's P or D."""

    number: int
    target: str  # an operand, P or D
    place: int  # where it begins: in its row, or in P or D
    copies: int
    components: int
    strides: tuple[int, int]  # of copies and of components
    parts: tuple[GatherPart, ...]
    rows: int  # of items; 1 where all rows add to the same
    inner: int  # rows that an item runs over
    width: int = 1  # lanes of an item

    @property
    def phase(self) -> int:
        return PHASES[self.target]

    @property
    def items(self) -> int:
        return self.rows * self.copies

    @property
    def at_once(self) -> int:
        """Concurrent items of a warp."""
        return LANES // self.width

    @property
    def chunks(self) -> int:
        """Chunks of items that warps compute."""
        return -(-self.items // self.at_once)

    @property
    def neighbours_share(self) -> bool:
        """Whether adjacent lanes share an item."""
        return self.target == D

    @property
    def longest(self) -> int:
        """Most copies that a path loops over."""
        return max(part.times for part in self.parts)

    @cached_property
    def cost(self) -> int:
        """Statements of a warp for one chunk."""
        return self.inner * sum(-(-part.times // self.width) * len(part.statements) for part in self.parts)

    def __str__(self) -> str:
        paths = ", ".join(str(part.term.path) for part in self.parts)
        return f"{self.target} + {self.place}: paths {paths}; {self.items} items, {self.width} lanes each"


def make_gathers(
    schedule: BatchSchedule, opened: tuple[str, ...], carried: tuple[str, ...], rows: int, warps: int
) -> tuple[Gather, ...]:
    """Gathers of opened slots, by phase; rows share sums of ``carried`` slots."""
    found = _make_parts_by_target(schedule, opened)
    places = _starts_of_intermediates_of_paths(found)
    made = []
    for number, ((target, segment), parts) in enumerate(sorted(found.items(), key=lambda item: PHASES[item[0][0]])):
        place = places[target, segment] if target in BETWEEN else schedule.segment_start(parts[0].term, target)
        shape = (rows, 1) if target not in carried else (1, rows)
        made.append(_make_gather(number, target, place, tuple(parts), *shape))
    return tuple(_with_more_lanes_per_item(made, warps))


@remembered("what gathers on a GPU add up", entries=64)
def _make_parts_by_target(schedule: BatchSchedule, opened: tuple[str, ...]) -> dict[tuple[str, int], list[GatherPart]]:
    # the parts of each target and segment; nobody may change them
    found: dict[tuple[str, int], list[GatherPart]] = {}
    for slot in opened:
        for path in make_sweep(schedule.terms, (slot,)).paths:
            for stage in path.stages:
                _add_part(found, path.term, stage)
    return found


def intermediate_dims(gathers: tuple[Gather, ...]) -> dict[str, int]:
    """Numbers per row of coupled inputs P and their cotangents D."""
    return {
        name: max((g.place + g.copies * g.components for g in gathers if g.target == name), default=0)
        for name in BETWEEN
    }


def _add_part(parts: dict[tuple[str, int], list[GatherPart]], term: Term, stage: SweepStage) -> None:
    # two slots may need the same P or D
    target, segment = _target_operand_and_segment(stage)
    if target in BETWEEN and (target, segment) in parts:
        return
    own = _letters_of_target_copies(term, target)
    over = tuple(a for a in _letters_with_other_copy_of_pair(term, stage.letters, own) if a not in own)
    part = GatherPart(term, own, tuple((a, term.size(a)) for a in over), stage.statements)
    parts.setdefault((target, segment), []).append(part)


def _target_operand_and_segment(stage: SweepStage) -> tuple[str, int]:
    return next((s.target.operand, s.target.segment) for s in stage.statements if isinstance(s, Accumulate))


def _letters_of_target_copies(term: Term, target: str) -> str:
    # letters of the copies of what is filled, in the order of memory
    leg = term.leg(target)
    return leg.letters.replace(INDEX.get(target, ""), "") if leg else term.inputs


def _letters_with_other_copy_of_pair(term: Term, letters: str, item_letters: str) -> str:
    # an item with one copy of a pair loops over the other copy
    return (
        letters.replace("p", "b" if item_letters == "a" else "a")
        if term.pairs and item_letters in ("a", "b")
        else letters
    )


def _starts_of_intermediates_of_paths(
    parts_by_target: dict[tuple[str, int], list[GatherPart]],
) -> dict[tuple[str, int], int]:
    # places at which each path's P and D begin
    places: dict[tuple[str, int], int] = {}
    ends = {P: 0, D: 0}
    for (target, path), parts in parts_by_target.items():
        if target in ends:
            places[target, path] = ends[target]
            ends[target] += parts[0].term.size(parts[0].own + "k")
    return places


def _make_gather(number: int, target: str, place: int, parts: tuple[GatherPart, ...], rows: int, inner: int) -> Gather:
    term, own = parts[0].term, parts[0].own
    copies, components = term.size(own), term.size(INDEX.get(target, "k" if target in BETWEEN else ""))
    leg = term.leg(target)
    first = leg is not None and target in INDEX and leg.letters[0] == INDEX[target] and components > 1
    strides = (1, copies) if first else (components, 1)
    return Gather(number, target, place, copies, components, strides, parts, rows, inner)


def _with_more_lanes_per_item(gathers: list[Gather], warps: int) -> Iterator[Gather]:
    # enough lanes per item to fill a warp, and to divide the longest sums evenly among warps
    total = [sum(g.cost * g.chunks for g in gathers if g.phase == phase) for phase in range(4)]
    for g in gathers:
        if g.neighbours_share:
            yield replace(g, width=_lanes_without_bank_conflicts(g.longest))
            continue
        while 2 * g.width <= min(LANES, g.longest) and (
            g.items * 2 * g.width <= LANES
            or (2 * g.width <= LANES // _min_items_per_warp(g) and g.cost > total[g.phase] / (2 * warps))
        ):
            g = replace(g, width=2 * g.width)
        yield g


def _min_items_per_warp(gather: Gather) -> int:
    # copies of out are adjacent in the weights; memory transfers a sector at a time
    return min(gather.copies, _AT_ONCE) if gather.target == "out" else 1


def _lanes_without_bank_conflicts(size: int) -> int:
    """Lanes that read rows of ``size`` numbers without bank conflicts.

    >>> _lanes_without_bank_conflicts(10), _lanes_without_bank_conflicts(48), _lanes_without_bank_conflicts(64)
    (2, 16, 32)
    """
    return min(LANES, size & -size)
