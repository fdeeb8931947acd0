"""Gathers: products that mix copies."""

# A *gather* fills a segment of a result, or a path's P or D.  *Items* are copies of the target (per row); an item's
# lanes loop over copies of other operands.  Gathers of one *phase* are independent.

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
    """One path's part of a gather: statements per item, in loops over the copies that are summed."""

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
    """Sums that fill one segment of a result, or of an intermediate: coupled inputs P, cotangents D."""

    number: int
    target: str  # an operand, P or D
    start: int  # where it begins: in its row, or in P or D
    copies: int
    components: int
    strides: tuple[int, int]  # of copies and of components
    parts: tuple[GatherPart, ...]
    rows: int  # of items; 1 where all rows add to the same
    rows_per_item: int  # rows that an item runs over
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
        return self.rows_per_item * sum(-(-part.times // self.width) * len(part.statements) for part in self.parts)

    def __str__(self) -> str:
        paths = ", ".join(str(part.term.path) for part in self.parts)
        return f"{self.target} + {self.start}: paths {paths}; {self.items} items, {self.width} lanes each"


def make_gathers(
    schedule: BatchSchedule, opened: tuple[str, ...], row_sums: tuple[str, ...], rows: int, warps: int
) -> tuple[Gather, ...]:
    """Gathers that compute results or gradients ``opened``, by phase; ``row_sums`` are summed over rows."""
    found = _make_parts_by_operand_and_segment(schedule, opened)
    places = _intermediate_offsets_by_path(found)
    made = []
    for number, ((target, segment), parts) in enumerate(sorted(found.items(), key=lambda item: PHASES[item[0][0]])):
        place = places[target, segment] if target in BETWEEN else schedule.segment_start(parts[0].term, target)
        shape = (rows, 1) if target not in row_sums else (1, rows)
        made.append(_make_gather(number, target, place, tuple(parts), *shape))
    return tuple(_assign_lanes_per_item(made, warps))


@remembered("what gathers on a GPU add up", entries=64)
def _make_parts_by_operand_and_segment(
    schedule: BatchSchedule, opened: tuple[str, ...]
) -> dict[tuple[str, int], list[GatherPart]]:
    # the parts of each target and segment; nobody may change them
    found: dict[tuple[str, int], list[GatherPart]] = {}
    for slot in opened:
        for path in make_sweep(schedule.terms, (slot,)).paths:
            for stage in path.stages:
                _add_gather_part(found, path.term, stage)
    return found


def count_intermediate_numbers(gathers: tuple[Gather, ...]) -> dict[str, int]:
    """Numbers per row of coupled inputs P and their cotangents D."""
    return {
        name: max((g.start + g.copies * g.components for g in gathers if g.target == name), default=0)
        for name in BETWEEN
    }


def _add_gather_part(parts_by_segment: dict[tuple[str, int], list[GatherPart]], term: Term, stage: SweepStage) -> None:
    # two slots may need the same P or D
    target, segment = _target_operand_and_segment(stage)
    if target in BETWEEN and (target, segment) in parts_by_segment:
        return
    own = _multiplicity_letters(term, target)
    over = tuple(a for a in _replace_pair_letter_by_letter_of_other_copy(term, stage.letters, own) if a not in own)
    part = GatherPart(term, own, tuple((a, term.size(a)) for a in over), stage.statements)
    parts_by_segment.setdefault((target, segment), []).append(part)


def _target_operand_and_segment(stage: SweepStage) -> tuple[str, int]:
    return next((s.target.operand, s.target.segment) for s in stage.statements if isinstance(s, Accumulate))


def _multiplicity_letters(term: Term, operand: str) -> str:
    # letters of the copies of what is filled, in the order of memory
    leg = term.leg(operand)
    return leg.letters.replace(INDEX.get(operand, ""), "") if leg else term.inputs


def _replace_pair_letter_by_letter_of_other_copy(term: Term, letters: str, letters_of_item: str) -> str:
    # an item with one copy of a pair loops over the other copy
    return (
        letters.replace("p", "b" if letters_of_item == "a" else "a")
        if term.pairs and letters_of_item in ("a", "b")
        else letters
    )


def _intermediate_offsets_by_path(
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


def _make_gather(
    number: int, target: str, start: int, parts: tuple[GatherPart, ...], rows: int, rows_per_item: int
) -> Gather:
    term, own = parts[0].term, parts[0].own
    copies, components = term.size(own), term.size(INDEX.get(target, "k" if target in BETWEEN else ""))
    leg = term.leg(target)
    first = leg is not None and target in INDEX and leg.letters[0] == INDEX[target] and components > 1
    strides = (1, copies) if first else (components, 1)
    return Gather(number, target, start, copies, components, strides, parts, rows, rows_per_item)


def _assign_lanes_per_item(gathers: list[Gather], warps: int) -> Iterator[Gather]:
    # enough lanes per item to fill a warp, and to divide the longest sums evenly among warps
    total = [sum(g.cost * g.chunks for g in gathers if g.phase == phase) for phase in range(4)]
    for g in gathers:
        if g.neighbours_share:
            yield replace(g, width=_most_lanes_without_bank_conflicts(g.longest))
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


def _most_lanes_without_bank_conflicts(row_size: int) -> int:
    """Most lanes that read rows of ``row_size`` numbers without bank conflicts.

    >>> [_most_lanes_without_bank_conflicts(size) for size in (10, 48, 64)]
    [2, 16, 32]
    """
    return min(LANES, row_size & -row_size)
