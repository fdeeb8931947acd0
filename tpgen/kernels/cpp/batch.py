"""Write the C++ of the batch schedule: vectors over rows, scratch as ``[copy][irrep axis][R rows]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tpgen.form.form import Term
from tpgen.kernels.cpp.expressions import RegisterSums, Spelling
from tpgen.kernels.cpp.text import Writer, add_block_sums, found_row, literal
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.values import ScratchSegment
from tpgen.kernels.sweep.statements import Statement, SweepStage
from tpgen.kernels.sweep.sweep import PathSweep
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, D, P

LOCAL = {"x1": "x", "x2": "y", "w": "weight", "out": "g", P: "c", D: "d"}
_ROWS = "for (int r = 0; r < R; r += W)"


def stores_rows(p: BatchPlacement, operand: str) -> str:
    """Name the C++ function that stores a tile's rows of an open slot, or adds to the rows of owners."""
    return "add_rows" if operand == p.owner else "unstage_rows"


def multiply_call(p: BatchPlacement, columns: str) -> str:
    """Begin a call of the matrix product with columns of tile rows."""
    return f"multiply_columns({columns}, " if p.shortens_tiles else f"multiply<{columns}>("


def load_columns(w: Writer, name: str, count: int, base: str, times: str = "") -> None:
    """Write an array of ``count`` vectors of consecutive components."""
    values = " ".join(f"{name}[{n}] = {times}load({base} + {n} * R + r);" for n in range(count))
    w.line(f"vec {name}[{count}]; {values}")


def add_weight_gradient(
    w: Writer, term: Term, whole: int, into: str, left: tuple[str, str], right: tuple[str, str], columns: str
) -> None:
    """Write the sum over tile rows of ``left`` times ``right``, for each pair of copies.

    ``left`` is an array and its copies, ``right`` an array and its transpose.  The first ``whole`` output copies are
    vectors of the transpose; the rest are sums over lanes.
    """
    copies, (array, rows), (other, flipped) = term.size(term.mode.mixing), left, right
    if whole:
        given = f"{array}, {columns}, 1, {flipped}, {whole}, {rows}, {columns}"
        w.line(f"multiply<{whole}>(true, {into}, {copies}, {given});")
    if whole < copies:
        given = f"{array}, {other}{f' + {whole} * {columns}' if whole else ''}"
        w.line(f"correlate({into} + {whole}, {copies}, {given}, {rows}, {copies - whole}, {columns});")


