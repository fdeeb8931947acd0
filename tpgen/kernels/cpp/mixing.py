"""C++ of paths that mix copies."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tpgen.form.form import Term
from tpgen.kernels.cpp.batch_vectors import ROW_LOOP, BatchPathWriter, write_vector_loads
from tpgen.kernels.cpp.text import Writer, number_literal
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.statements import SweepStage
from tpgen.kernels.sweep.sweep import PathSweep


def _start_of_multiply_call(p: BatchPlacement, columns: str) -> str:
    return f"multiply_columns({columns}, " if p.shortens_tiles else f"multiply<{columns}>("


def _write_addition_to_weight_gradient(
    w: Writer,
    term: Term,
    transposed_copies: int,
    gradient: str,
    left: tuple[str, str],
    right: tuple[str, str],
    columns: str,
) -> None:
    # adds left (array and copies) times right (array and a transpose of its first copies), summed over a tile's rows
    copies, (array, rows), (other, transposed) = term.size(term.mode.mixing), left, right
    if transposed_copies:
        given = f"{array}, {columns}, 1, {transposed}, {transposed_copies}, {rows}, {columns}"
        w.line(f"multiply<{transposed_copies}>(true, {gradient}, {copies}, {given});")
    if transposed_copies < copies:
        given = f"{array}, {other}{f' + {transposed_copies} * {columns}' if transposed_copies else ''}"
        sizes = f"{rows}, {copies - transposed_copies}, {columns}"
        w.line(f"correlate({gradient} + {transposed_copies}, {copies}, {given}, {sizes});")


class MixingPathWriter:
    """Writes C++ of a path whose weights mix channels, as in mode ``uvw``."""

    def __init__(self, placement: BatchPlacement, path: PathSweep, w: Writer) -> None:
        """Prepare to write C++ of ``path``."""
        self.p, self.path, self.w, self.term = placement, path, w, path.term
        self.vectors = BatchPathWriter(placement, path.term, w)
        self.sides = sides = placement.sides_of_weight_matrix(path.term)
        self.first = sides.copies[0]
        self.inner = path.term.size(sides.copies[1:])  # copies that share their first one
        self.k, self.mixed = path.term.size(sides.axis), path.term.size(sides.mixed)
        self.steps = [path.term.size(path.term.mode.weight.partition(a)[2]) for a in (sides.copies[-1], sides.mixed)]
        # follows s of a given operand, a of an open one
        self.far_address = f"_{sides.far} + {self.vectors.segment_start(sides.far)} * (i64)R"
        self.adds = sides.far in placement.opened
        self.needs_coupled_inputs, self.needs_coupled_cotangents = (
            placement.needs_coupled_inputs(path.term),
            placement.needs_coupled_cotangents(path.term),
        )
        self.mixes_first = placement.mixes_first(path.term)

    def write_path_loops(self) -> None:
        """Write C++ loops over blocks of channels: couple inputs, mix by weights, couple cotangents."""
        first, size, step = (
            self.first,
            self.term.size(self.first),
            self.p.count_coupled_copies_per_block(self.term) // self.inner,
        )
        whole = self.p.count_copies_transposed_for_weight_gradient(self.term)
        if whole and not self.mixes_first:
            self.w.line(f"flip(s{self.far_address}, G, {whole}, {self.k} * R);")
        with self.w.block(f"for (int {first}0 = 0; {first}0 < {size}; {first}0 += {step})"):
            self.w.line(f"const int {first}1 = least({size}, {first}0 + {step});")
            if self.needs_coupled_inputs:
                self._write_coupling_stage(self.path.stages[0])
            self._write_channel_mixing()
            if self.needs_coupled_cotangents:
                self._write_coupling_stage(self.path.stages[-1])

    def _loops_over_coupled_channels_of_block(self) -> AbstractContextManager[None]:
        first = self.first
        loop = f"for (int {first} = {first}0; {first} < {first}1; ++{first})"
        return self.vectors.open_block(loop, self.vectors.nested_loop_heads(self.sides.copies[1:]), ROW_LOOP)

    def _write_coupling_stage(self, stage: SweepStage) -> None:
        with self._loops_over_coupled_channels_of_block():
            self.vectors.write_statements(stage.statements)

    def _write_channel_mixing(self) -> None:
        if not self.term.weighted:
            self._write_channel_mixing_without_weights()
        elif self.p.has_weights_per_row:
            self._write_channel_mixing_by_row_weights()
        else:
            self._write_channel_mixing_by_shared_weights()

    def _write_channel_mixing_without_weights(self) -> None:
        # unweighted mixing: every input copy goes to the single output copy
        position = self.vectors.flat_index_text(self.term.inputs, f"({self.first} - {self.first}0)")
        with self._loops_over_coupled_channels_of_block():
            for n in range(self.k):
                place = f"({position} * {self.k} + {n}) * R + r"
                if self.adds:
                    self.w.line(f"add(a{self.far_address} + {n} * R + r, load(P + {place}));")
                if self.needs_coupled_cotangents:
                    self.w.line(f"store(D + {place}, load(s{self.far_address} + {n} * R + r));")

    def _write_channel_mixing_by_shared_weights(self) -> None:
        first, mixed, columns, (step, far_step) = self.first, self.mixed, f"{self.k} * R", self.steps
        self.w.line(f"const int count = ({first}1 - {first}0) * {self.inner};")
        at = f"{self.vectors.segment_start('w')} + {first}0 * {self.inner * step}"
        if self.adds:
            self._write_matrix_product(
                f"a{self.far_address}", f"weights + {at}, {far_step}, {step}", "P", f"{mixed}, count", columns
            )
        if "w" in self.p.opened:
            self._write_weight_gradient(f"a_w + {at}", columns)
        if self.needs_coupled_cotangents:
            given = f"weights + {at}, {step}, {far_step}", f"s{self.far_address}"
            self._write_matrix_product("D", *given, f"count, {mixed}", columns, add=False)

    def _write_weight_gradient(self, gradient_address: str, column_count: str) -> None:
        # rows of weights are copies of input 1: those of P, or of the far side where copies mix first
        far, whole = f"s{self.far_address}", self.p.count_copies_transposed_for_weight_gradient(self.term)
        if not self.mixes_first:
            _write_addition_to_weight_gradient(
                self.w, self.term, whole, gradient_address, ("P", "count"), (far, "G"), column_count
            )
            return
        if whole:
            self.w.line(f"flip(P, G, {whole}, {column_count});")
        _write_addition_to_weight_gradient(
            self.w, self.term, whole, gradient_address, (far, str(self.mixed)), ("P", "G"), column_count
        )

    def _write_matrix_product(
        self, destination: str, left_and_strides: str, right: str, sizes: str, column_count: str, add: bool = True
    ) -> None:
        # a product of matrices with consecutive rows, which replaces ``destination`` or is added to it
        flag = "true" if add else "false"
        function = _start_of_multiply_call(self.p, column_count)
        self.w.line(
            f"{function}{flag}, {destination}, {column_count}, {left_and_strides}, {right}, {column_count}, {sizes});"
        )

    def _write_channel_mixing_by_row_weights(self) -> None:
        first, k = self.first, self.k
        with (
            self.vectors.loop_with_weights_in_scratch(first, f"{first}0", f"{first}1"),
            self.w.block(f"for (int m = 0; m < {self.inner}; ++m) {ROW_LOOP}"),
        ):
            block = f"((({first} - {first}0) * {self.inner} + m) * {k})"
            if self.needs_coupled_inputs:
                write_vector_loads(self.w, "c", k, f"P + {block} * R")
            if self.needs_coupled_cotangents:
                self.w.line(f"vec d[{k}] = {{}};")
            with self.w.block(self.vectors.nested_loop_heads(self.sides.mixed)):
                self._write_products_with_one_row_weight(
                    f"((({first} - {first}2) * {self.inner} + m) * {self.mixed} + {self.sides.mixed}) * R + r"
                )
            if self.needs_coupled_cotangents:
                for n in range(k):
                    self.w.line(f"store(D + ({block} + {n}) * R + r, d[{n}]);")

    def _write_products_with_one_row_weight(self, weight_offset: str) -> None:
        out = f"({self.vectors.segment_start('out')} + {self.sides.mixed} * {self.k}) * (i64)R"
        if self.p.opened != ("w",):
            self.w.line(f"const vec weight = load(s_w + {weight_offset});")
        if self.p.opened != ("out",):
            write_vector_loads(self.w, "g", self.k, f"s_out + {out}")
        for n in range(self.k):
            if self.adds:
                self.w.line(f"add(a_out + {out} + {n} * R + r, weight * c[{n}]);")
            if self.needs_coupled_cotangents:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "w" in self.p.opened:
            self.w.line(f"store(a_w + {weight_offset}, {' + '.join(f'c[{n}] * g[{n}]' for n in range(self.k))});")


class ScalarInputPathWriter:
    """Writes C++ of a path with many scalars as input 2: contracts weights with scalars, then multiplies input 1."""

    def __init__(self, placement: BatchPlacement, term: Term, w: Writer) -> None:
        """Prepare to write C++ of the path ``term``."""
        self.p, self.term, self.w = placement, term, w
        self.k, self.v, self.mixed = term.size("k"), term.size("v"), term.size("w")
        starts = BatchPathWriter(placement, term, w)
        self.at = f"{starts.segment_start('w')} + u * {self.v * self.mixed}"
        self.x, self.y, self.out = (f"{starts.segment_start(o)} * (i64)R" for o in ("x1", "x2", "out"))
        self.c = number_literal(term.entries[0].value, placement.schedule.target.dtype)
        self.opened = placement.opened

    def write_path_loops(self) -> None:
        """Write the C++ loop over input 1's channels."""
        with self.w.block(f"for (int u = 0; u < {self.term.size('u')}; ++u)"):
            if "own" in self.p.scratch:
                place = f"weights + {self.at}, 1, {self.mixed}, s_x2 + {self.y}, R, {self.mixed}, {self.v}"
                self.w.line(f"{_start_of_multiply_call(self.p, 'R')}false, own, R, {place});")
            with self.w.block(ROW_LOOP):
                self._write_products_with_contracted_weights()
            if "w" in self.opened:
                self._write_gradient_of_shared_weights()
            if "x2" in self.opened:
                place = f"weights + {self.at}, {self.mixed}, 1, d_own, R, {self.v}, {self.mixed}"
                self.w.line(f"{_start_of_multiply_call(self.p, 'R')}true, a_x2 + {self.y}, R, {place});")

    def _write_products_with_contracted_weights(self) -> None:
        x = f"{self.x} + (u * {self.k}) * R"
        if self.opened != ("x1",):
            write_vector_loads(self.w, "x", self.k, f"s_x1 + {x}", f"{self.c} * ")
        if "x1" in self.opened:
            self.w.line(f"vec d[{self.k}] = {{}};")
        with self.w.block(f"for (int w = 0; w < {self.mixed}; ++w)"):
            self._write_products_of_one_output_channel(f"{self.out} + (w * {self.k}) * R")
        if "x1" in self.opened:
            for n in range(self.k):
                self.w.line(f"add(a_x1 + {x} + {n} * R + r, {self.c} * d[{n}]);")

    def _write_products_of_one_output_channel(self, output_offset: str) -> None:
        if "own" in self.p.scratch:
            self.w.line("const vec weight = load(own + w * R + r);")
        if self.opened != ("out",):
            write_vector_loads(self.w, "g", self.k, f"s_out + {output_offset}")
        for n in range(self.k):
            if "out" in self.opened:
                self.w.line(f"add(a_out + {output_offset} + {n} * R + r, weight * x[{n}]);")
            if "x1" in self.opened:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "d_own" in self.p.scratch:
            self.w.line(f"store(d_own + w * R + r, {' + '.join(f'x[{n}] * g[{n}]' for n in range(self.k))});")

    def _write_gradient_of_shared_weights(self) -> None:
        whole = self.p.count_copies_transposed_for_weight_gradient(self.term)
        if whole:
            self.w.line(f"flip(d_own, flipped, {whole}, R);")
        y, own = (f"s_x2 + {self.y}", str(self.v)), ("d_own", "flipped")
        _write_addition_to_weight_gradient(self.w, self.term, whole, f"a_w + {self.at}", y, own, "R")
