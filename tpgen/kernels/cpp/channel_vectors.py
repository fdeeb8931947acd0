"""Where the channel schedule finds its vectors: in memory, in tiles of memory, or in scratch."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.schedule.values import INDEX, SLOTS, ChannelSchedule, ChannelTerm, View

LOCAL = {"x1": "x", "x2": "y", "w": "u", "out": "g"}  # arrays of vectors inside a loop over channels


class ChannelVectors:
    """The scratch areas of one direction, and how a path's vectors get in and out of registers."""

    def __init__(self, schedule: ChannelSchedule, opened: tuple[str, ...], owner: str | None, w: Writer) -> None:
        self.s, self.opened, self.owner, self.w = schedule, opened, owner, w
        self.dtype = schedule.target.dtype
        self.given = tuple(s for s in SLOTS if s not in opened or len(opened) > 1)
        self.dim = dict(zip(SLOTS, schedule.dims, strict=True))

    # -- what lives where --

    def carried(self, operand: str) -> bool:
        """Whether an operand's open slot is summed over rows."""
        return operand == self.owner or (operand == "w" and self.s.shared_weights)

    def staged(self, view: View) -> bool:
        return view.staged or self.carried(view.operand)

    def scalars(self, operand: str) -> tuple[tuple[int, int], ...]:
        """Start and size of the tabulated segments of an operand."""
        found = {
            t.start: t.copies * (1 + max(e.at(t.scalar_letter) for e in t.entries))
            for t in self.s.tables
            if t.operand == operand
        }
        return tuple(sorted(found.items()))

    def reads_scratch(self, operand: str) -> bool:
        return operand in self.given and any(self.staged(v) for v in self._views(operand))

    def _views(self, operand: str) -> list[View]:
        return [v for v in self.s.views if v.operand == operand]

    def scratch(self) -> dict[str, int]:
        """Size of every scratch area, in numbers."""
        areas: dict[str, int] = {}
        for operand in SLOTS:
            if self.reads_scratch(operand) and not (operand == "w" and self.s.shared_weights):
                areas[f"s_{operand}"] = self.s.scratch_size(operand)
            if operand in self.opened and not (operand == "w" and self.s.shared_weights):
                areas[f"a_{operand}"] = self.s.scratch_size(operand)
        lanes = self.s.target.lanes
        for operand in self.s.scalar_operands:
            if self.tabulated(operand):
                areas[f"t_{operand}"] = self.dim[operand] * lanes
            if operand in self.opened:
                areas[f"r_{operand}"] = self.dim[operand] * lanes
        areas["T"] = sum(t.size for t in self.s.tables) * lanes
        return {name: -(-size // lanes) * lanes for name, size in areas.items() if size}

    def tabulated(self, operand: str) -> bool:
        """Whether this direction needs the tables of an operand: all but its own gradient do."""
        return any(slot != operand for slot in self.opened)

    def _assigns(self, view: View, term: ChannelTerm) -> bool:
        """Whether a term writes each vector of a view once."""
        letter, size = term.loop
        return not self.carried(view.operand) and (size == 1 or letter in [a for a, _ in view.axes])

    # -- vectors in and out --

    def _used(self, term: ChannelTerm, operand: str) -> list[int]:
        return sorted({e.at(INDEX[operand]) for e in term.entries}) if operand in INDEX else [0]

    def _address(self, view: View, term: ChannelTerm, index: int, base: str) -> str:
        """Where vector ``c`` of one irrep component stands, in scratch."""
        strides = {a: view.stride(a) for a, _ in view.axes}
        offset = view.scratch + index * strides.get(INDEX.get(view.operand, ""), 0)
        loop = strides.get(term.loop[0], 0)
        return f"{base} + {offset} + " + (f"v * {loop} + c" if loop else "c")

    def _memory(self, view: View, term: ChannelTerm, index: int, base: str) -> str:
        """The same in memory, for segments that are not staged: vectors, or the tile that starts there."""
        outer = [(a, n) for a, n in view.axes if a not in view.behind]
        block = view.channels * view.inner
        strides = {a: prod(n for _, n in outer[m + 1 :]) * block for m, (a, _) in enumerate(outer)}
        offset = view.start + index * strides.get(INDEX.get(view.operand, ""), 0)
        loop = strides.get(term.loop[0], 0)
        return (
            f"{base} + {offset} + "
            + (f"v * {loop} + " if loop else "")
            + ("c" if view.inner == 1 else f"c * {view.inner}")
        )

    def _fetch(self, term: ChannelTerm, operand: str, indices: Iterable[int]) -> str:
        """Declare the vectors of an operand; returns the array's name."""
        view = term.view(operand)
        assert view is not None
        array = LOCAL[operand]
        size = dict(view.axes).get(INDEX.get(operand, ""), 1)
        if self.staged(view):
            values = [(n, f"load({self._address(view, term, n, f's_{operand}')})") for n in indices]
        elif view.inner == 1:
            values = [(n, f"fetch({self._memory(view, term, n, operand)})") for n in indices]
        else:
            self.w.line(
                f"vec {array}[{size}]; "
                f"Tile<{view.inner}>::fetch_items({self._memory(view, term, 0, operand)}, {array});"
            )
            return array
        self.w.line(f"vec {array}[{size}]; " + " ".join(f"{array}[{n}] = {text};" for n, text in values))
        return array

    def _deliver(self, term: ChannelTerm, operand: str, values: dict[int, str], written: set[View]) -> None:
        """Store or add the vectors computed for one open slot."""
        view = term.view(operand)
        if view is None:
            return
        size = dict(view.axes).get(INDEX.get(operand, ""), 1)
        if self.staged(view):
            verb = "add" if view in written or not self._assigns(view, term) else "store"
            written.add(view)
            for n in range(size):
                if n in values or verb == "store":
                    self.w.line(f"{verb}({self._address(view, term, n, f'a_{operand}')}, {values.get(n, 'vec{}')});")
        elif view.inner == 1:
            for n in range(size):
                self.w.line(f"put({self._memory(view, term, n, f'd_{operand}')}, {values.get(n, 'vec{}')});")
        else:
            listed = ", ".join(values.get(n, "vec{}") for n in range(size))
            self.w.line(f"const vec o_{operand}[{size}] = {{{listed}}};")
            self.w.line(f"Tile<{view.inner}>::put_items({self._memory(view, term, 0, f'd_{operand}')}, o_{operand});")