class BatchVectors:
    """Writes statements of one path with vectors over rows."""

    def __init__(self, placement: BatchPlacement, term: Term, w: Writer) -> None:
        self.p, self.term, self.w = placement, term, w
        self.sides = placement.sides(term)
        arrays = {o: f"{name}[{{}}]" for o, name in LOCAL.items()}
        self.spelling = Spelling(placement.schedule.target.dtype, arrays)

    def start(self, operand: str) -> int:
        return self.p.schedule.start(self.term, operand)

    def body(self, statements: tuple[Statement, ...], weight: str = "") -> None:
        """Write statements and the stores of their sums; ``weight`` is the address of a weight."""
        sums = RegisterSums(self.w)
        sums.write(statements, self.spelling, partial(self._write_load, weight))
        for operand, values in sums.found.items():
            for n, value in values.items():
                place = f"{self._copy_address(operand)} + {n} * R + r" if operand != "w" else weight
                self._write_store_of_sum(operand, place, value)

    def _write_store_of_sum(self, operand: str, place: str, value: str) -> None:
        if operand in BETWEEN:
            self.w.line(f"store({operand} + {place}, {value});")
        elif operand != "w":
            self.w.line(f"add(a_{operand} + {place}, {value});")
        elif self.p.row_weights:
            self.w.line(f"store(a_w + {place}, {value});")
        else:
            self.w.line(f"a_w[{place}] += lane_sum({value});")

    def _write_load(self, weight: str, operand: str, indices: list[int]) -> None:
        if operand == "w":
            value = f"load(s_w + {weight})" if self.p.row_weights else f"vec{{}} + weights[{weight}]"
            self.w.line(f"const vec weight[1] = {{{value}}};")
            return
        name, area = LOCAL[operand], operand if operand in BETWEEN else f"s_{operand}"
        values = " ".join(f"{name}[{n}] = load({area} + {self._copy_address(operand)} + {n} * R + r);" for n in indices)
        self.w.line(f"vec {name}[{self.term.size(INDEX.get(operand, self.sides.axis))}]; {values}")

    def _copy_index(self, operand: str) -> str:
        # the copy of an operand's segment at the current loop letters
        mode = self.term.mode
        if self.term.pairs and operand != "out":
            return f"pair_{'a' if operand == 'x1' else 'b'}[p]"
        return self.position({"x1": mode.in1, "x2": mode.in2, "out": mode.out}[operand])

    def _copy_address(self, operand: str) -> str:
        # start of ``[irrep axis][R]`` of the current copy; P and D hold a block of copies
        if operand in BETWEEN:
            copies = self.sides.copies
            first = copies[0]
            return f"{self.position(copies, f'({first} - {first}0)')} * {self.term.size(self.sides.axis)} * R"
        return f"({self.start(operand)} + {self._copy_index(operand)} * {self.term.size(INDEX[operand])}) * (i64)R"

    def position(self, letters: str, first: str = "") -> str:
        """Write the flat index of copies ``letters``; ``first`` replaces the first letter."""
        text = first or letters[0]
        for a in letters[1:]:
            text = f"({text} * {self.term.size(a)} + {a})"
        return text

    def loops(self, letters: str) -> str:
        return " ".join(f"for (int {a} = 0; {a} < {self.term.size(a)}; ++{a})" for a in letters)

    def each(self, *parts: str) -> AbstractContextManager[None]:
        return self.w.block(" ".join(part for part in parts if part))

    @contextmanager
    def staged_weights(self, first: str, start: str, end: str) -> Iterator[None]:
        """Write a loop over first copies that moves weights of each row through scratch."""
        chunk, step = self.p.chunk(self.term), self.p.staged(self.term)
        with self.w.block(f"for (int {first}2 = {start}; {first}2 < {end}; {first}2 += {step})"):
            self.w.line(f"const int {first}3 = least({end}, {first}2 + {step});")
            place = f"n, {self.start('w')} + {first}2 * {chunk}, ({first}3 - {first}2) * {chunk}"
            if "w" in self.p.given:
                self.w.line(f"stage_rows(p_w, R, {place}, s_w, 1);")
            with self.w.block(f"for (int {first} = {first}2; {first} < {first}3; ++{first})"):
                yield
            if "w" in self.p.opened:
                self.w.line(f"{stores_rows(self.p, 'w')}(a_w, q_w, R, {place}, 1);")


