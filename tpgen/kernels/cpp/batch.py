"""C++ of the batch schedule."""

from __future__ import annotations

from tpgen.form.form import Term
from tpgen.kernels.cpp.batch_vectors import ROW_LOOP, BatchPathWriter, name_store_function
from tpgen.kernels.cpp.mixing import MixingPathWriter, ScalarInputPathWriter
from tpgen.kernels.cpp.text import Writer, row_index_text, write_sum_of_blocks
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.values import ScratchSegment
from tpgen.kernels.sweep.sweep import PathSweep


class BatchKernelWriter:
    """Writes C++ of a tensor product kernel with SIMD vectors over batch rows."""

    def __init__(self, placement: BatchPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w

    def write_functions_called_by_kernel(self) -> None:
        for path in self.p.sweep.paths:
            self._write_path_function(path)
        self._write_function_for_tile_of_rows()

    def _parameter_types_and_names(self) -> list[tuple[str, str]]:
        arguments = [("int", "R")] * self.p.shortens_tiles + [("num*", name) for name in self.p.scratch]
        if self.p.has_weights_per_row:
            arguments += [("const real* const*", "p_w")] * ("w" in self.p.given)
            arguments += [("real* const*", "q_w")] * ("w" in self.p.opened)
        else:
            arguments += [("const num*", "weights")] * ("w" in self.p.given and self.p.dim["w"] > 0)
            arguments += [("num*", "a_w")] * ("w" in self.p.opened)
        return arguments

    def _write_function_for_tile_of_rows(self) -> None:
        given = [("const real* const*", f"p_{o}") for o in self.p.given if o != "w"]
        opened = [("real* const*", f"q_{o}") for o in self.p.opened if o != "w"]
        arguments = ", ".join(
            f"{kind} {name}" for kind, name in [("int", "n"), *given, *opened, *self._parameter_types_and_names()]
        )
        segments = dict(self.s.segments)
        with self.w.part("function tile"), self.w.block(f"static void tile({arguments})"):
            for o in self.p.given:
                for s in segments.get(o, ()):
                    self._write_calls_that_move_segment(
                        "stage_rows(p_{0}, R, n, {1}, {2}, s_{0} + {3} * R, {4});", o, s
                    )
            for o in self.p.opened:
                if o != "w":
                    self.w.line(f"clear(a_{o}, {self.p.dim[o]} * R);")
            names = "".join(f", {name}" for _, name in self._parameter_types_and_names())
            for path in self.p.sweep.paths:
                with self.w.paths(path.term.path):
                    self.w.line(f"path_{path.term.path}(n{names});")
            for o in self.p.opened:
                self._write_stores_from_scratch_to_memory(o, segments.get(o, ()))

    def _write_stores_from_scratch_to_memory(self, operand: str, segments: tuple[ScratchSegment, ...]) -> None:
        for s in segments:
            self._write_calls_that_move_segment(
                name_store_function(self.p, operand) + "(a_{0} + {3} * R, q_{0}, R, n, {1}, {2}, {4});", operand, s
            )
        if operand == self.p.owner or (operand == "w" and not self.p.has_weights_per_row):
            return
        for start, size in self.p.starts_and_sizes_that_no_path_uses(operand):
            self.w.line(f"for (int r = 0; r < n; ++r) zero(q_{operand}[r] + {start}, {size});")

    def _write_calls_that_move_segment(self, call_template: str, operand: str, segment: ScratchSegment) -> None:
        # move a segment: scratch is copy-major, memory may be either
        with self.w.paths(*self.s.path_numbers_of_segment(operand, segment.start)):
            if segment.mul_first or segment.dim == 1:
                self.w.line(call_template.format(operand, segment.start, segment.mul * segment.dim, segment.start, 1))
                return
            for d in range(segment.dim):
                self.w.line(
                    call_template.format(
                        operand, segment.start + d * segment.mul, segment.mul, segment.start + d, segment.dim
                    )
                )

    def _write_path_function(self, path: PathSweep) -> None:
        term = path.term
        arguments = "".join(f", {kind} {name}" for kind, name in self._parameter_types_and_names())
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            with self.w.block(f"static void path_{term.path}(int n{arguments})"):
                if term.pairs:
                    self._write_index_arrays_of_multiplicity_pairs(term)
                if self.p.contracts_weights_with_input2(term):
                    ScalarInputPathWriter(self.p, term, self.w).write_path_loops()
                elif term.mode.mixing:
                    MixingPathWriter(self.p, path, self.w).write_path_loops()
                else:
                    self._write_path_loops_without_channel_mixing(path)

    def _write_index_arrays_of_multiplicity_pairs(self, term: Term) -> None:
        pairs = [(a, b) for a in range(term.pairs) for b in range(a + 1, term.pairs)]
        for name, values in zip("ab", zip(*pairs, strict=True), strict=True):
            self.w.line(f"static const int pair_{name}[] = {{{', '.join(map(str, values))}}};")

    def _write_path_loops_without_channel_mixing(self, path: PathSweep) -> None:
        # copies that do not mix
        term, vectors = path.term, BatchPathWriter(self.p, path.term, self.w)
        first, rest = term.mode.weight[0], term.mode.weight[1:]
        place = ""
        if term.weighted and self.p.has_weights_per_row:
            copies = vectors.loop_with_weights_in_scratch(first, "0", str(term.size(first)))
            place = f"{vectors.flat_index_text(term.mode.weight, f'({first} - {first}2)')} * R + r"
        else:
            copies = self.w.block(vectors.nested_loop_heads(first))
            if term.weighted:
                place = f"{vectors.segment_start('w')} + {vectors.flat_index_text(term.mode.weight)}"
        with copies, vectors.open_block(vectors.nested_loop_heads(rest), ROW_LOOP):
            vectors.write_statements(path.stages[0].statements, place)

    def write_copy_of_shared_weights_into_scratch(self) -> None:
        self.w.line(f"for (i64 m = 0; m < {self.p.dim['w']}; ++m) weights[m] = widen(w[m]);")

    def write_sum_of_weight_gradients_over_blocks(self) -> None:
        write_sum_of_blocks(self.w, self.p.scratch_size_of_shared_weights)
        self.w.line(f"for (i64 m = 0; m < {self.p.dim['w']}; ++m) d_w[m] = narrow(sums[m]);")

    def write_loop_over_rows_of_block(self) -> None:
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
            self._write_pointers_to_rows_of_tile()
            rows = [f"p_{o}" for o in self.p.given if o != "w"] + [f"q_{o}" for o in self.p.opened if o != "w"]
            names = ["n", *rows, *(name for _, name in self._parameter_types_and_names())]
            w.line(f"tile({', '.join('(n + W - 1) / W * W' if name == 'R' else name for name in names)});")

    def _write_pointers_to_rows_of_tile(self) -> None:
        # pointers to each row of the tile, for operands and results
        pointers = [("const real*", f"p_{o}", o, o) for o in self.p.given if o != "w" or self.p.has_weights_per_row]
        pointers += [("real*", f"q_{o}", f"d_{o}", o) for o in self.p.opened if o != "w" or self.p.has_weights_per_row]
        for kind, name, _, _ in pointers:
            self.w.line(f"{kind} {name}[R];")
        with self.w.block("for (int r = 0; r < n; ++r)"):
            self.w.line(f"const i64 e = {'order[q + r]' if self.p.owner else 'q + r'};")
            for _, name, base, o in pointers:
                self.w.line(f"{name}[r] = {base} + {row_index_text(self.p.rule(o))} * {self.p.dim[o]};")
