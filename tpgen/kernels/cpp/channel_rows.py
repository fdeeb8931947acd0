"""The rows of a channel kernel, one after the other: where each is in memory, its tables, and whom it is summed for."""

from __future__ import annotations

from tpgen.kernels.cpp.parts import Arguments
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.channel import ChannelPlacement, identifier, weights_area


def row_arguments(p: ChannelPlacement) -> Arguments:
    """Type and name of what a row needs: operands and results in memory, then scratch."""
    arguments = [("const real*", identifier(slot)) for slot in p.given]
    arguments += [("real*", f"d_{o}") for o in p.opened]
    arguments += [("const num*" if name in p.table_areas else "num*", name) for name in p.scratch]
    arguments += [("const num*", f"s_{identifier(slot)}") for slot in p.given_weights if p.reads_scratch(slot)]
    if p.sums_weights:
        arguments.append(("num*", "a_w"))
    return arguments


class RowBlocks:
    """Writes the rows of a block, tile by tile."""

    def __init__(self, placement: ChannelPlacement, w: Writer, indexed: bool) -> None:
        self.p, self.w, self.indexed = placement, w, indexed
        self.arguments = row_arguments(placement)

    def write(self) -> None:
        if self.p.owner:
            self._owned(self.p.owner)
            return
        self.w.line("const i64 end = least(rows, (b + 1) * span);")
        with self.w.block("for (i64 q = b * span; q < end; q += W)"):
            self.w.line("const int n = least(W, end - q);")
            self.tile("q + r")
            self.rows()

    def _owned(self, owner: str) -> None:
        w = self.w
        w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
        w.line("const i64 end = first[to];")
        w.line("i64 q = first[from], tile = q;")
        sums = self.p.owner_sums
        self.before_owners()
        with w.block("for (i64 o = from; o < to; ++o)"):
            for name in sums:
                w.line(f"clear({name}, {self.p.scratch[name]});")
            self.owned_rows()
            w.line(f"finish(d_{owner} + o * {self.p.dim[owner]}{''.join(', ' + name for name in sums)});")

    def next_tile(self) -> None:
        with self.w.block("if (q == tile)"):
            self.w.line("const int n = least(W, end - q);")
            self.tile("order[q + r]")
            self.w.line("tile += n;")

    def find(self, operand: str, row: str, array: str = "") -> None:
        """The pointers to an operand's rows of a tile."""
        self.w.line(f"for (int r = 0; r < n; ++r) {{ const i64 e = {row}; {array}[r] = {self.place(operand)}; }}")

    def place(self, name: str) -> str:
        """Address at which row ``e`` of the product reads a slot, or writes an open one."""
        operand = name.removeprefix("d_").partition("_")[0]
        if operand == "w" and self.p.schedule.shared_weights:
            return name
        index = {"x1": "src[e]", "out": "dst[e]"}.get(operand, "e") if self.indexed else "e"
        return f"{name} + {index} * {self.p.dim[operand]}"

    def before_owners(self) -> None:
        """Nothing outlives a tile."""

    def tile(self, row: str) -> None:
        """The tables of a tile."""
        names = [identifier(slot) for slot in self.p.tabulated_slots]
        for o in names:
            self.w.line(f"const real* p_{o}[W] = {{}};")
            self.find(o, row, f"p_{o}")
        if names:
            self.w.line(self.tabulation())

    def tabulation(self) -> str:
        """The call that fills the tables of a tile."""
        places = [part for o in map(identifier, self.p.tabulated_slots) for part in (f"p_{o}", f"t_{o}")]
        return f"tabulate({', '.join(['n', *self.p.table_areas, *places])});"

    def areas(self, row: str) -> dict[str, str]:
        """Arguments of a row that several rows share, by name: its lane of the tables, and shared weights."""
        areas = {name: f"{name} + {row}" for name in self.p.table_areas}
        return areas | {f"s_{identifier(slot)}": weights_area(slot) for slot in self.p.given_weights}

    def rows(self) -> None:
        with self.w.block("for (int r = 0; r < n; ++r)"):
            self.w.line("const i64 e = q + r;")
            self._row("r")

    def owned_rows(self) -> None:
        with self.w.block("for (; q < first[o + 1]; ++q)"):
            if self.p.tabulated_slots:
                self.next_tile()
            self.w.line("const i64 e = order[q];")
            self._row("(q - first[from]) % W")

    def _row(self, lane: str) -> None:
        names = [*map(identifier, self.p.call_slots), *(f"d_{o}" for o in self.p.opened)]
        values = self.areas(lane) | {name: self.place(name) for name in names}
        self.w.line(f"row({', '.join(values.get(name, name) for _, name in self.arguments)});")