class MixingText:
    """Writes a path that mixes copies: P, products with the weights, D."""

    def __init__(self, placement: BatchPlacement, path: PathSweep, w: Writer) -> None:
        self.p, self.path, self.w, self.term = placement, path, w, path.term
        self.vectors = BatchVectors(placement, path.term, w)
        self.sides = sides = placement.sides(path.term)
        self.first = sides.copies[0]
        self.inner = path.term.size(sides.copies[1:])  # copies that share their first one
        self.k, self.mixed = path.term.size(sides.axis), path.term.size(sides.mixed)
        self.steps = [path.term.size(path.term.mode.weight.partition(a)[2]) for a in (sides.copies[-1], sides.mixed)]
        self.far = f"_{sides.far} + {self.vectors.start(sides.far)} * (i64)R"  # behind s, or a where it is open
        self.adds = sides.far in placement.opened
        self.needs_p, self.needs_d = placement.needs_p(path.term), placement.needs_d(path.term)
        self.behind = placement.mixes_first(path.term)

    def write(self) -> None:
        """Write the path in blocks of copies."""
        first, size, step = self.first, self.term.size(self.first), self.p.block(self.term) // self.inner
        whole = self.p.flipped(self.term)
        if whole and not self.behind:
            self.w.line(f"flip(s{self.far}, G, {whole}, {self.k} * R);")
        with self.w.block(f"for (int {first}0 = 0; {first}0 < {size}; {first}0 += {step})"):
            self.w.line(f"const int {first}1 = least({size}, {first}0 + {step});")
            if self.needs_p:
                self._write_coupling_stage(self.path.stages[0])
            self._mix_copies()
            if self.needs_d:
                self._write_coupling_stage(self.path.stages[-1])

    def _each_copy(self) -> AbstractContextManager[None]:
        first = self.first
        loop = f"for (int {first} = {first}0; {first} < {first}1; ++{first})"
        return self.vectors.each(loop, self.vectors.loops(self.sides.copies[1:]), _ROWS)

    def _write_coupling_stage(self, stage: SweepStage) -> None:
        with self._each_copy():
            self.vectors.body(stage.statements)

    def _mix_copies(self) -> None:
        if not self.term.weighted:
            self._mix_unweighted()
        elif self.p.row_weights:
            self._mix_with_row_weights()
        else:
            self._mix_with_shared_weights()

    def _mix_unweighted(self) -> None:
        # unweighted mixing: every input copy goes to the single output copy
        position = self.vectors.position(self.term.inputs, f"({self.first} - {self.first}0)")
        with self._each_copy():
            for n in range(self.k):
                place = f"({position} * {self.k} + {n}) * R + r"
                if self.adds:
                    self.w.line(f"add(a{self.far} + {n} * R + r, load(P + {place}));")
                if self.needs_d:
                    self.w.line(f"store(D + {place}, load(s{self.far} + {n} * R + r));")

    def _mix_with_shared_weights(self) -> None:
        first, mixed, columns, (step, far_step) = self.first, self.mixed, f"{self.k} * R", self.steps
        self.w.line(f"const int count = ({first}1 - {first}0) * {self.inner};")
        at = f"{self.vectors.start('w')} + {first}0 * {self.inner * step}"
        if self.adds:
            self._write_matrix_product(
                f"a{self.far}", f"weights + {at}, {far_step}, {step}", "P", f"{mixed}, count", columns
            )
        if "w" in self.p.opened:
            self._write_weight_gradient(f"a_w + {at}", columns)
        if self.needs_d:
            given = f"weights + {at}, {step}, {far_step}", f"s{self.far}"
            self._write_matrix_product("D", *given, f"count, {mixed}", columns, add=False)

    def _write_weight_gradient(self, into: str, columns: str) -> None:
        # rows of weights are copies of input 1: those of P, or of the far side where copies mix first
        far, whole = f"s{self.far}", self.p.flipped(self.term)
        if not self.behind:
            add_weight_gradient(self.w, self.term, whole, into, ("P", "count"), (far, "G"), columns)
            return
        if whole:
            self.w.line(f"flip(P, G, {whole}, {columns});")
        add_weight_gradient(self.w, self.term, whole, into, (far, str(self.mixed)), ("P", "G"), columns)

    def _write_matrix_product(
        self, into: str, left: str, right: str, sizes: str, columns: str, add: bool = True
    ) -> None:
        # a product of matrices with consecutive rows, which replaces ``into`` or is added to it
        flag = "true" if add else "false"
        function = multiply_call(self.p, columns)
        self.w.line(f"{function}{flag}, {into}, {columns}, {left}, {right}, {columns}, {sizes});")

    def _mix_with_row_weights(self) -> None:
        first, k = self.first, self.k
        with (
            self.vectors.staged_weights(first, f"{first}0", f"{first}1"),
            self.w.block(f"for (int m = 0; m < {self.inner}; ++m) {_ROWS}"),
        ):
            block = f"((({first} - {first}0) * {self.inner} + m) * {k})"
            if self.needs_p:
                load_columns(self.w, "c", k, f"P + {block} * R")
            if self.needs_d:
                self.w.line(f"vec d[{k}] = {{}};")
            with self.w.block(self.vectors.loops(self.sides.mixed)):
                self._write_one_row_weight(
                    f"((({first} - {first}2) * {self.inner} + m) * {self.mixed} + {self.sides.mixed}) * R + r"
                )
            if self.needs_d:
                for n in range(k):
                    self.w.line(f"store(D + ({block} + {n}) * R + r, d[{n}]);")

    def _write_one_row_weight(self, at: str) -> None:
        out = f"({self.vectors.start('out')} + {self.sides.mixed} * {self.k}) * (i64)R"
        if self.p.opened != ("w",):
            self.w.line(f"const vec weight = load(s_w + {at});")
        if self.p.opened != ("out",):
            load_columns(self.w, "g", self.k, f"s_out + {out}")
        for n in range(self.k):
            if self.adds:
                self.w.line(f"add(a_out + {out} + {n} * R + r, weight * c[{n}]);")
            if self.needs_d:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "w" in self.p.opened:
            self.w.line(f"store(a_w + {at}, {' + '.join(f'c[{n}] * g[{n}]' for n in range(self.k))});")


