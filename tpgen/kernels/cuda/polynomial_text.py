"""CUDA text of polynomials."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tpgen.kernels.cpp.polynomial import PolynomialRowWriter, TargetTemplates
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.polynomial_placement import ComponentSum, CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, ENTRY, SUM_ENTRY, cuda_header, write_cuda_prelude
from tpgen.kernels.placement.polynomial import polynomial_slot_name
from tpgen.kernels.sweep.statements import Component
from tpgen.planner.polynomial_plan import format_terms

COUNT_ARGUMENTS = ("rows", "elements", "channels", "width", "span")
_KERNEL = f'extern "C" __global__ void __launch_bounds__({LANES} * WARPS, 1)'
# Statements of a row: more stand in a function of their own, so that what the loop over rows keeps takes no registers.
_LONG = 2500


_LANES = TargetTemplates(
    "num",
    "num(1)",
    f"{{0}}[{{1}} * {LANES}]",
    f"{{0}}[{{1}} * {LANES}] += {{2}};",
    "l.alive ? widen(p_{0}[{1}]) : 0",
    "get<{2}>(p_{0} + {1} * call.channels, l, t_{0} + {1});",
    "set<{2}>(o_{0} + {1} * call.channels, l, d_{0} + {1});",
)


class PolynomialKernelWriter:
    """Writes a polynomial's CUDA kernels."""

    def __init__(self, placement: CudaPolynomialPlacement, w: Writer) -> None:
        self.at, self.sweep, self.w = placement, placement.sweep, w
        self.row = PolynomialRowWriter(placement, w, _LANES)

    def write_kernel_source(self) -> None:
        """Write prelude, device functions and kernels."""
        self._write_constants_and_call_struct()
        if self.at.coefficients:
            self._write_coefficient_function()
        self._write_row_function()
        self._write_row_kernel()
        if self.at.open_weights:
            self._write_weight_gradient_function()
            self._write_weight_gradient_kernel()
        if self.at.channel_sums:
            self._write_channel_sum_kernel()

    def _write_constants_and_call_struct(self) -> None:
        w, at = self.w, self.at
        for line in [*format_terms(at.plan).split("\n"), *str(at).split("\n")]:
            w.line(f"// {line}")
        tables = (
            f"COEFFICIENTS = {self.sweep.coefficients}, KEPT = {at.block_coefficients}, ADDED = {at.warp_gradients}"
        )
        write_cuda_prelude(w, at.target.dtype, f"WARPS = {at.warps}, TILE = {at.transpose_size * LANES}", tables)
        with w.block("struct Call", "};"):
            for s in at.given:
                w.line(f"const real* p_{polynomial_slot_name(s)};")
            for s in at.opened:
                w.line(f"real* o_{polynomial_slot_name(s)};")
            w.line("num* sums;  // of gradients of coefficients, by task")
            for s in at.channel_sums:
                w.line(f"num* s_{polynomial_slot_name(s)};  // sums over some channels")
            w.line("const i64 *first, *order;  // rows by element")
            w.line(f"i64 {', '.join(COUNT_ARGUMENTS)};")
        w.raw(cuda_header("polynomial"))

    # -- one row --

    @property
    def _is_row_code_called_function(self) -> bool:
        # arguments of a called function are in registers, or in the memory that they came from
        return len(self.sweep.rows) > _LONG

    def _write_row_function(self) -> None:
        at, w = self.at, self.w
        arguments = [
            "const Call& call",
            f"const Lane{'' if self._is_row_code_called_function else '&'} l",
            "i64 r",
            "i64 chunk",
        ]
        arguments += [f"const num* {polynomial_slot_name(s)}" for s in at.coefficients]
        arguments += [f"num* {polynomial_slot_name(s)}" for s in at.adjoints]
        kind = "static __device__ __noinline__" if self._is_row_code_called_function else "DEVICE"
        with w.part("function row"), w.block(f"{kind} void row({', '.join(arguments)})"):
            for slot in at.inputs:
                self._write_pointer_to_row("const real*", "p", slot)
                self.row.write_loads(slot)
            self.row.write_declarations_of_zero_sums()
            for statement in self.sweep.rows:
                self.row.write_cpp_statement(statement)
            for slot in at.stored:
                self._write_pointer_to_row("real*", "o", slot)
                self.row.write_stores(slot)
            for slot in at.channel_sums:
                self._write_sum_over_channels(slot)

    def _write_pointer_to_row(self, pointer_type: str, prefix: str, slot: str) -> None:
        name = f"{prefix}_{polynomial_slot_name(slot)}"
        self.w.line(f"{pointer_type} const {name} = call.{name} + r * {self.at.row_size_text(slot, 'call.channels')};")

    def _write_sum_over_channels(self, slot: str) -> None:
        name, dim = polynomial_slot_name(slot), self.at.operands[slot].dim
        with self.w.block(f"for (int i = 0; i < {dim}; ++i)"):
            self.w.line(f"const num sum = over_channels(d_{name}[i], l, (int)call.width);")
            self.w.line(
                f"if (l.alive && l.lane % call.width == 0) call.s_{name}[(chunk * call.rows + r) * {dim} + i] = sum;"
            )

    # -- one element --

    def _write_coefficient_function(self) -> None:
        arguments = [f"num* {polynomial_slot_name(s)}" for s in self.at.coefficients]
        self._write_function_with_sums_by_warp(
            "prologue", arguments, self.at.coefficient_sums_by_warp, self._template_that_stores_coefficient
        )

    def _template_that_stores_coefficient(self, place: Component) -> str:
        return f"{polynomial_slot_name(place.operand)}[{place.index} * {LANES}] = {{}};"

    def _write_weight_gradient_function(self) -> None:
        arguments = [f"const num* {polynomial_slot_name(s)}" for s in self.at.adjoints]
        self._write_function_with_sums_by_warp(
            "epilogue", arguments, self.at.weight_gradient_sums_by_warp, self._template_that_stores_weight_gradient
        )

    def _template_that_stores_weight_gradient(self, place: Component) -> str:
        name, dim = polynomial_slot_name(place.operand), self.at.operands[place.operand].dim
        return f"call.o_{name}[(e * {dim} + {place.index}) * call.channels + c] = narrow({{}});"

    def _write_function_with_sums_by_warp(
        self,
        name: str,
        arguments: list[str],
        sums_by_warp: list[list[ComponentSum]],
        make_store_template: Callable[[Component], str],
    ) -> None:
        head = ", ".join(["const Call& call", "i64 e", "i64 c", "int warp", *arguments])
        with self.w.part(f"function {name}"), self.w.block(f"DEVICE void {name}({head})"):
            for warp, sums in enumerate(sums_by_warp):
                if sums:
                    with self.w.block(f"if (warp == {warp})"):
                        self._write_weight_loads_and_sums(sums, make_store_template)

    def _write_weight_loads_and_sums(
        self, sums: list[ComponentSum], make_store_template: Callable[[Component], str]
    ) -> None:
        for slot, used in _list_weight_indices_by_operand(self.at, sums):
            name, dim = polynomial_slot_name(slot), self.at.operands[slot].dim
            self.w.line(f"num t_{name}[{dim}];")
            for i in used:
                self.w.line(f"t_{name}[{i}] = widen(call.p_{name}[(e * {dim} + {i}) * call.channels + c]);")
        for place, terms in sums:
            self.w.line(make_store_template(place).format(self.row.expressions.sum_expression(terms) or "0"))

    # -- the kernels --

    def _write_row_kernel(self) -> None:
        w, at = self.w, self.at
        call = f"const {'__grid_constant__ ' * self._is_row_code_called_function}Call call"
        with w.part("kernel of rows"), w.block(f"{_KERNEL} {ENTRY}({call})"):
            w.line("const i64 chunks = (call.channels + call.width - 1) / call.width, chunk = blockIdx.x % chunks;")
            w.line("const Task task = find_task(call, blockIdx.x / chunks);")
            w.line("if (task.from >= task.to) return;")
            w.line("num* const shared = (num*)shared_memory();")
            w.line(f"const int warp = this_warp(), lane = threadIdx.x % {LANES};")
            w.line(f"const int width = (int)call.width, rows = {LANES} / width;")
            w.line("const i64 c = chunk * width + lane % width;")
            tables = [f"shared + {LANES} * COEFFICIENTS * {n} + lane" for n in range(len(at.coefficients))]
            if at.coefficients:
                last = "c < call.channels ? c : call.channels - 1"
                w.line(f"prologue({', '.join(['call', 'task.element', last, 'warp', *tables])});")
            w.line(f"num* const added = shared + {LANES} * (KEPT + warp * ADDED);")
            if at.adjoints:
                w.line(f"for (int n = lane; n < {LANES} * ADDED; n += {LANES}) added[n] = 0;")
            w.line("__syncthreads();")
            w.line(f"num* const tile = shared + {LANES} * (KEPT + WARPS * ADDED) + warp * TILE;")
            with w.block("for (i64 q = task.from + warp * rows; q < task.to; q += WARPS * rows)"):
                w.line("const i64 mine = q + lane / width, there = mine < task.to ? mine : q;")
                w.line("const bool alive = mine < task.to && c < call.channels;")
                w.line("const Lane l = {lane, rows == 1, alive, call.channels, c, tile};")
                sums = [f"added + {LANES} * COEFFICIENTS * {n} + lane" for n in range(len(at.adjoints))]
                row = "call.order ? call.order[there] : there"
                w.line(f"row({', '.join(['call', 'l', row, 'chunk', *tables, *sums])});")
            if at.adjoints:
                self._write_sums_over_rows_of_task()

    def _write_sums_over_rows_of_task(self) -> None:
        # over all warps, and over the rows of each warp, in order
        w = self.w
        w.line("__syncthreads();")
        with w.block("for (int n = warp; n < ADDED; n += WARPS) if (lane < width && c < call.channels)"):
            w.line("num sum = 0;")
            with w.block("for (int m = 0; m < WARPS * rows; ++m)"):
                w.line(f"sum += shared[{LANES} * (KEPT + m / rows * ADDED + n) + m % rows * width + lane];")
            w.line("call.sums[(blockIdx.x / chunks * ADDED + n) * call.channels + c] = sum;")

    def _write_weight_gradient_kernel(self) -> None:
        # sums over an element's tasks in order, then the gradient of each weight
        w, at = self.w, self.at
        with w.part("kernel of weights"), w.block(f"{_KERNEL} {SUM_ENTRY}(const Call call)"):
            w.line(f"const i64 chunks = (call.channels + {LANES - 1}) / {LANES}, e = blockIdx.x / chunks;")
            w.line(f"const int warp = this_warp(), lane = threadIdx.x % {LANES};")
            w.line(f"const i64 c = blockIdx.x % chunks * {LANES} + lane, t = task_of(call, e);")
            w.line("const i64 count = (first_of(call, e + 1) - first_of(call, e) + call.span - 1) / call.span;")
            w.line("num* const sums = (num*)shared_memory() + lane;")
            w.line("if (c < call.channels)")
            self._write_sums_over_tasks_of_element()
            w.line("__syncthreads();")
            sums = [f"sums + {LANES} * COEFFICIENTS * {n}" for n in range(len(at.adjoints))]
            w.line(f"if (c < call.channels) epilogue({', '.join(['call', 'e', 'c', 'warp', *sums])});")

    def _write_sums_over_tasks_of_element(self) -> None:
        # a warp adds several sums side by side: loads of some tasks overlap
        w = self.w
        each, ahead = f"for (int k = 0; k < {self.at.together}; ++k)", self.at.ahead
        with w.block(f"for (int n = warp; n < ADDED; n += WARPS * {self.at.together})"):
            w.line(f"num sum[{self.at.together}] = {{}};")
            with w.block(f"for (i64 m = t; m < t + count; m += {ahead})"):
                w.line(f"num found[{ahead}][{self.at.together}];")
                w.raw("#pragma unroll")
                with w.block(f"for (int a = 0; a < {ahead}; ++a)"):
                    w.raw("#pragma unroll")
                    w.line(f"{each} found[a][k] = m + a < t + count && n + k * WARPS < ADDED")
                    w.line("  ? call.sums[((m + a) * ADDED + n + k * WARPS) * call.channels + c] : 0;")
                w.raw("#pragma unroll")
                with w.block(f"for (int a = 0; a < {ahead}; ++a)"):
                    w.raw("#pragma unroll")
                    w.line(f"{each} sum[k] += found[a][k];")
            w.raw("#pragma unroll")
            w.line(f"{each} if (n + k * WARPS < ADDED) sums[(n + k * WARPS) * {LANES}] = sum[k];")

    def _write_channel_sum_kernel(self) -> None:
        w = self.w
        with w.part("kernel of channels"), w.block(f"{_KERNEL} {CHANNELS_ENTRY}(const Call call)"):
            w.line("const i64 chunks = (call.channels + call.width - 1) / call.width;")
            w.line("const i64 place = blockIdx.x * (i64)blockDim.x + threadIdx.x;")
            for slot in self.at.channel_sums:
                name, dim = polynomial_slot_name(slot), self.at.operands[slot].dim
                with w.block(f"if (place < call.rows * {dim})"):
                    w.line("num sum = 0;")
                    w.line(f"for (i64 n = 0; n < chunks; ++n) sum += call.s_{name}[n * call.rows * {dim} + place];")
                    w.line(f"call.o_{name}[place] = narrow(sum);")


def _list_weight_indices_by_operand(
    placement: CudaPolynomialPlacement, sums: Iterable[ComponentSum]
) -> list[tuple[str, list[int]]]:
    # the weights that some sums read, by slot
    values = {value for _, terms in sums for p in terms for value in p.factors if isinstance(value, Component)}
    found = ((s, sorted(v.index for v in values if v.operand == s)) for s in placement.weights)
    return [(slot, used) for slot, used in found if used]
