"""C++ of the matrix schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpgen.kernels.cpp.text import Writer, number_literal, write_sum_of_blocks
from tpgen.kernels.placement.matrix import MatrixPlacement, MatrixSegment, MatrixTerm
from tpgen.kernels.sweep.terms import SLOTS


class MatrixKernelWriter:
    """Writes C++ of a linear layer's kernel: a matrix product per path."""

    def __init__(self, placement: MatrixPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w

    def write_functions_called_by_kernel(self) -> None:
        arguments = ", ".join(f"{kind} {name}" for kind, name in self._parameter_types_and_names())
        with self.w.part("function tile"), self.w.block(f"static void tile({arguments})"):
            for o in self.p.inputs_without_weights:
                self._write_loops_that_move_row_segments(
                    f"stage<{{0}}>({self._address_of_tile_row(f'p_{o}')} + {{1}}, s_{o} + {{2}});",
                    self.p.segments_to_stage(o),
                )
            written: set[tuple[str, int]] = set()
            for term in self.s.terms:
                with self.w.paths(term.path):
                    self.w.line(f"// path {term.path}: {term.text}")
                    self._write_matrix_products_of_path(term, written)
            for o in self.p.open_row_slots:
                made = [s for s in self.s.segments(o) if not s.whole]
                self._write_loops_that_move_row_segments(
                    f"unstage<{{0}}>(a_{o} + {{2}}, {self._address_of_tile_row(f'q_{o}')} + {{1}});", made
                )
                for start, size in self.p.starts_and_sizes_that_no_path_uses(o):
                    self.w.line(
                        f"for (int r = 0; r < n; ++r) zero({self._address_of_tile_row(f'q_{o}')} + {start}, {size});"
                    )

    def _address_of_tile_row(self, name: str) -> str:
        # address of row r of a tile in memory
        return f"{name} + {'at[r]' if self.p.by_element else 'r'} * {self.p.dim[name[2:]]}"

    def _parameter_types_and_names(self) -> list[tuple[str, str]]:
        rows = [("const real*", f"p_{o}") for o in self.p.inputs_without_weights] + [
            ("real*", f"q_{o}") for o in self.p.open_row_slots
        ]
        given, opened = bool(self.p.open_row_slots and self.s.terms), "w" in self.p.opened
        if self.s.shared_weights:
            rows += [("const num*", "weights")] * (given and not self.p.by_element) + [("num*", "a_w")] * opened
            rows += [("bool", "fresh")] * (opened and self.p.by_element)
        else:
            rows += [("const real*", "p_w")] * given + [("real*", "q_w")] * opened
        # at: rows in the order of their elements
        places = [("const i64*", "at")] * self.p.by_element
        areas = [("num*", name) for name in self.p.scratch if name != "own_w"]
        return [("int", "n"), *places, *rows, *areas]

    def _write_loops_that_move_row_segments(self, call_template: str, segments: Sequence[MatrixSegment]) -> None:
        for segment in segments:
            place = f"{segment.scratch} * (i64)R + r * {segment.size}"
            with self.w.paths(*(t.path for t in self.s.terms if segment in (t.source, t.target))):
                call = call_template.format(segment.template_arguments, segment.start, place)
                self.w.line(f"for (i64 r = 0; r < n; ++r) {call}")

    def _write_matrix_products_of_path(self, term: MatrixTerm, written_segments: set[tuple[str, int]]) -> None:
        if self.s.shared_weights:
            self._write_matrix_product_of_each_result(term, written_segments)
        else:
            with self.w.block("for (i64 r = 0; r < n; ++r)"):
                self._write_matrix_product_of_each_result(term, written_segments)

    def _write_matrix_product_of_each_result(self, term: MatrixTerm, written_segments: set[tuple[str, int]]) -> None:
        # out[zi, w] += sum_u  x1[zi, u] W[u, w]
        # x1[zi, u]  += sum_w  out[zi, w] W[u, w]
        # W[u, w]    += sum_zi x1[zi, u] out[zi, w]
        # The product of each open slot: of a whole tile, or of row r if every row has its own weights.
        # The first product that reaches a segment writes it, the others add.
        x, y = term.source, term.target
        rows = f"n * {x.dim}" if self.s.shared_weights else str(x.dim)
        (given_x, x_step), (given_y, y_step) = (
            self._input_address_and_row_stride("x1", x),
            self._input_address_and_row_stride("out", y),
        )
        if "out" in self.p.opened:
            into, add = (
                self._result_address_and_row_stride_arguments("out", y),
                _cpp_bool(("out", y.index) in written_segments),
            )
            weights = self._copy_row_weights_and_return_address(term, "keep", term.kept)
            sizes = f"{y.padded}, {rows}, {x.mul}"
            self.w.line(f"multiply<{y.padded}>({add}, {into}, {given_x}, {x_step}, 1, {weights}, {sizes});")
        if "x1" in self.p.opened:
            into, add = (
                self._result_address_and_row_stride_arguments("x1", x),
                _cpp_bool(("x1", x.index) in written_segments),
            )
            weights = self._copy_row_weights_and_return_address(
                term, "keep_flipped", self.p.weight_scratch_sizes["kept"] + term.flipped
            )
            sizes = f"{x.padded}, {rows}, {y.mul}"
            self.w.line(f"multiply<{x.padded}>({add}, {into}, {given_y}, {y_step}, 1, {weights}, {sizes});")
        if "w" in self.p.opened:
            with self._block_with_weight_gradient_address(term) as sums:
                add = "!fresh" if self.p.by_element else "true"
                given = f"{given_x}, 1, {x_step}, {given_y}, {y_step}"
                self.w.line(f"multiply<{y.padded}>({add}, {sums}, {y.padded}, {given}, {x.mul}, {rows});")
        written_segments |= {("out", y.index), ("x1", x.index)}

    def _input_address_and_row_stride(self, operand: str, segment: MatrixSegment) -> tuple[str, int]:
        # address of a given segment, [row, component][copy], and the distance of its rows
        if operand in self.p.inputs_without_weights and segment not in self.p.segments_to_stage(operand):
            return f"p_{operand} + {segment.start}", self.p.dim[operand]
        return self._cpp_scratch_address(f"s_{operand}", segment), segment.padded

    def _result_address_and_row_stride_arguments(self, operand: str, segment: MatrixSegment) -> str:
        # address of a segment that is open, and how far its rows are apart
        if segment.whole:
            return f"q_{operand} + {segment.start}, {self.p.dim[operand]}"
        return f"{self._cpp_scratch_address(f'a_{operand}', segment)}, {segment.padded}"

    def _cpp_scratch_address(self, area: str, segment: MatrixSegment) -> str:
        # address of a segment of the tile, or of row r
        row = "" if self.s.shared_weights else f" + r * {segment.size}"
        return f"{area} + {segment.scratch} * (i64)R{row}"

    def _copy_row_weights_and_return_address(
        self, term: MatrixTerm, copy_function: str, shared_weights_offset: int
    ) -> str:
        if self.s.shared_weights:
            return f"weights + {shared_weights_offset}"
        self._write_call_that_copies_weights(term, copy_function, f"p_w + r * {self.p.dim['w']}", "s_w")
        return "s_w"

    @contextmanager
    def _block_with_weight_gradient_address(self, term: MatrixTerm) -> Iterator[str]:
        # a row's own gradient moves out of scratch at once
        if self.s.shared_weights:
            yield f"a_w + {term.kept}"
            return
        self.w.line(f"clear(s_w, {term.source.mul * term.target.padded});")
        yield "s_w"
        self._write_call_that_copies_weights(term, "give", f"q_w + r * {self.p.dim['w']}", "s_w")

    def _write_call_that_copies_weights(
        self, term: MatrixTerm, copy_function: str, memory_address: str, scratch_address: str
    ) -> None:
        # the weights of a path into scratch_address or back, times its coefficient
        value = number_literal(term.coefficient, self.s.target.dtype)
        arguments = f"{memory_address} + {term.start}, {value}, {scratch_address}"
        self.w.line(f"{copy_function}<{term.source.mul}, {term.target.mul}>({arguments});")

    def write_copy_of_shared_weights_into_scratch(self, memory_address: str = "w") -> None:
        for term in self.s.terms:
            with self.w.paths(term.path):
                if "out" in self.p.opened:
                    self._write_call_that_copies_weights(term, "keep", memory_address, f"weights + {term.kept}")
                if "x1" in self.p.opened:
                    self._write_call_that_copies_weights(
                        term,
                        "keep_flipped",
                        memory_address,
                        f"weights + {self.p.weight_scratch_sizes['kept'] + term.flipped}",
                    )

    def write_sum_of_weight_gradients_over_blocks(self) -> None:
        size, w = self.p.block_sums, self.w
        if not self.p.by_element:
            write_sum_of_blocks(w, size)
            self._write_stores_of_weight_gradients("d_w", "sums")
            return
        with w.block("for (i64 e = 0, b = 0; e < elements; ++e)"):
            w.line(f"real* const to = d_w + e * {self.p.dim['w']}; num* const all = sums + b * {size};")
            w.line(f"if (b == blocks || t.element[b] != e) {{ zero(to, {self.p.dim['w']}); continue; }}")
            w.line("if (t.is_whole(b, span)) { ++b; continue; }  // a thread has given it")
            with w.block("for (++b; b < blocks && t.element[b] == e; ++b)"):
                w.line(f"for (i64 m = 0; m < {size}; m += W) add(all + m, load(sums + b * {size} + m));")
            self._write_stores_of_weight_gradients("to", "all")

    def _write_stores_of_weight_gradients(self, memory_address: str, sums_address: str) -> None:
        for term in self.s.terms:
            with self.w.paths(term.path):
                self._write_call_that_copies_weights(term, "give", memory_address, f"{sums_address} + {term.kept}")
        for start, size in self.p.starts_and_sizes_that_no_path_uses("w"):
            self.w.line(f"zero({memory_address} + {start}, {size});")

    def write_loop_over_rows_of_block(self) -> None:
        w, by_element = self.w, self.p.by_element
        if by_element:
            w.line("const i64 e = t.element[b], begin = t.begin[b], end = least(t.first[e + 1], begin + span);")
            if self.p.sums_weights:
                w.line("const bool whole = t.is_whole(b, span);")
                w.line(f"num* const a_w = whole ? own_w : sums + b * {self.p.block_sums};")
            if "weights" in self.p.scratch:
                with w.block("if (held != e)"):
                    w.line("held = e;")
                    self.write_copy_of_shared_weights_into_scratch(f"w + e * {self.p.dim['w']}")
        else:
            w.line("const i64 begin = b * span, end = least(rows, begin + span);")
        with w.block("for (i64 q = begin; q < end; q += R)"):
            tensors = {f"p_{o}": o for o in SLOTS} | {f"q_{o}": f"d_{o}" for o in SLOTS}
            names = {n: x if by_element else f"{x} + q * {self.p.dim[n[2:]]}" for n, x in tensors.items()}
            names |= {"n": "least(R, end - q)", "at": "t.order + q", "fresh": "q == begin"}
            w.line(f"tile({', '.join(names.get(name, name) for _, name in self._parameter_types_and_names())});")
        if by_element and self.p.sums_weights:
            with w.block("if (whole)"):
                self._write_stores_of_weight_gradients(f"d_w + e * {self.p.dim['w']}", "a_w")


def _cpp_bool(value: bool) -> str:
    return "true" if value else "false"
