"""Placement of channel kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tpgen.base.locks import cached_property
from tpgen.form.call import Slot
from tpgen.form.form import Term
from tpgen.kernels.placement.slots import PlacementBase
from tpgen.kernels.placement.values import ChannelSchedule, PlacedTable, RowBlockSizes, SegmentView, areas_text
from tpgen.kernels.rows import EDGE_PAIRS
from tpgen.kernels.sweep.statements import Load, Tabulate
from tpgen.kernels.sweep.sweep import PathSweep, Sweep, cotangents_text, make_sweep
from tpgen.kernels.sweep.terms import INDEX, SLOTS, list_given_slots, operand_of

_TOGETHER = 4  # paths in one function, where there are many: compilers need more than twice the time for twice as many
_MANY = 32
# Rows that take a path together, and numbers staged for them: with more they leave the nearest cache.
_GROUP, _GROUP_STAGED = 8, 6400


@dataclass(frozen=True)
class ChannelPlacement(PlacementBase):
    """Layout of a CPU kernel with SIMD vectors over channels."""

    schedule: ChannelSchedule

    @cached_property
    def sweep(self) -> Sweep:
        return make_sweep(self.schedule.terms, self.opened, self.schedule.channels, self.raised)

    @cached_property
    def given(self) -> tuple[str, ...]:
        """Names of tensors that the kernel reads."""
        if not self.raised:
            return list_given_slots(self.opened)
        read = {s.target.operand for s in self.sweep.statements if isinstance(s, Load)}
        return tuple(slot for slot in self.call_slots if slot in read or self.has_coupling_tables(slot))

    @property
    def transposed_segments(self) -> set[tuple[int, int]]:
        return {(v.inner, v.channels) for v in self.schedule.views}

    @property
    def row_block_sizes(self) -> RowBlockSizes:
        return RowBlockSizes(self.schedule.target.lanes, sum(self.dim.values()), self.scratch_size_of_shared_weights)

    @property
    def in_parts(self) -> bool:
        """Whether parts are separate functions, compiled in parallel."""
        return len(self.sweep.paths) > _MANY

    @property
    def paths_of_each_function(self) -> list[tuple[PathSweep, ...]]:
        """Paths grouped by C++ function."""
        paths = self.sweep.paths
        return [paths[n : n + _TOGETHER] for n in range(0, len(paths), _TOGETHER)]

    # -- what lives where --

    def goes_through_scratch(self, view: SegmentView) -> bool:
        return view.is_staged or self.is_summed_over_rows(view.operand)

    def has_coupling_tables(self, slot: str) -> bool:
        return any(self.statements_that_fill_table(placed, slot) for placed in self.schedule.tables)

    @cached_property
    def tabulated_slots(self) -> list[str]:
        return [slot for slot in self.call_slots if self.has_coupling_tables(slot)]

    def statements_that_fill_table(self, placed: PlacedTable, slot: str) -> tuple[Tabulate, ...]:
        return self._filling_statements_by_table_and_slot.get((placed.table.number, slot), ())

    @cached_property
    def _filling_statements_by_table_and_slot(self) -> dict[tuple[int, str], tuple[Tabulate, ...]]:
        found: dict[tuple[int, str], tuple[Tabulate, ...]] = {}
        for placed in self.schedule.tables:
            number = placed.table.number
            for levels, filled in groupby(self.sweep.tables[number], key=lambda s: s.target.levels):
                found[number, str(Slot(placed.operand, levels))] = tuple(filled)
        return found

    def tabulated_ranges(self, operand: str) -> list[tuple[int, int]]:
        """(start, size) of segments that coupling tables are computed from."""
        letter = INDEX[operand]
        found = {
            t.start: t.copies * (1 + max(e.at(letter) for e in t.table.terms[0].entries))
            for t in self.schedule.tables
            if t.operand == operand
        }
        return sorted(found.items())

    def reads_scratch(self, slot: str) -> bool:
        return slot in self.given and any(map(self.goes_through_scratch, self.schedule.views_of(operand_of(slot))))

    def segments_to_stage(self, slot: str) -> list[SegmentView]:
        """Segments that each row copies into scratch."""
        operand = operand_of(slot)
        if slot not in self.given or (self.is_summed_over_rows(slot) and operand != self.owner):
            return []
        return [v for v in self.schedule.views_of(operand) if self.goes_through_scratch(v)]

    @property
    def scratch_size_of_shared_weights(self) -> int:
        return self.schedule.scratch_size("w") if self.schedule.shared_weights else 0

    @property
    def given_weights(self) -> list[str]:
        """Weight slots staged once for all rows."""
        return [slot for slot in self.given if operand_of(slot) == "w" and self.scratch_size_of_shared_weights]

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Sizes of a thread's scratch areas."""
        rows = self.rows_per_group if self.in_parts else 1
        sizes = self._scratch_sizes_of_row.items()
        return {name: size * (rows if self.has_area_per_row(name) else 1) for name, size in sizes}

    @cached_property
    def _scratch_sizes_of_row(self) -> dict[str, int]:
        s, lanes = self.schedule, self.schedule.target.lanes
        areas: dict[str, int] = {}
        for slot in self.call_slots:
            if operand_of(slot) == "w" and s.shared_weights:
                continue
            if self.reads_scratch(slot):
                areas[f"s_{cpp_slot_name(slot)}"] = s.scratch_size(operand_of(slot))
            if slot in self.opened and any(map(self.goes_through_scratch, s.views_of(slot))):
                areas[f"a_{slot}"] = s.scratch_size(slot)
        for slot in self.call_slots:
            if self.has_coupling_tables(slot):
                areas[f"t_{cpp_slot_name(slot)}"] = self.dim[slot] * lanes
            if slot in self.opened and slot in s.scalar_operands:
                areas[f"r_{slot}"] = self.dim[slot] * lanes
        for name in self.table_areas:
            areas[name] = sum(t.size for t in s.tables) * lanes
        return {name: s.target.round_up_to_whole_vectors(size) for name, size in areas.items() if size}

    @property
    def pair_gradient_size(self) -> int:
        """Scratch size of weight gradients that the second edge of each pair adds."""
        shared = self.rule("w") is EDGE_PAIRS and "w" in self.opened
        return shared * self.dim["w"] * (self.rows_per_group if self.in_parts else 1)

    @property
    def table_areas(self) -> list[str]:
        # one for each level; without levels there is always one
        return list(dict.fromkeys(map(table_area_name, self.tabulated_slots if self.raised else SLOTS)))

    @property
    def owner_sums(self) -> list[str]:
        """Scratch areas that hold the sum of one owner."""
        return [name for name in self._scratch_sizes_of_row if name in (f"a_{self.owner}", f"r_{self.owner}")]

    # -- groups of rows --

    @cached_property
    def rows_per_group(self) -> int:
        """Number of rows that a function computes together."""
        staged = sum(size for name, size in self._scratch_sizes_of_row.items() if name.startswith("s_"))
        return max(1, min(_GROUP, _GROUP_STAGED // max(1, staged)))

    def views_to_prefetch(self, term: Term) -> list[SegmentView]:
        """Segments of the path after ``term`` to prefetch; none for single rows."""
        if self.rows_per_group == 1:
            return []
        terms = [path.term for path in self.sweep.paths]
        behind = terms[terms.index(term) + 1 :][:1]
        seen = [self.schedule.view(t, leg.operand) for t in behind for leg in t.legs]
        return [view for view in seen if view and not self.goes_through_scratch(view)]

    def has_area_per_row(self, name: str) -> bool:
        return name in self._scratch_sizes_of_row and name[:2] in ("s_", "a_", "r_") and name not in self.owner_sums

    def row_stride(self, area: str) -> int:
        """Distance of a group's rows in a scratch area."""
        # tables have a row in each lane
        return self._scratch_sizes_of_row[area] if self.has_area_per_row(area) else int(area in self.table_areas)

    # -- who writes first --

    def writes_each_vector_once(self, view: SegmentView, term: Term) -> bool:
        """Whether a path writes each vector of a view once."""
        letter, size = self.schedule.copy_loop(term)
        return not self.is_summed_over_rows(view.operand) and (size == 1 or letter in [a for a, _ in view.axes])

    @cached_property
    def _first_path_to_write_each_view(self) -> dict[SegmentView, Term]:
        first: dict[SegmentView, Term] = {}
        for term in self.schedule.terms:
            for leg in term.legs:
                view = self.schedule.view(term, leg.operand)
                if view:
                    first.setdefault(view, term)
        return first

    def stores_instead_of_adding(self, view: SegmentView, term: Term) -> bool:
        return self._first_path_to_write_each_view[view] is term and self.writes_each_vector_once(view, term)

    @property
    def views_to_clear(self) -> list[SegmentView]:
        """Scratch segments set to zero before paths add."""
        return [
            view
            for view, term in self._first_path_to_write_each_view.items()
            if view.operand in self.opened
            and not (self.is_summed_over_rows(view.operand) or self.writes_each_vector_once(view, term))
        ]

    def starts_and_sizes_used_by_paths(self, operand: str) -> list[tuple[int, int]]:
        tabulated = self.tabulated_ranges(operand) if operand in self.schedule.scalar_operands else []
        return tabulated + [(v.start, v.outer * v.channels * v.inner) for v in self.schedule.views_of(operand)]

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        t = self.schedule.target
        owned = f", summed by the owner of {self.owner}" if self.owner else ""
        yield (
            f"channel placement: opens {', '.join(self.opened)}{cotangents_text(self.raised)}{owned}; "
            f"{t.lanes} lanes of {t.dtype}",
            (),
        )
        yield f"  {self.row_block_sizes}" + f", groups of {self.rows_per_group} rows" * self.in_parts, ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        for table in self.schedule.tables:
            text = f"  T{table.table.number} of {table.operand}: {table.copies} x {table.entries} entries"
            yield text, tuple(term.path for term in table.table.terms)
        yield from ((self._describe_path(path.term), (path.term.path,)) for path in self.sweep.paths)

    def _describe_path(self, term: Term) -> str:
        letter, size = self.schedule.copy_loop(term)
        seen = [v for leg in term.legs if (v := self.schedule.view(term, leg.operand))]
        parts = [
            f"{v.operand}[{v.segment}] {self._describe_path_access_to_segment(v, term)}"
            for v in seen
            if self._describe_path_access_to_segment(v, term)
        ]
        loop = f"{size} x " if letter else ""
        vectors = self.schedule.count_padded_channels(term) // self.schedule.target.lanes
        return f"  path {term.path}: {loop}{vectors} vectors; {', '.join(parts)}"

    def _describe_path_access_to_segment(self, view: SegmentView, term: Term) -> str:
        # text of a path's access to a segment: reads, then writes
        place = (
            "in scratch"
            if self.goes_through_scratch(view)
            else "in memory"
            if view.inner == 1
            else "in tiles of memory"
        )
        verbs = ["read"] * (view.operand in self.given and self.opened != (view.operand,))
        if view.operand in self.opened:
            verbs.append(
                "stored"
                if not self.goes_through_scratch(view) or self.stores_instead_of_adding(view, term)
                else "added"
            )
        return f"{' and '.join(verbs)} {place}" if verbs else ""


def cpp_slot_name(slot: str) -> str:
    """C++ name of a tensor.

    >>> cpp_slot_name("x1.1")
    'x1_1'
    """
    return slot.replace(".", "_")


def weights_area_name(slot: str) -> str:
    """C++ name of the scratch area of shared weights.

    >>> weights_area_name("w"), weights_area_name("w.1")
    ('weights', 'weights_1')
    """
    return cpp_slot_name("weights" + slot[1:])


def table_area_name(slot: str) -> str:
    """C++ name of the scratch area of coupling tables.

    >>> table_area_name("x2"), table_area_name("x2.1")
    ('T', 'T_1')
    """
    return cpp_slot_name("T" + slot[len(operand_of(slot)) :])