class OwnWeightsText:
    """Writes a path with many scalars as input 2: first each row's own weights, then products."""

    def __init__(self, placement: BatchPlacement, term: Term, w: Writer) -> None:
        self.p, self.term, self.w = placement, term, w
        self.k, self.v, self.mixed = term.size("k"), term.size("v"), term.size("w")
        starts = BatchVectors(placement, term, w)
        self.at = f"{starts.start('w')} + u * {self.v * self.mixed}"
        self.x, self.y, self.out = (f"{starts.start(o)} * (i64)R" for o in ("x1", "x2", "out"))
        self.c = literal(term.entries[0].value, placement.schedule.target.dtype)
        self.opened = placement.opened

    def write(self) -> None:
        """Write the path's loop over copies of input 1."""
        with self.w.block(f"for (int u = 0; u < {self.term.size('u')}; ++u)"):
            if "own" in self.p.scratch:
                place = f"weights + {self.at}, 1, {self.mixed}, s_x2 + {self.y}, R, {self.mixed}, {self.v}"
                self.w.line(f"{multiply_call(self.p, 'R')}false, own, R, {place});")
            with self.w.block(_ROWS):
                self._write_products_of_rows()
            if "w" in self.opened:
                self._write_weight_gradients()
            if "x2" in self.opened:
                place = f"weights + {self.at}, {self.mixed}, 1, d_own, R, {self.v}, {self.mixed}"
                self.w.line(f"{multiply_call(self.p, 'R')}true, a_x2 + {self.y}, R, {place});")

    def _write_products_of_rows(self) -> None:
        x = f"{self.x} + (u * {self.k}) * R"
        if self.opened != ("x1",):
            load_columns(self.w, "x", self.k, f"s_x1 + {x}", f"{self.c} * ")
        if "x1" in self.opened:
            self.w.line(f"vec d[{self.k}] = {{}};")
        with self.w.block(f"for (int w = 0; w < {self.mixed}; ++w)"):
            self._write_products_of_output_copy(f"{self.out} + (w * {self.k}) * R")
        if "x1" in self.opened:
            for n in range(self.k):
                self.w.line(f"add(a_x1 + {x} + {n} * R + r, {self.c} * d[{n}]);")

    def _write_products_of_output_copy(self, out: str) -> None:
        if "own" in self.p.scratch:
            self.w.line("const vec weight = load(own + w * R + r);")
        if self.opened != ("out",):
            load_columns(self.w, "g", self.k, f"s_out + {out}")
        for n in range(self.k):
            if "out" in self.opened:
                self.w.line(f"add(a_out + {out} + {n} * R + r, weight * x[{n}]);")
            if "x1" in self.opened:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "d_own" in self.p.scratch:
            self.w.line(f"store(d_own + w * R + r, {' + '.join(f'x[{n}] * g[{n}]' for n in range(self.k))});")

    def _write_weight_gradients(self) -> None:
        whole = self.p.flipped(self.term)
        if whole:
            self.w.line(f"flip(d_own, flipped, {whole}, R);")
        y, own = (f"s_x2 + {self.y}", str(self.v)), ("d_own", "flipped")
        add_weight_gradient(self.w, self.term, whole, f"a_w + {self.at}", y, own, "R")


