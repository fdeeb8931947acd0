"""The functions that fetch the rows of a step and take its results away."""

from __future__ import annotations

from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.cuda.steps import RowSteps
from tpgen.kernels.sweep.terms import SLOTS

ENDS = {"x1": "src", "out": "dst"}  # of an edge, whose rows these are


class RowsText:
    """Rows side by side are copied at once; those that edges find, each by itself."""

    def __init__(self, placement: RowSteps, w: Writer) -> None:
        self.p, self.w = placement, w

    def _row_of(self, operand: str, prefix: str = "") -> str:
        """The first row of a step in an operand."""
        nodes = not (prefix and operand in self.p.scattered)
        index = f"ends[r].{ENDS.get(operand, 'edge') if nodes else 'edge'}" if self.p.indexed else "q"
        return f"call.{prefix}{operand} + {index} * {self.p.dim[operand]}"

    @property
    def _which(self) -> str:
        """Write the function that counts the rows of a step."""
        return "const Ends* ends" if self.p.indexed else "i64 q"

    def write_call(self) -> None:
        """Write the structure that the kernel is called with."""
        w = self.w
        with w.block("struct Call", "};"):
            w.line(f"const real {', '.join('*' + o for o in SLOTS)};")
            w.line(f"real {', '.join('*d_' + o for o in SLOTS)};")
            w.line("i64 rows, owners;")
            w.line("const i64 *order, *src, *dst;  // of edges: those of each owner together, and what they join")
            w.line("num *sums, *ends;  // of blocks: of weights, and of owners at the ends of their runs")

    def write_fetch(self) -> None:
        p, w = self.p, self.w
        with w.block("DEVICE int rows_of(i64 q, i64 end)"):
            w.line("return end - q < ROWS ? (int)(end - q) : ROWS;")
        with w.block(
            f"DEVICE void fetch_rows(const Call& call, unsigned char* stage, u64* barrier, {self._which}, const int n)"
        ):
            if p.indexed:
                self._fetch_edges()
            else:
                self._fetch_block()

    def _fetch_block(self) -> None:
        """Rows that stand side by side."""
        p, w = self.p, self.w
        whole = [o for o in p.row_operands if p.whole(o)]
        with w.block("if (n == ROWS)" if p.rows > 1 else ""):
            w.line(f"fetch_begin(barrier, {sum(p.row_bytes(o) for o in whole) * p.rows});")
            for o in p.row_operands:
                self._fetch_one(o, o in whole)
        if p.rows > 1:
            with w.block("else"):
                w.line("fetch_begin(barrier, 0);")
                for o in p.row_operands:
                    self._fetch_one(o, False)

    def _fetch_one(self, operand: str, whole: bool) -> None:
        p, place = self.p, f"stage + {self.p.stage[operand]}"
        if whole:
            self.w.line(f"fetch({place}, {self._row_of(operand)}, {p.row_bytes(operand) * p.rows}, barrier);")
        else:
            count = f"n * {p.dim[operand]}" if p.rows > 1 else p.dim[operand]
            self.w.line(f"fetch_numbers((real*)({place}), {self._row_of(operand)}, {count});")

    def _fetch_edges(self) -> None:
        """Rows that stand apart: whole ones each by itself, short ones by all threads."""
        p, w = self.p, self.w
        whole, short = ([o for o in p.row_operands if p.whole(o) == yes] for yes in (True, False))
        w.line(f"fetch_begin(barrier, n * {sum(map(p.row_bytes, whole))});")
        for operands, head in (
            (whole, "int r = first_row(); r < n; r = next_row(r)"),
            (short, "int r = 0; r < n; ++r"),
        ):
            if operands:
                w.raw("#pragma unroll 1")  # few threads have a row at all
                with w.block(f"for ({head})"):
                    for o in operands:
                        self._fetch_edge(o, o in whole)

    def _fetch_edge(self, operand: str, whole: bool) -> None:
        p, place = self.p, f"stage + {self.p.stage[operand]} + r * {self.p.row_bytes(operand)}"
        if whole:
            self.w.line(f"fetch_row({place}, {self._row_of(operand)}, {p.row_bytes(operand)}, barrier);")
        else:
            self.w.line(f"fetch_numbers((real*)({place}), {self._row_of(operand)}, {p.dim[operand]});")

    def write_deliver(self) -> None:
        p, w = self.p, self.w
        with w.block(f"DEVICE void deliver_rows(const Call& call, const Step& s, {self._which}, const int n)"):
            w.line("deliver_begin();")
            whole = [o for o in p.results if p.whole(o) and not p.added(o)]
            if p.indexed:
                self._deliver_edges(whole)
            else:
                for o in p.results:
                    self._deliver_block(o, o in whole)
            w.line("deliver_end();")

    def _deliver_block(self, operand: str, whole: bool) -> None:
        p, place, dim = self.p, self._row_of(operand, "d_"), self.p.dim[operand]
        slow = f"{'write_out' if p.added(operand) else 'copy'}({place}, s.d_{operand}, n * {dim});"
        if whole:
            self.w.line(f"if (n == ROWS) deliver({place}, s.d_{operand}, {p.row_bytes(operand) * p.rows});")
        self.w.line(f"else {slow}" if whole else slow)

    def _deliver_edges(self, whole: list[str]) -> None:
        p, w = self.p, self.w
        rest = [o for o in p.results if o not in whole]
        for operands, head in ((whole, "int r = first_row(); r < n; r = next_row(r)"), (rest, "int r = 0; r < n; ++r")):
            if operands:
                w.raw("#pragma unroll 1")  # few threads have a row at all
                with w.block(f"for ({head})"):
                    for o in operands:
                        place, here = self._row_of(o, "d_"), f"s.d_{o} + r * {p.dim[o]}"
                        if o in whole:
                            w.line(f"deliver_row({place}, {here}, {p.row_bytes(o)});")
                        else:
                            w.line(f"{'write_out' if p.added(o) else 'copy'}({place}, {here}, {p.dim[o]});")
