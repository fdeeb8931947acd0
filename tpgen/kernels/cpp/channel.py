"""C++ of the channel schedule: one sweep over the rows, vectors over channels.

Per row: stage what is touched more than once, run the paths, write the accumulated gradients.  A path with a tabulated
operand (``T[a, k]``, see `tpgen.kernels.schedule.values.Table`) computes, for the open slots asked for,

    P[k] = sum_a x[a] T[a, k]        out[k] += w P[k]
    Q[a] = sum_k T[a, k] g[k]        dx[a]  += w Q[a]       dw = sum_a x[a] Q[a]
    S[a, k] += x[a] w g[k]           over channels; summed over lanes once per row

where S, folded with the coupling, is the gradient of the tabulated operand.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpgen.kernels.cpp.channel_vectors import ChannelVectors
from tpgen.kernels.cpp.couple import Names, couple
from tpgen.kernels.cpp.text import Writer, times, total
from tpgen.kernels.schedule.values import SLOTS, ChannelTerm, Table, View


class ChannelText(ChannelVectors):
    """Writes the functions of one direction: the ``opened`` slots, and the slot that owns the rows of a gather."""

    # -- tables --

    def write_tables(self) -> None:
        operands = [o for o in self.s.scalar_operands if self.tabulated(o)]
        arguments = "".join(f", const real* const* p_{o}, num* t_{o}" for o in operands)
        with self.w.block(f"static void tabulate(int n, num* T{arguments})"):
            for o in operands:
                with self.w.block("for (int r = 0; r < W; ++r)"):
                    for start, size in self.scalars(o):
                        self.w.line(
                            f"for (int e = {start}; e < {start + size}; ++e) "
                            f"t_{o}[e * W + r] = r < n ? widen(p_{o}[r][e]) : 0;"
                        )
            for index, table in enumerate(self.s.tables):
                if table.operand in operands:
                    self._table(index, table)

    def _table(self, index: int, table: Table) -> None:
        paths = [t.path for t in self.s.terms if t.table == index]
        letter = table.vector_letter
        with self.w.paths(*paths):
            self.w.line(f"// T[{letter}, k] of path{'s' * (len(paths) > 1)} {', '.join(map(str, paths))}")
            with self.w.block(f"for (int v = 0; v < {table.copies}; ++v)"):
                self.w.line(f"const num* x = t_{table.operand} + ({table.start} + v * {table.copy_stride}) * W;")
                self.w.line(f"num* t = T + ({table.offset} + v * {len(table.pairs)}) * W;")
                for n in sorted({e.at(table.scalar_letter) for e in table.entries}):
                    self.w.line(f"const vec x{n} = load(x + {n * table.index_stride} * W);")
                for n, (a, k) in enumerate(table.pairs):
                    terms = [
                        times(e.value, f"x{e.at(table.scalar_letter)}", self.dtype)
                        for e in table.entries
                        if (e.at(letter), e.k) == (a, k)
                    ]
                    self.w.line(f"store(t + {n} * W, {total(terms)});")

    # -- one row --

    def row_arguments(self) -> list[tuple[str, str]]:
        """Type and name of what the row function takes."""
        arguments = [("const real*", o) for o in self.given]
        arguments += [("real*", f"d_{o}") for o in self.opened]
        arguments += [("const num*" if name == "T" else "num*", name) for name in self.scratch()]
        if self.s.shared_weights and self.reads_scratch("w"):
            arguments.append(("const num*", "s_w"))
        if self.s.shared_weights and "w" in self.opened:
            arguments.append(("num*", "a_w"))
        return arguments

    def write_row(self) -> None:
        arguments = ", ".join(f"{kind} {name}" for kind, name in self.row_arguments())
        with self.w.block(f"static void row({arguments})"):
            for operand in self.given:
                if not self.carried(operand) or (operand == self.owner):
                    self._stage(operand)
            self._clear()
            written: set[View] = set()
            for term in self.s.terms:
                if self._live(term):
                    self._term(term, written)
            for operand in self.opened:
                if not self.carried(operand):
                    self.write_out(operand)

    def _stage(self, operand: str) -> None:
        for view in self._views(operand):
            if self.staged(view):
                self.w.line(
                    f"stage<{view.outer}, {view.channels}, {view.inner}>"
                    f"({operand} + {view.start}, s_{operand} + {view.scratch});"
                )

    def _live(self, term: ChannelTerm) -> bool:
        return any(slot != "w" or term.view("w") for slot in self.opened)

    def _clear(self) -> None:
        first: dict[View, ChannelTerm] = {}
        for term in self.s.terms:
            for view in term.views:
                first.setdefault(view, term)
        for view, term in first.items():
            if view.operand in self.opened and not self.carried(view.operand) and not self._assigns(view, term):
                self.w.line(f"clear(a_{view.operand} + {view.scratch}, {view.size});")
        for operand in self.s.scalar_operands:
            if operand in self.opened and not self.carried(operand):
                for start, size in self.scalars(operand):
                    self.w.line(f"clear(r_{operand} + {start} * W, {size} * W);")

    def write_out(self, operand: str, source: str | None = None) -> None:
        """Scratch to memory for one operand's open slot, and zeros where no path writes."""
        reached: list[tuple[int, int]] = list(self.scalars(operand)) if operand in self.s.scalar_operands else []
        for start, size in reached:
            self.w.line(
                f"for (int e = {start}; e < {start + size}; ++e) "
                f"d_{operand}[e] = narrow(lane_sum(load(r_{operand} + e * W)));"
            )
        for view in self._views(operand):
            size = view.outer * view.channels * view.inner
            reached.append((view.start, size))
            if self.staged(view):
                shape = f"<{view.outer}, {view.channels}, {view.inner}>"
                self.w.line(f"unstage{shape}({source or f'a_{operand}'} + {view.scratch}, d_{operand} + {view.start});")
        for start, size in gaps(reached, self.dim[operand]):
            self.w.line(f"zero(d_{operand} + {start}, {size});")

    # -- one path --

    def _term(self, term: ChannelTerm, written: set[View]) -> None:
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            with self.w.block(f"for (int v = 0; v < {term.loop[1]}; ++v)"):
                body = self._scaled if term.scalar else self._elementwise
                body(term, written)

    def _channels(self, term: ChannelTerm) -> str:
        return f"for (int c = 0; c < {term.views[0].padded}; c += W)"

    def _elementwise(self, term: ChannelTerm, written: set[View]) -> None:
        with self.w.block(self._channels(term)):
            names = {o: self._fetch(term, o, self._used(term, o)) for o in self.given if term.view(o)}
            results = couple(self.w, term.entries, self.opened, Names(*(names.get(o, "") for o in SLOTS)), self.dtype)
            for operand, values in results.items():
                self._deliver(term, operand, values, written)

    def _scaled(self, term: ChannelTerm, written: set[View]) -> None:
        assert term.scalar is not None
        assert term.table is not None
        table = self.s.tables[term.table]
        vector = "x2" if term.scalar == "x1" else "x1"
        sums = term.scalar in self.opened
        if self.tabulated(term.scalar):
            self.w.line(f"const num* t = T + ({table.offset} + v * {len(table.pairs)}) * W;")
        if sums:
            self.w.line(f"vec s[{len(table.pairs)}] = {{}};")
        with self.w.block(self._channels(term)):
            self._scaled_body(term, table, vector, written)
        if sums:
            self._reduce(table)

    def _scaled_body(self, term: ChannelTerm, table: Table, vector: str, written: set[View]) -> None:
        pairs = {pair: n for n, pair in enumerate(table.pairs)}
        columns, rows = sorted({k for _, k in pairs}), sorted({a for a, _ in pairs})
        weighted = term.view("w") is not None
        wants = {o: o in self.opened for o in SLOTS}
        by_q = wants[vector] or (wants["w"] and weighted and not wants["out"])
        need_x = any(o != vector for o in self.opened)
        need_g = any(o != "out" for o in self.opened)
        x = self._fetch(term, vector, rows) if need_x and vector in self.given else ""
        g = self._fetch(term, "out", columns) if need_g and "out" in self.given else ""
        need_w = weighted and "w" in self.given and any(o != "w" for o in self.opened)
        u = self._fetch(term, "w", [0]) if need_w else ""

        def scaled(text: str) -> str:
            return f"{u}[0] * {text}" if u else text

        if wants["out"] or (wants["w"] and weighted and not by_q):
            for k in columns:
                self.w.line(
                    f"const vec p{k} = {total([f'{x}[{a}] * t[{pairs[a, k]} * W]' for a in rows if (a, k) in pairs])};"
                )
        if by_q:
            for a in rows:
                self.w.line(
                    f"const vec q{a} = "
                    f"{total([f'{g}[{k}] * t[{pairs[a, k]} * W]' for k in columns if (a, k) in pairs])};"
                )
        if wants["out"]:
            self._deliver(term, "out", {k: scaled(f"p{k}") for k in columns}, written)
        if wants[vector]:
            self._deliver(term, vector, {a: scaled(f"q{a}") for a in rows}, written)
        if wants["w"] and weighted:
            parts = [f"{x}[{a}] * q{a}" for a in rows] if by_q else [f"p{k} * {g}[{k}]" for k in columns]
            self._deliver(term, "w", {0: total(parts)}, written)
        if wants[term.scalar]:  # type: ignore[index]
            for k in columns:
                self.w.line(f"const vec h{k} = {scaled(f'{g}[{k}]')};")
            for (a, k), n in pairs.items():
                self.w.line(f"s[{n}] += {x}[{a}] * h{k};")

    def _reduce(self, table: Table) -> None:
        """Fold S with the coupling into the vectors of the tabulated operand."""
        pairs = {pair: n for n, pair in enumerate(table.pairs)}
        for b in sorted({e.at(table.scalar_letter) for e in table.entries}):
            terms = [
                times(e.value, f"s[{pairs[e.at(table.vector_letter), e.k]}]", self.dtype)
                for e in table.entries
                if e.at(table.scalar_letter) == b
            ]
            place = f"{table.start} + v * {table.copy_stride} + {b * table.index_stride}"
            self.w.line(f"add(r_{table.operand} + ({place}) * W, {total(terms)});")

    # -- blocks of rows --

    def tiles(self) -> set[int]:
        """Tile widths that some view needs."""
        return {v.inner for v in self.s.views}

    def write(self) -> None:
        self.write_tables()
        self.write_row()
        if self.owner:
            arguments = f"real* d_{self.owner}" + "".join(f", const num* {name}" for name in self._sums_of_owner())
            with self.w.block(f"static void finish({arguments})"):
                self.write_out(self.owner)

    def _sums_of_owner(self) -> list[str]:
        return [name for name in self.scratch() if name in (f"a_{self.owner}", f"r_{self.owner}")]

    def weight_scratch(self) -> int:
        return self.s.scratch_size("w") if self.s.shared_weights else 0

    def write_weights(self, w: Writer, reduce: bool) -> None:
        """Shared weights into scratch; or the blocks' parts of their gradient, summed in block order, out of it."""
        if not reduce:
            for v in self._views("w"):
                w.line(f"stage<{v.outer}, {v.channels}, {v.inner}>(w + {v.start}, weights + {v.scratch});")
            return
        write_block_sums(w, self.weight_scratch())
        self.write_out("w", "sums")

    def write_rows(self, w: Writer, indexed: bool) -> None:
        if self.owner:
            self._owned_rows(w)
            return
        w.line("const i64 end = least(rows, (b + 1) * span);")
        with w.block("for (i64 q = b * span; q < end; q += W)"):
            w.line("const int n = least(W, end - q);")
            self._tabulate(w, "q + r", indexed)
            with w.block("for (int r = 0; r < n; ++r)"):
                w.line("const i64 e = q + r;")
                w.line(f"row({self._row_call(indexed, 'r')});")

    def _owned_rows(self, w: Writer) -> None:
        w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
        w.line("const i64 end = first[to];")
        w.line("i64 q = first[from], tile = q;")
        sums = self._sums_of_owner()
        with w.block("for (i64 o = from; o < to; ++o)"):
            for name in sums:
                w.line(f"clear({name}, {self.scratch()[name]});")
            with w.block("for (; q < first[o + 1]; ++q)"):
                if any(self.tabulated(o) for o in self.s.scalar_operands):
                    with w.block("if (q == tile)"):
                        w.line("const int n = least(W, end - q);")
                        self._tabulate(w, "order[q + r]", True)
                        w.line("tile += n;")
                w.line("const i64 e = order[q];")
                w.line(f"row({self._row_call(True, '(q - first[from]) % W')});")
            w.line(f"finish(d_{self.owner} + o * {self.dim[self.owner or '']}{''.join(', ' + name for name in sums)});")

    def _tabulate(self, w: Writer, row: str, indexed: bool) -> None:
        operands = [o for o in self.s.scalar_operands if self.tabulated(o)]
        for o in operands:
            w.line(f"const real* p_{o}[W] = {{}};")
            w.line(f"for (int r = 0; r < n; ++r) {{ const i64 e = {row}; p_{o}[r] = {self._row_of(o, indexed)}; }}")
        if operands:
            w.line(f"tabulate(n, T{''.join(f', p_{o}, t_{o}' for o in operands)});")

    def _row_of(self, operand: str, indexed: bool, prefix: str = "") -> str:
        """Pointer to the row of an operand that row ``e`` of the product reads or writes."""
        if operand == "w" and self.s.shared_weights:
            return f"{prefix}w"
        index = {"x1": "src[e]", "out": "dst[e]"}.get(operand, "e") if indexed else "e"
        return f"{prefix}{operand} + {index} * {self.dim[operand]}"

    def _row_call(self, indexed: bool, lane: str) -> str:
        values = {"T": f"T + {lane}", "s_w": "weights" if self.s.shared_weights else "s_w"}
        for o in SLOTS:
            values[o] = self._row_of(o, indexed)
            values[f"d_{o}"] = self._row_of(o, indexed, "d_")
        return ", ".join(values.get(name, name) for _, name in self.row_arguments())


def gaps(reached: Iterable[tuple[int, int]], dim: int) -> list[tuple[int, int]]:
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


def write_block_sums(w: Writer, size: int) -> None:
    """Add the sums of all blocks to those of the first, in block order."""
    w.line(f"if (!blocks) clear(sums, {size});")
    w.line(
        f"for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < {size}; m += W) "
        f"add(sums + m, load(sums + b * {size} + m));"
    )