class BatchText:
    """Writes the C++ functions of one batch placement."""

    def __init__(self, placement: BatchPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w

    def write_functions(self) -> None:
        """Write the static functions that the driver calls for its rows."""
        for path in self.p.sweep.paths:
            self._write_path_function(path)
        self._write_tile_function()

    def _arguments(self) -> list[tuple[str, str]]:
        arguments = [("int", "R")] * self.p.shortens_tiles + [("num*", name) for name in self.p.scratch]
        if self.p.row_weights:
            arguments += [("const real* const*", "p_w")] * ("w" in self.p.given)
            arguments += [("real* const*", "q_w")] * ("w" in self.p.opened)
        else:
            arguments += [("const num*", "weights")] * ("w" in self.p.given and self.p.dim["w"] > 0)
            arguments += [("num*", "a_w")] * ("w" in self.p.opened)
        return arguments

    def _write_tile_function(self) -> None:
        given = [("const real* const*", f"p_{o}") for o in self.p.given if o != "w"]
        opened = [("real* const*", f"q_{o}") for o in self.p.opened if o != "w"]
        arguments = ", ".join(f"{kind} {name}" for kind, name in [("int", "n"), *given, *opened, *self._arguments()])
        segments = dict(self.s.segments)
        with self.w.part("function tile"), self.w.block(f"static void tile({arguments})"):
            for o in self.p.given:
                for s in segments.get(o, ()):
                    self._move_segment("stage_rows(p_{0}, R, n, {1}, {2}, s_{0} + {3} * R, {4});", o, s)
            for o in self.p.opened:
                if o != "w":
                    self.w.line(f"clear(a_{o}, {self.p.dim[o]} * R);")
            names = "".join(f", {name}" for _, name in self._arguments())
            for path in self.p.sweep.paths:
                with self.w.paths(path.term.path):
                    self.w.line(f"path_{path.term.path}(n{names});")
            for o in self.p.opened:
                self._store_slot(o, segments.get(o, ()))

    def _store_slot(self, o: str, segments: tuple[ScratchSegment, ...]) -> None:
        for s in segments:
            self._move_segment(stores_rows(self.p, o) + "(a_{0} + {3} * R, q_{0}, R, n, {1}, {2}, {4});", o, s)
        if o == self.p.owner or (o == "w" and not self.p.row_weights):
            return
        for start, size in self.p.unused_ranges(o):
            self.w.line(f"for (int r = 0; r < n; ++r) zero(q_{o}[r] + {start}, {size});")

    def _move_segment(self, call: str, operand: str, s: ScratchSegment) -> None:
        # move a segment: scratch is copy-major, memory may be either
        with self.w.paths(*self.s.serving(operand, s.start)):
            if s.mul_first or s.dim == 1:
                self.w.line(call.format(operand, s.start, s.mul * s.dim, s.start, 1))
                return
            for d in range(s.dim):
                self.w.line(call.format(operand, s.start + d * s.mul, s.mul, s.start + d, s.dim))

    def _write_path_function(self, path: PathSweep) -> None:
        term = path.term
        arguments = "".join(f", {kind} {name}" for kind, name in self._arguments())
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            with self.w.block(f"static void path_{term.path}(int n{arguments})"):
                if term.pairs:
                    self._write_pair_tables(term)
                if self.p.owns_weights(term):
                    OwnWeightsText(self.p, term, self.w).write()
                elif term.mode.mixing:
                    MixingText(self.p, path, self.w).write()
                else:
                    self._write_unmixed_path(path)

    def _write_pair_tables(self, term: Term) -> None:
        pairs = [(a, b) for a in range(term.pairs) for b in range(a + 1, term.pairs)]
        for name, values in zip("ab", zip(*pairs, strict=True), strict=True):
            self.w.line(f"static const int pair_{name}[] = {{{', '.join(map(str, values))}}};")

    def _write_unmixed_path(self, path: PathSweep) -> None:
        # copies that do not mix
        term, vectors = path.term, BatchVectors(self.p, path.term, self.w)
        first, rest = term.mode.weight[0], term.mode.weight[1:]
        place = ""
        if term.weighted and self.p.row_weights:
            copies = vectors.staged_weights(first, "0", str(term.size(first)))
            place = f"{vectors.position(term.mode.weight, f'({first} - {first}2)')} * R + r"
        else:
            copies = self.w.block(vectors.loops(first))
            if term.weighted:
                place = f"{vectors.start('w')} + {vectors.position(term.mode.weight)}"
        with copies, vectors.each(vectors.loops(rest), _ROWS):
            vectors.body(path.stages[0].statements, place)

    def write_weights(self) -> None:
        """Write shared weights into scratch."""
        self.w.line(f"for (i64 m = 0; m < {self.p.dim['w']}; ++m) weights[m] = widen(w[m]);")

    def write_weight_sums(self) -> None:
        """Write the sum of weight gradients over blocks."""
        add_block_sums(self.w, self.p.weight_scratch)
        self.w.line(f"for (i64 m = 0; m < {self.p.dim['w']}; ++m) d_w[m] = narrow(sums[m]);")

    def write_rows(self) -> None:
        """Write the loop over rows of a block."""
        w, owner = self.w, self.p.owner
        if owner:
            w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
            w.line("const i64 begin = first[from], end = first[to];")
            dim = self.p.dim[owner]
            w.line(f"zero(d_{owner} + from * {dim}, (to - from) * {dim});")
        else:
            w.line("const i64 begin = b * span, end = least(rows, begin + span);")
        with w.block("for (i64 q = begin; q < end; q += R)"):
            w.line("const int n = least(R, end - q);")
            self._write_row_pointers()
            rows = [f"p_{o}" for o in self.p.given if o != "w"] + [f"q_{o}" for o in self.p.opened if o != "w"]
            names = ["n", *rows, *(name for _, name in self._arguments())]
            w.line(f"tile({', '.join('(n + W - 1) / W * W' if name == 'R' else name for name in names)});")

    def _write_row_pointers(self) -> None:
        # pointers to each row of the tile, for operands and results
        pointers = [("const real*", f"p_{o}", o, o) for o in self.p.given if o != "w" or self.p.row_weights]
        pointers += [("real*", f"q_{o}", f"d_{o}", o) for o in self.p.opened if o != "w" or self.p.row_weights]
        for kind, name, _, _ in pointers:
            self.w.line(f"{kind} {name}[R];")
        with self.w.block("for (int r = 0; r < n; ++r)"):
            self.w.line(f"const i64 e = {'order[q + r]' if self.p.owner else 'q + r'};")
            for _, name, base, o in pointers:
                self.w.line(f"{name}[r] = {base} + {found_row(self.p.rule(o))} * {self.p.dim[o]};")
