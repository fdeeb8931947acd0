"""The channel schedule with some slots open: what stands in scratch, who writes first, what is cleared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpgen.kernels.placement.blocks import Blocks, areas_text
from tpgen.kernels.placement.opened import OpenedSlots
from tpgen.kernels.placement.values import ChannelSchedule, View
from tpgen.kernels.sweep.sweep import PathSweep, Sweep, make_sweep
from tpgen.kernels.sweep.terms import INDEX, SLOTS, PathTerm

_TOGETHER = 4  # paths in one function, where there are many: compilers need more than twice the time for twice as many
_MANY = 32
# Rows that take a path together, and numbers staged for them: with more they leave the nearest cache.
_GROUP, _GROUP_STAGED = 8, 6400


@dataclass(frozen=True)
class ChannelPlacement(OpenedSlots):
    """Per row: stage what is touched more than once, run the paths, write the accumulated gradients."""

    schedule: ChannelSchedule
    opened: tuple[str, ...]
    owner: str | None  # the open slot that is summed over the rows of a gather

    @cached_property
    def sweep(self) -> Sweep:
        return make_sweep(self.schedule.terms, self.opened, self.schedule.channels)

    @property
    def tiles(self) -> set[int]:
        """Widths of the transposes that some view needs."""
        return {v.inner for v in self.schedule.views}

    @property
    def tails(self) -> set[tuple[int, int]]:
        """The same for the last channels of segments that do not fill whole vectors: width and channels."""
        lanes = self.schedule.target.lanes
        return {(v.inner, v.channels % lanes) for v in self.schedule.views if v.channels % lanes}

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.schedule.target.lanes, sum(self.dim.values()), self.weight_scratch)

    @property
    def in_parts(self) -> bool:
        """Whether there is so much that parts of it are compiled as functions of their own."""
        return len(self.sweep.paths) > _MANY

    @property
    def parts(self) -> list[tuple[PathSweep, ...]]:
        """The paths that one function holds, where there are many."""
        paths = self.sweep.paths
        return [paths[n : n + _TOGETHER] for n in range(0, len(paths), _TOGETHER)]

    # -- what lives where --

    @property
    def sums_weights(self) -> bool:
        """Whether the gradient of weights that all rows share is open."""
        return self.schedule.shared_weights and "w" in self.opened

    def carried(self, operand: str) -> bool:
        """Whether an operand's open slot is summed over rows."""
        return operand == self.owner or (operand == "w" and self.schedule.shared_weights)

    def staged(self, view: View) -> bool:
        return view.staged or self.carried(view.operand)

    def tabulated(self, operand: str) -> bool:
        """Whether the tables of an operand are needed: by all but its own gradient."""
        return any(t.operand == operand and self.sweep.tables[n] for n, t in enumerate(self.schedule.tables))

    @property
    def tabulated_operands(self) -> list[str]:
        return [o for o in self.schedule.scalar_operands if self.tabulated(o)]

    def scalars(self, operand: str) -> list[tuple[int, int]]:
        """Start and size of the tabulated segments of an operand."""
        letter = INDEX[operand]
        found = {
            t.start: t.copies * (1 + max(e.at(letter) for e in t.table.terms[0].entries))
            for t in self.schedule.tables
            if t.operand == operand
        }
        return sorted(found.items())

    def reads_scratch(self, operand: str) -> bool:
        return operand in self.given and any(self.staged(v) for v in self.schedule.views_of(operand))

    def adds_in_scratch(self, operand: str) -> bool:
        return operand in self.opened and any(self.staged(v) for v in self.schedule.views_of(operand))

    def stages(self, operand: str) -> list[View]:
        """Segments that a row moves to scratch before its paths."""
        if operand not in self.given or (self.carried(operand) and operand != self.owner):
            return []
        return [v for v in self.schedule.views_of(operand) if self.staged(v)]

    @property
    def weight_scratch(self) -> int:
        return self.schedule.scratch_size("w") if self.schedule.shared_weights else 0

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Size of every scratch area of a thread, in numbers."""
        rows = self.group if self.in_parts else 1
        return {name: size * (rows if self.by_row(name) else 1) for name, size in self._areas.items()}

    @cached_property
    def _areas(self) -> dict[str, int]:
        """The same for a single row."""
        s, lanes = self.schedule, self.schedule.target.lanes
        areas: dict[str, int] = {}
        for operand in SLOTS:
            if operand == "w" and s.shared_weights:
                continue
            if self.reads_scratch(operand):
                areas[f"s_{operand}"] = s.scratch_size(operand)
            if self.adds_in_scratch(operand):
                areas[f"a_{operand}"] = s.scratch_size(operand)
        for operand in s.scalar_operands:
            if self.tabulated(operand):
                areas[f"t_{operand}"] = self.dim[operand] * lanes
            if operand in self.opened:
                areas[f"r_{operand}"] = self.dim[operand] * lanes
        areas["T"] = sum(t.size for t in s.tables) * lanes
        return {name: s.target.whole(size) for name, size in areas.items() if size}

    @property
    def owner_sums(self) -> list[str]:
        """Areas that hold the sum of one owner until it is complete."""
        return [name for name in self._areas if name in (f"a_{self.owner}", f"r_{self.owner}")]

    # -- groups of rows --

    @cached_property
    def group(self) -> int:
        """Rows that take a path together, where there are many paths."""
        staged = sum(size for name, size in self._areas.items() if name.startswith("s_"))
        return max(1, min(_GROUP, _GROUP_STAGED // max(1, staged)))

    def ahead(self, term: PathTerm) -> list[View]:
        """Segments in memory of the path behind this one; none where rows go alone, from end to end."""
        if self.group == 1:
            return []
        terms = [path.term for path in self.sweep.paths]
        behind = terms[terms.index(term) + 1 :][:1]
        seen = [self.schedule.view(t, leg.operand) for t in behind for leg in t.legs]
        return [view for view in seen if view and not self.staged(view)]

    def by_row(self, name: str) -> bool:
        """Whether each row of a group has a scratch area of its own."""
        return name in self._areas and name[:2] in ("s_", "a_", "r_") and name not in self.owner_sums

    def row_stride(self, name: str) -> int:
        """Numbers from what a row has in scratch to what the next one has: tables have a row in each lane."""
        return self._areas[name] if self.by_row(name) else int(name == "T")

    # -- who writes first --

    def assigns(self, view: View, term: PathTerm) -> bool:
        """Whether a term writes each vector of a view once."""
        letter, size = self.schedule.loop(term)
        return not self.carried(view.operand) and (size == 1 or letter in [a for a, _ in view.axes])

    @cached_property
    def _first(self) -> dict[View, PathTerm]:
        first: dict[View, PathTerm] = {}
        for term in self.schedule.terms:
            for leg in term.legs:
                view = self.schedule.view(term, leg.operand)
                if view:
                    first.setdefault(view, term)
        return first

    def stores(self, view: View, term: PathTerm) -> bool:
        """Whether a term finds nothing in scratch yet, so that it stores where later ones add."""
        return self._first[view] is term and self.assigns(view, term)

    @property
    def cleared(self) -> list[View]:
        """What a row clears before its paths add to it."""
        return [
            view
            for view, term in self._first.items()
            if view.operand in self.opened and not self.carried(view.operand) and not self.assigns(view, term)
        ]

    def unreached(self, operand: str) -> list[tuple[int, int]]:
        """Start and size of what no path writes."""
        reached = self.scalars(operand) if operand in self.schedule.scalar_operands else []
        reached += [(v.start, v.outer * v.channels * v.inner) for v in self.schedule.views_of(operand)]
        return gaps(reached, self.dim[operand])

    @property
    def lines(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The text, and for every line the paths that it serves (none: those that all share)."""
        t = self.schedule.target
        owned = f", summed by the owner of {self.owner}" if self.owner else ""
        yield f"channel placement: opens {', '.join(self.opened)}{owned}; {t.lanes} lanes of {t.dtype}", ()
        yield f"  {self.blocks}" + f", groups of {self.group} rows" * self.in_parts, ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        for table in self.schedule.tables:
            text = f"  T{table.table.number} of {table.operand}: {table.copies} x {table.entries} entries"
            yield text, tuple(term.path for term in table.table.terms)
        yield from ((self._path_text(path.term), (path.term.path,)) for path in self.sweep.paths)

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines)

    def _path_text(self, term: PathTerm) -> str:
        letter, size = self.schedule.loop(term)
        seen = [v for leg in term.legs if (v := self.schedule.view(term, leg.operand))]
        parts = [f"{v.operand}[{v.segment}] {self._access(v, term)}" for v in seen if self._access(v, term)]
        loop = f"{size} x " if letter else ""
        vectors = self.schedule.padded(term) // self.schedule.target.lanes
        return f"  path {term.path}: {loop}{vectors} vectors; {', '.join(parts)}"

    def _access(self, view: View, term: PathTerm) -> str:
        """How a path gets at a segment: reads, then writes."""
        place = "in scratch" if self.staged(view) else "in memory" if view.inner == 1 else "in tiles of memory"
        verbs = ["read"] * (view.operand in self.given and self.opened != (view.operand,))
        if view.operand in self.opened:
            verbs.append("stored" if not self.staged(view) or self.stores(view, term) else "added")
        return f"{' and '.join(verbs)} {place}" if verbs else ""


def gaps(reached: list[tuple[int, int]], dim: int) -> list[tuple[int, int]]:
    """Start and size of what is not covered.

    >>> gaps([(2, 3)], 6)
    [(0, 2), (5, 1)]
    """
    found, at = [], 0
    for start, size in sorted(reached):
        if start > at:
            found.append((at, start - at))
        at = max(at, start + size)
    return found + ([(at, dim - at)] if dim > at else [])
