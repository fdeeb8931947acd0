"""The rows of a channel kernel of many paths: groups of rows that take one path after the other.

Where rows came one after the other, neither the code of a path nor its tables would be in the nearest caches any more
when the next row needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpgen.kernels.cpp.channel_rows import RowBlocks, row_arguments
from tpgen.kernels.cpp.parts import Arguments
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.sweep.terms import SLOTS


def in_memory(name: str) -> bool:
    """Whether an argument of a row is found by a pointer of its own, rather than by its place in scratch."""
    return name.removeprefix("d_").partition("_")[0] in SLOTS


class RowGroup:
    """Arguments of a group of rows: arrays of pointers into memory, and scratch of them all, named in the plural."""

    def __init__(self, placement: ChannelPlacement) -> None:
        self.p, self._row = placement, row_arguments(placement)

    @property
    def arguments(self) -> Arguments:
        return [
            ("int", "n"),
            *((f"{kind} const*" if in_memory(name) else kind, f"{name}s") for kind, name in self._row),
        ]

    @contextmanager
    def each(self, w: Writer) -> Iterator[None]:
        """A loop over the rows, with what one of them needs."""
        with w.block("for (int r = 0; r < n; ++r)"):
            w.line(" ".join(f"{kind} const {name} = {self._of_row(name)};" for kind, name in self._row))
            yield

    def _of_row(self, name: str) -> str:
        return f"{name}s[r]" if in_memory(name) else f"{name}s + r * {self.p.row_stride(name)}"


class GroupBlocks(RowBlocks):
    """Writes the rows of a block, as many together as the placement says and are of one tile and owner."""

    def before_owners(self) -> None:
        self._declare()

    def tile(self, row: str) -> None:
        """The tables of a tile, and where its rows are."""
        if not self.p.owner:
            self._declare()
        for _, name in self._pointers():
            self.find(name, row, f"p_{name}")
        self.w.line(self.tabulation())

    def _pointers(self) -> Arguments:
        return [(kind, name) for kind, name in self.arguments if in_memory(name)]

    def _declare(self) -> None:
        for kind, name in self._pointers():
            self.w.line(f"{kind} p_{name}[W];")

    def rows(self) -> None:
        with self.w.block(f"for (int r = 0; r < n; r += {self.p.group})"):
            self._rows(f"least({self.p.group}, n - r)")

    def owned_rows(self) -> None:
        with self.w.block("for (int m; q < first[o + 1]; q += m)"):
            self.next_tile()
            self.w.line("const int r = (q - first[from]) % W;")
            self.w.line(f"m = least({self.p.group}, least(first[o + 1], tile) - q);")
            self._rows("m")

    def _rows(self, count: str) -> None:
        values = self.areas("r") | {name: f"p_{name} + r" for _, name in self._pointers()}
        self.w.line(f"row_group({', '.join([count, *(values.get(name, name) for _, name in self.arguments)])});")
