"""CUDA text of gathers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from tpgen.form.form import Term
from tpgen.kernels.cpp.expressions import CppExpressions
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.cuda.channel_text import write_owner_loop
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.gather_placement import CudaGatherPlacement
from tpgen.kernels.cuda.gathers import Gather, GatherPart
from tpgen.kernels.cuda.group_text import cpp_index_expression
from tpgen.kernels.sweep.statements import Accumulate, Component, Define, Load
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, SLOTS

_UNROLLED = 24  # statements of a loop's body, some of its rounds together


class GatherStepWriter:
    """Writes the CUDA text of a step of paths that mix multiplicities."""

    def __init__(self, placement: CudaGatherPlacement, w: Writer) -> None:
        self.p, self.w = placement, w

    def write_constant_arrays(self) -> None:
        """Write C++ arrays of the pairs ``a < b`` of copies."""
        for size in sorted({t.pairs for t in self.p.schedule.terms if t.pairs}):
            pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
            for name, values in zip("ab", zip(*pairs, strict=True), strict=True):
                listed = ", ".join(map(str, values))
                self.w.line(f"static __device__ const unsigned short pair_{name}_{size}[] = {{{listed}}};")

    def write_device_functions(self) -> None:
        with self.w.part("function gather"):
            for gather in self.p.gathers:
                with self.w.paths(*sorted({part.term.path for part in gather.parts})):
                    _GatherFunctionWriter(self.p, gather, self.w).write_gather_function()
        with self.w.part("which warp does what"):
            self._write_work_tables_and_warp_dispatch()

    def _write_work_tables_and_warp_dispatch(self) -> None:
        w, p = self.w, self.p
        w.line("struct Share { unsigned gather, chunk; };")
        for n, warps in enumerate(p.work_by_phase_and_warp):
            depth = max(map(len, warps))
            with w.block(f"static __device__ const Share shares_{n}[{p.warps}][{depth}] =", "};"):
                for units in warps:
                    listed = [f"{{{u.work.number}, {u.chunk}}}" for u in units]
                    w.line(f"{{{', '.join(listed + ['{~0u, 0}'] * (depth - len(units)))}}},")
            head = f"DEVICE void phase_{n}(const Step& s, const int warp)"
            with w.block(head), w.block(f"for (int n = 0; n < {depth}; ++n)"):
                w.line(f"const Share share = shares_{n}[warp][n];")
                with w.block("switch (share.gather)"):
                    for number in sorted({u.work.number for units in warps for u in units}):
                        w.line(f"case {number}: gather_{number}(s, share.chunk); break;")

    def write_compute_function_body(self) -> None:
        p, w = self.p, self.w
        for o in p.results:
            for start, size in p.starts_and_sizes_that_no_path_uses(o):
                for row in range(p.rows):
                    w.line(f"clear(s.d_{o} + {start + row * p.dim[o]}, {size});")
        w.line("const int warp = this_warp();")
        for n in range(len(p.work_by_phase_and_warp)):
            if n:
                w.line("__syncthreads();")
            with write_owner_loop(w, p.owner if p.adds_to_owners(n) else None):
                w.line(f"phase_{n}(s, warp);")


class _GatherFunctionWriter:
    def __init__(self, placement: CudaGatherPlacement, gather: Gather, w: Writer) -> None:
        self.p, self.s, self.g, self.w = placement, placement.schedule, gather, w
        names = {o: f"{o}_{{}}" for o in (*SLOTS, *BETWEEN)}
        self.expressions = CppExpressions(placement.schedule.target.dtype, names)

    def write_gather_function(self) -> None:
        """Write the function that computes the gather's sums."""
        g = self.g
        with self.w.block(f"DEVICE void gather_{g.number}(const Step& s, const int chunk)"):
            self._write_variables_for_row_and_copy_of_lane()
            self.w.line(f"num sum[{g.components}] = {{}};")
            with self._write_loop_over_summed_rows():
                self._write_pointers_to_row_operands()
                for part in g.parts:
                    self._write_sum_of_path(part)
            low, high = (1, g.width) if g.neighbours_share else (g.at_once, LANES)
            if g.width > 1:
                self.w.line(f"sum_lanes<{low}, {high}>(sum);")
            with self.w.block("if (alive)"):
                self._write_stores_of_sums()

    # -- items --

    def _write_variables_for_row_and_copy_of_lane(self) -> None:
        w, g = self.w, self.g
        mine, sharer = ("/", "%") if g.neighbours_share else ("%", "/")
        by = g.width if g.neighbours_share else g.at_once
        w.line(f"const int lane = threadIdx.x % {LANES};")
        item = "lane" if g.width == 1 else f"lane {mine} {by}" if g.width < LANES else ""
        w.line(f"const int n = {' + '.join(filter(None, [item, f'chunk * {g.at_once}']))};")
        if g.width > 1:
            w.line(f"const int sharer = lane {sharer} {by};" if g.width < LANES else "const int sharer = lane;")
        limit = f"s.rows * {g.copies}" if g.rows > 1 else str(g.copies)
        w.line(f"const bool inside = n < {limit};")
        w.line(f"const bool alive = inside{' && sharer == 0' if g.width > 1 else ''};")
        w.line("const int item = inside ? n : 0;")
        if g.rows > 1:
            w.line(f"const int row = item / {g.copies}, copy = item % {g.copies};")
        else:
            w.line("const int copy = item;")
            if g.rows_per_item == 1:
                w.line("const int row = 0;")

    @contextmanager
    def _write_loop_over_summed_rows(self) -> Iterator[None]:
        # all rows, where they add to the same
        if self.g.rows_per_item == 1:
            yield
        else:
            first, end = ("s.from", "s.to") if self.g.target == self.p.owner else ("0", "s.rows")
            with self.w.block(f"for (int row = {first}; row < {end}; ++row)"):
                yield

    def _write_pointers_to_row_operands(self) -> None:
        read = {name for part in self.g.parts for name in part.reads}
        for o in (o for o in self.p.given if o in read):
            row = "" if self.p.has_shared_weights(o) else f" + row * {self.p.dim[o]}"
            self.w.line(f"const real* const row_{o} = s.{o}{row};")
        for name in (name for name in BETWEEN if name in read):
            self.w.line(f"const num* const {name} = s.{name} + row * {self.p.intermediate_dims[name]};")

    def _write_stores_of_sums(self) -> None:
        g, w = self.g, self.w
        carried, between = self.p.is_summed_over_rows(g.target), g.target in BETWEEN
        to = g.target if between else f"d_{g.target}"
        size = self.p.intermediate_dims[g.target] if between else self.p.dim[g.target]
        w.line(f"{'num' if between or carried else 'real'}* const to = s.{to}{'' if carried else f' + row * {size}'};")
        copy, component = g.strides
        put = "to[{0}] += sum[{1}];" if carried else "to[{0}] = sum[{1}];" if between else "to[{0}] = narrow(sum[{1}]);"
        for n in range(g.components):
            w.line(put.format(cpp_index_expression(g.start + n * component, [("copy", copy)]), n))

    # -- one path --

    def _write_sum_of_path(self, part: GatherPart) -> None:
        with self.w.paths(part.term.path), self.w.block(""):
            self.w.line(f"// path {part.term.path}: {part.term.text}")
            self._write_unraveled_copy_indices([(a, part.term.size(a)) for a in part.own], "copy")
            if part.times == 1 and self.g.width == 1:
                self._write_unraveled_copy_indices(part.over, "0")
                self._write_statements_with_pair_indices(part)
                return
            step = max(1, min(8, _UNROLLED // len(part.statements)))
            first = "sharer" if self.g.width > 1 else "0"
            self.w.line(f"#pragma unroll {step}")
            with self.w.block(f"for (int m = {first}; m < {part.times}; m += {self.g.width})"):
                self._write_unraveled_copy_indices(part.over, "m")
                self._write_statements_with_pair_indices(part)

    def _write_unraveled_copy_indices(self, axes: Sequence[tuple[str, int]], flat_index: str) -> None:
        # copies by their letters, from a number that counts them all
        for n, (letter, size) in enumerate(axes):
            behind = prod(size for _, size in axes[n + 1 :])
            over = flat_index if behind == 1 else f"{flat_index} / {behind}"
            self.w.line(f"const int {letter} = {0 if size == 1 else f'{over} % {size}' if n else over};")

    def _write_statements_with_pair_indices(self, part: GatherPart) -> None:
        term = part.term
        if not term.pairs:
            self._write_part_statements(part)
        elif part.own in ("a", "b"):
            n = term.pairs
            with self.w.block("if (a < b)"):
                self.w.line(f"const int p = a * ({2 * n - 1} - a) / 2 + b - a - 1;")
                self._write_part_statements(part)
        else:
            for letter in ("a", "b") if {"x1", "x2"} & set(part.reads) else ():
                self.w.line(f"const int {letter} = pair_{letter}_{term.pairs}[p];")
            self._write_part_statements(part)

    def _write_part_statements(self, part: GatherPart) -> None:
        for s in part.statements:
            match s:
                case Load():
                    name = self.expressions.value_expression(s.target)
                    self.w.line(f"const num {name} = {self._cpp_load(part.term, s.target)};")
                case Define():
                    self.w.line(f"const num {s.target} = {self.expressions.sum_expression(s.terms)};")
                case Accumulate():
                    self.w.line(f"sum[{s.target.index}] += {self.expressions.sum_expression(s.terms)};")

    def _cpp_load(self, term: Term, component: Component) -> str:
        if component.operand not in BETWEEN:
            return f"widen(row_{component.operand}[{self._cpp_index_of_component(term, component)}])"
        start = self.p.places[component.operand, term.path]
        k = term.size("k")
        sizes = [(a, k * term.size(term.inputs[n + 1 :])) for n, a in enumerate(term.inputs)]
        return f"{component.operand}[{cpp_index_expression(start + component.index, sizes)}]"

    def _cpp_index_of_component(self, term: Term, component: Component) -> str:
        leg = term.leg(component.operand)
        assert leg is not None
        variables = {INDEX.get(component.operand, ""): str(component.index)}
        steps = [(variables.get(a, a), term.size(leg.letters[n + 1 :])) for n, a in enumerate(leg.letters)]
        return cpp_index_expression(self.s.segment_start(term, component.operand), steps)
