"""C++ of the batch schedule: tiles of rows as vectors, operands in scratch as ``[copy][irrep axis][R rows]``.

A path whose copies do not mix (``uvu``, ``uuu`` …) is a loop over copies around its coupling.  A path that mixes them
(``uvw``, ``uuw``, ``u<vw``) goes through ``P[q, k] = sum_ij C x1 x2``, q running over copies of the inputs:

    out[w, k] += sum_q W[q, w] P[q, k]
    dW[q, w]  += sum_k,rows P[q, k] g[w, k]
    dP[q, k]   = sum_w W[q, w] g[w, k]

three matrix products of tiles where the weights are shared, three loops over vectors where every row has its own.  A
block of q at a time, so that P stays in cache unless one copy of x1 alone has too many.
"""

from __future__ import annotations

from tpgen.kernels.cpp.batch_vectors import BatchVectors
from tpgen.kernels.cpp.channel import gaps, write_block_sums
from tpgen.kernels.cpp.couple import Names, couple
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.schedule.values import SLOTS, BatchTerm


class BatchText(BatchVectors):
    """Writes the functions of one direction."""

    def tiles(self) -> set[int]:
        return set()

    def write_weights(self, w: Writer, reduce: bool) -> None:
        if not reduce:
            w.line(f"for (i64 m = 0; m < {self.dim['w']}; ++m) weights[m] = widen(w[m]);")
            return
        write_block_sums(w, self.weight_scratch())
        w.line(f"for (i64 m = 0; m < {self.dim['w']}; ++m) d_w[m] = narrow(sums[m]);")

    # -- a tile --

    def write(self) -> None:
        for term in self.s.terms:
            if any(slot != "w" or term.weighted for slot in self.opened):
                self._term(term)
        self._tile()

    def _arguments(self) -> list[tuple[str, str]]:
        arguments = [("num*", name) for name in self.scratch()]
        if self.row_weights:
            arguments += [("const real* const*", "p_w")] * ("w" in self.given) + [("real* const*", "q_w")] * (
                "w" in self.opened
            )
        else:
            arguments += [("const num*", "weights")] * ("w" in self.given and self.dim["w"] > 0) + [("num*", "a_w")] * (
                "w" in self.opened
            )
        return arguments

    def _tile(self) -> None:
        given = [("const real* const*", f"p_{o}") for o in self.given if o != "w"]
        opened = [("real* const*", f"q_{o}") for o in self.opened if o != "w"]
        arguments = ", ".join(f"{kind} {name}" for kind, name in [("int", "n"), *given, *opened, *self._arguments()])
        with self.w.block(f"static void tile({arguments})"):
            segments = dict(self.s.segments)
            for o in self.given:
                for s in segments.get(o, ()):
                    self._move("stage_rows(p_{0}, n, {1}, {2}, s_{0} + {3} * R, {4});", o, s)
            for o in self.opened:
                if o != "w":
                    self.w.line(f"clear(a_{o}, {self.dim[o]} * R);")
            names = "".join(f", {name}" for _, name in self._arguments())
            for term in self.s.terms:
                if any(slot != "w" or term.weighted for slot in self.opened):
                    with self.w.paths(term.path):
                        self.w.line(f"path_{term.path}(n{names});")
            for o in self.opened:
                self._write_out(o, segments)

    def _write_out(self, o: str, segments: dict) -> None:
        if o == "w":
            reached = [(t.start("w"), t.size(t.mode.weight)) for t in self.s.terms if t.weighted]
            if not self.row_weights:
                return
        else:
            reached = [(s.start, s.mul * s.dim) for s in segments[o]]
            verb = "add_rows" if o == self.owner else "unstage_rows"
            for s in segments[o]:
                self._move(verb + "(a_{0} + {3} * R, q_{0}, n, {1}, {2}, {4});", o, s)
        if o != self.owner:
            for start, size in gaps(reached, self.dim[o]):
                self.w.line(f"for (int r = 0; r < n; ++r) zero(q_{o}[r] + {start}, {size});")

    def _move(self, call: str, operand: str, s) -> None:
        """Move a segment: scratch is copy-major, memory may be either."""
        if s.mul_first or s.dim == 1:
            self.w.line(call.format(operand, s.start, s.mul * s.dim, s.start, 1))
            return
        for d in range(s.dim):
            self.w.line(call.format(operand, s.start + d * s.mul, s.mul, s.start + d, s.dim))

    # -- a path --

    def _term(self, term: BatchTerm) -> None:
        arguments = "".join(f", {kind} {name}" for kind, name in self._arguments())
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            with self.w.block(f"static void path_{term.path}(int n{arguments})"):
                if term.pairs:
                    self._pair_tables(term)
                if term.mixing:
                    self._mixing(term)
                else:
                    self._plain(term)

    def _pair_tables(self, term: BatchTerm) -> None:
        pairs = [(a, b) for a in range(term.pairs) for b in range(a + 1, term.pairs)]
        for name, values in zip("ab", zip(*pairs, strict=True), strict=True):
            self.w.line(f"static const int pair_{name}[] = {{{', '.join(map(str, values))}}};")

    # -- copies that do not mix --

    def _plain(self, term: BatchTerm) -> None:
        first, rest = term.mode.weight[0], term.mode.weight[1:]
        if term.weighted and self.row_weights:
            copies = self._staged_weights(term, first, "0", str(term.size(first)))
        else:
            copies = self.w.block(self._loops(first, term))
        with copies, self.w.block(f"{self._loops(rest, term)} {self._rows()}".strip()):
            self._plain_body(term, first)

    def _plain_body(self, term: BatchTerm, first: str) -> None:
        names = {o: self._fetch(term, o) for o in self.given if o != "w"}
        at = self._weight_place(term, first) if term.weighted else ""
        if term.weighted and "w" in self.given:
            value = f"load(s_w + {at})" if self.row_weights else f"vec{{}} + weights[{at}]"
            self.w.line(f"const vec weight[1] = {{{value}}};")
            names["w"] = "weight"
        opened = tuple(o for o in self.opened if o != "w" or term.weighted)
        results = couple(self.w, term.entries, opened, Names(*(names.get(o, "") for o in SLOTS)), self.s.target.dtype)
        for operand, values in results.items():
            if operand == "w" and self.row_weights:
                self.w.line(f"store(a_w + {at}, {values[0]});")
            elif operand == "w":
                self.w.line(f"a_w[{at}] += lane_sum({values[0]});")
            else:
                self._add(term, operand, values)

    def _add(self, term: BatchTerm, operand: str, values: dict[int, str]) -> None:
        for n, value in values.items():
            self.w.line(f"add(a_{operand} + {self._place(term, operand)} + {n} * R + r, {value});")

    # -- copies that mix --

    def _mixing(self, term: BatchTerm) -> None:
        first = term.inputs[0]
        inner, block = term.size(term.inputs[1:]), self.block(term)
        step = block // inner
        if self._flips(term):
            size = f"{term.size(term.mode.mixing)}, {term.size('k')} * R"
            self.w.line(f"flip(s_out + {term.start('out')} * (i64)R, G, {size});")
        with self.w.block(f"for (int {first}0 = 0; {first}0 < {term.size(first)}; {first}0 += {step})"):
            self.w.line(f"const int {first}1 = least({term.size(first)}, {first}0 + {step});")
            if self.needs_p:
                with self._each_input(term):
                    names = Names(self._fetch(term, "x1"), self._fetch(term, "x2"), "", "")
                    for k, value in couple(self.w, term.entries, ("out",), names, self.s.target.dtype)["out"].items():
                        self.w.line(f"store(P + ({self._input(term)} * {term.size('k')} + {k}) * R + r, {value});")
            self._weight_stage(term)
            if self.gradients:
                with self._each_input(term):
                    self._input_gradients(term)

    def _each_input(self, term: BatchTerm):
        first = term.inputs[0]
        loops = (
            f"for (int {first} = {first}0; {first} < {first}1; ++{first}) {self._loops(term.inputs[1:], term)}".strip()
        )
        return self.w.block(f"{loops} {self._rows()}")

    def _input(self, term: BatchTerm) -> str:
        """Position of the current input copies in the block."""
        text = f"({term.inputs[0]} - {term.inputs[0]}0)"
        for a in term.inputs[1:]:
            text = f"({text} * {term.size(a)} + {a})"
        return text

    def _input_gradients(self, term: BatchTerm) -> None:
        k = term.size("k")
        columns = sorted({e.k for e in term.entries})
        names = {
            o: self._fetch(term, o) for o in ("x1", "x2") if o in self.given and any(s != o for s in self.gradients)
        }
        values = " ".join(f"g[{n}] = load(D + ({self._input(term)} * {k} + {n}) * R + r);" for n in columns)
        self.w.line(f"vec g[{k}]; {values}")
        found = couple(
            self.w,
            term.entries,
            self.gradients,
            Names(names.get("x1", ""), names.get("x2", ""), "", "g"),
            self.s.target.dtype,
        )
        for operand, results in found.items():
            self._add(term, operand, results)

    def _weight_stage(self, term: BatchTerm) -> None:
        if not term.weighted:
            self._copy_stage(term)
        elif self.row_weights:
            self._row_weight_stage(term)
        else:
            self._matrix_stage(term)

    def _copy_stage(self, term: BatchTerm) -> None:
        """Unweighted mixing: every input copy goes to the single output copy."""
        k, out = term.size("k"), f"{term.start('out')} * (i64)R"
        with self._each_input(term):
            for n in range(k):
                place = f"({self._input(term)} * {k} + {n}) * R + r"
                if "out" in self.opened:
                    self.w.line(f"add(a_out + {out} + {n} * R + r, load(P + {place}));")
                if self.gradients:
                    self.w.line(f"store(D + {place}, load(s_out + {out} + {n} * R + r));")

    def _matrix_stage(self, term: BatchTerm) -> None:
        first, inner = term.inputs[0], term.size(term.inputs[1:])
        mixed, k = term.size(term.mode.mixing), term.size("k")
        out = f"{term.start('out')} * (i64)R"
        self.w.line(f"const int count = ({first}1 - {first}0) * {inner};")
        at = f"{term.start('w')} + {first}0 * {inner * mixed}"
        if "out" in self.opened:
            self.w.line(f"multiply(a_out + {out}, weights + {at}, 1, {mixed}, P, {mixed}, count, {k} * R);")
        if "w" in self.opened:
            if self._flips(term):
                self.w.line(f"multiply(a_w + {at}, P, {k} * R, 1, G, count, {k} * R, {mixed});")
            else:
                self.w.line(f"correlate(a_w + {at}, {mixed}, P, s_out + {out}, count, {mixed}, {k} * R);")
        if self.gradients:
            self.w.line(f"clear(D, count * {k} * R);")
            self.w.line(f"multiply(D, weights + {at}, {mixed}, 1, s_out + {out}, count, {mixed}, {k} * R);")

    def _row_weight_stage(self, term: BatchTerm) -> None:
        first, k, mix = term.inputs[0], term.size("k"), term.mode.mixing
        inner = term.size(term.inputs[1:])
        with (
            self._staged_weights(term, first, f"{first}0", f"{first}1"),
            self.w.block(f"for (int m = 0; m < {inner}; ++m) {self._rows()}"),
        ):
            block = f"((({first} - {first}0) * {inner} + m) * {k})"
            if self.needs_p:
                self._columns("c", k, f"P + {block} * R")
            if self.gradients:
                self.w.line(f"vec d[{k}] = {{}};")
            with self.w.block(self._loops(mix, term)):
                at = f"((({first} - {first}2) * {inner} + m) * {term.size(mix)} + {mix}) * R + r"
                self._row_weight_body(term, at)
            if self.gradients:
                for n in range(k):
                    self.w.line(f"store(D + ({block} + {n}) * R + r, d[{n}]);")

    def _columns(self, name: str, k: int, base: str) -> None:
        self.w.line(f"vec {name}[{k}]; " + " ".join(f"{name}[{n}] = load({base} + {n} * R + r);" for n in range(k)))

    def _row_weight_body(self, term: BatchTerm, at: str) -> None:
        k, mix = term.size("k"), term.mode.mixing
        out = f"({term.start('out')} + {mix} * {k}) * (i64)R"
        if "w" in self.given and ("out" in self.opened or self.gradients):
            self.w.line(f"const vec weight = load(s_w + {at});")
        if "w" in self.opened or self.gradients:
            self._columns("g", k, f"s_out + {out}")
        for n in range(k):
            if "out" in self.opened:
                self.w.line(f"add(a_out + {out} + {n} * R + r, weight * c[{n}]);")
            if self.gradients:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "w" in self.opened:
            self.w.line(f"store(a_w + {at}, {' + '.join(f'c[{n}] * g[{n}]' for n in range(k))});")

    # -- blocks of rows --

    def write_rows(self, w: Writer, indexed: bool) -> None:
        if self.owner:
            w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
            w.line("const i64 begin = first[from], end = first[to];")
            dim = self.dim[self.owner]
            w.line(f"zero(d_{self.owner} + from * {dim}, (to - from) * {dim});")
        else:
            w.line("const i64 begin = b * span, end = least(rows, begin + span);")
        with w.block("for (i64 q = begin; q < end; q += R)"):
            w.line("const int n = least(R, end - q);")
            pointers = [("const real*", f"p_{o}", o, o) for o in self.given if o != "w" or self.row_weights]
            pointers += [("real*", f"q_{o}", f"d_{o}", o) for o in self.opened if o != "w" or self.row_weights]
            for kind, name, _, _ in pointers:
                w.line(f"{kind} {name}[R];")
            with w.block("for (int r = 0; r < n; ++r)"):
                w.line(f"const i64 e = {'order[q + r]' if self.owner else 'q + r'};")
                for _, name, base, o in pointers:
                    index = {"x1": "src[e]", "out": "dst[e]"}.get(o, "e") if indexed else "e"
                    w.line(f"{name}[r] = {base} + {index} * {self.dim[o]};")
            rows = [f"p_{o}" for o in self.given if o != "w"] + [f"q_{o}" for o in self.opened if o != "w"]
            w.line(f"tile({', '.join(['n', *rows, *(name for _, name in self._arguments())])});")
