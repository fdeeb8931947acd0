"""CUDA text of product kernels."""

from __future__ import annotations

from collections.abc import Callable

from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.cuda.channel_text import ChannelStepWriter
from tpgen.kernels.cuda.gather_placement import CudaGatherPlacement
from tpgen.kernels.cuda.gather_text import GatherStepWriter
from tpgen.kernels.cuda.placement import AnyPlacement
from tpgen.kernels.cuda.prelude import ENTRY, cuda_header, write_cuda_prelude
from tpgen.kernels.cuda.steps import SLOTS_AREA, SharedMemoryPlacement
from tpgen.kernels.sweep.terms import SLOTS

_ENDS = {"x1": "src", "out": "dst"}  # of an edge, whose rows these are


class ProductKernelWriter:
    """Writes a product's CUDA kernel."""

    def __init__(self, placement: AnyPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w
        self.dtype = placement.schedule.target.dtype
        self.body = (
            GatherStepWriter(placement, w)
            if isinstance(placement, CudaGatherPlacement)
            else ChannelStepWriter(placement, w)
        )

    def write_kernel_source(self) -> None:
        """Write prelude, device functions and kernels."""
        self._write_with_part_label("placement", self._write_header_comment)
        self._write_constants_and_headers()
        self._write_with_part_label("tables", self.body.write_constant_arrays)
        self._write_with_part_label("a step", self._write_step_struct)
        self.body.write_device_functions()
        rows = _RowTransferWriter(self.p, self.w)
        self._write_with_part_label("rows fetched", rows.write_call_struct)
        if self.p.indexed:
            self._write_with_part_label("edges", self._write_device_functions_of_edges)
        self._write_with_part_label("rows fetched", rows.write_fetch_function)
        self._write_with_part_label("a step", self._write_compute_function)
        if self.p.results:
            self._write_with_part_label("rows delivered", rows.write_store_function)
        self._write_with_part_label("the kernel", self._write_kernel_entry_point)
        if self.p.sums_weights:
            self._write_with_part_label("the kernel", self._write_weight_gradient_sum_kernel)
        if self.p.scattered:
            self._write_with_part_label("the kernel", self._write_node_sum_kernel)

    def _write_with_part_label(self, name: str, write: Callable[[], None]) -> None:
        with self.w.part(name):
            write()

    def _write_header_comment(self) -> None:
        for line in str(self.p).split("\n"):
            self.w.line(f"// {line}")

    def _write_constants_and_headers(self) -> None:
        w, p = self.w, self.p
        counts = {
            "THREADS": p.threads,
            "BLOCKS": p.max_blocks_per_multiprocessor,
            "ROWS": p.rows,
            "STAGES": p.stage_count,
        }
        write_cuda_prelude(w, self.dtype, ", ".join(f"{name} = {count}" for name, count in counts.items()))
        w.raw(cuda_header("copies"))
        w.raw(cuda_header("gather" if isinstance(self.p, CudaGatherPlacement) else "lanes"))

    # -- what a step works on --

    def _write_step_struct(self) -> None:
        p, w = self.p, self.w
        with w.block("struct Step", "};"):
            for o in p.given:
                w.line(f"const real* {o};")
            for o in p.opened:
                w.line(f"{'num' if p.needs_accumulation_buffer(o) else 'real'}* d_{o};")
            for name, size in p.intermediate_dims.items():
                if size:
                    w.line(f"num* {name};")
            w.line("int rows;")
            if p.by:
                w.line("int from, to;  // rows of one owner")

    def _write_compute_function(self) -> None:
        run = "const Call& call, Step& s, Run& run, const Ends* ends" if self.p.by else "const Step& s"
        with self.w.block(f"DEVICE void compute({run})"):
            self.body.write_compute_function_body()

    def _write_device_functions_of_edges(self) -> None:
        w, owner, held = self.w, self.p.owner, self.p.held
        w.raw(cuda_header("edges"))
        if self.p.by:
            w.line(f"enum {{ {'OWNED' if owner else 'HELD'} = {self.p.dim[self.p.by]} }};")
            w.line(f"DEVICE i64 owner_of(const Ends& e) {{ return e.{_ENDS[self.p.by]}; }}")
        if held:
            w.line(f"DEVICE const real* held(const Call& call) {{ return call.{held}; }}")
            w.line(f"DEVICE const real* held(const Step& s) {{ return s.{held}; }}")
            w.raw(cuda_header("held"))
        if owner:
            w.line(f"DEVICE real* owned(const Call& call) {{ return call.d_{owner}; }}")
            w.line(f"DEVICE num* owned(const Step& s) {{ return s.d_{owner}; }}")
            w.raw(cuda_header("owners"))

    # -- the kernel --

    def _write_kernel_entry_point(self) -> None:
        p, w = self.p, self.w
        with w.block(f'extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) {ENTRY}(const Call call)'):
            w.line("unsigned char* const shared = shared_memory();")
            w.line("u64* const barriers = (u64*)shared;")
            count = "STAGES + 1" if p.held else "STAGES"
            w.line(f"if (threadIdx.x == 0) for (int n = 0; n < {count}; ++n) barrier_init(barriers + n);")
            w.line("Step s;")
            self._write_pointers_to_shared_memory()
            w.line("int at = 0;")
            w.line("unsigned parity = 0;")
            if p.indexed:
                self._write_edge_range_of_block()
            else:
                w.line("__syncthreads();")
                w.line("const i64 begin = (i64)blockIdx.x * ROWS, by = (i64)gridDim.x * ROWS, end = call.rows;")
            self._write_loop_over_steps_of_rows()
            if p.owner:
                w.line("settle(call, s, run, end == call.rows ? call.owners : run.owner + 1);")
            w.line("delivered();")

    def _write_pointers_to_shared_memory(self) -> None:
        # areas that stay where they are
        p, w = self.p, self.w
        kinds = {f"d_{o}": "num" if p.needs_accumulation_buffer(o) else "real" for o in p.opened} | dict.fromkeys(
            p.given, "const real"
        )
        for name, place in p.areas.items():
            if name == SLOTS_AREA:
                continue
            w.line(f"s.{name} = ({kinds.get(name, 'num')}*)(shared + {place});")
        if p.schedule.shared_weights and "w" in p.given and p.dim["w"]:
            w.line("s.w = call.w;")
        if p.sums_weights:
            w.line(f"s.d_w = call.sums + (i64)blockIdx.x * {p.dim['w']};")
            w.line(f"clear(s.d_w, {p.dim['w']});")
        if p.rows == 1:
            w.line("s.rows = 1;")

    def _write_edge_range_of_block(self) -> None:
        # an equal share of all edges, in their order
        w, p = self.w, self.p
        w.line("const i64 begin = run_begin(call, blockIdx.x, gridDim.x), by = ROWS;")
        w.line("const i64 end = run_begin(call, blockIdx.x + 1, gridDim.x);")
        w.line(f"Ends* const slots = (Ends*)(shared + {p.areas[SLOTS_AREA]});")
        if p.owner:
            w.line("clear(owned(s), OWNED);")
            w.line("Run run = owners_of(call, begin, end);")
        if p.held:
            w.line("Run run = {-1, 0, barriers + STAGES};")
        w.line("Ahead ahead = begin_run(call, slots, begin, end);")
        w.line("int step = 0;")

    def _write_loop_over_steps_of_rows(self) -> None:
        w, p = self.w, self.p
        size = -(-p.stage_bytes // 128) * 128
        place = f"shared + {p.first_stage_offset} + {{0}} * {size}, barriers + {{0}}"
        if p.stage_count > 1:
            with w.block("for (int n = 0; n < STAGES - 1; ++n)"):
                w.line("const i64 q = begin + n * by;")
                self._write_call_that_fetches_rows("q", place.format("(at + n) % STAGES"), "n")
        with w.block("for (i64 q = begin; q < end; q += by)"):
            w.line("delivered();")
            w.line("const i64 later = q + (STAGES - 1) * by;")
            self._write_call_that_fetches_rows("later", place.format("(at + STAGES - 1) % STAGES"), "step + STAGES - 1")
            if p.indexed:
                w.line("look_ahead(call, ahead);")
            w.line("fetched(barriers + at, parity);")
            w.line(f"unsigned char* const stage = shared + {p.first_stage_offset} + at * {size};")
            self._write_pointers_to_rows_of_step()
            if p.indexed and (p.by or p.results):
                w.line("const Ends* const ends = ends_of_step(slots, step);")
            w.line("compute(call, s, run, ends);" if p.by else "compute(s);")
            if p.results:
                w.line(f"deliver_rows(call, s, {'ends' if p.indexed else 'q'}, s.rows);")
            if p.indexed:
                w.line("put_down(ahead, ends_of_step(slots, step + STAGES));")
                w.line("++step;")
            w.line("if (++at == STAGES) at = 0, parity ^= 1;")

    def _write_call_that_fetches_rows(self, first_row: str, destination: str, step: str) -> None:
        # ask for the rows of a step, where there is one
        which = f"ends_of_step(slots, {step})" if self.p.indexed else first_row
        self.w.line(f"if ({first_row} < end) fetch_rows(call, {destination}, {which}, rows_of({first_row}, end));")
        self.w.line("fetch_end();")

    def _write_pointers_to_rows_of_step(self) -> None:
        p, w = self.p, self.w
        for o, place in p.stage.items():
            w.line(f"s.{o} = (const real*)(stage + {place});")
            if o in p.results and p.may_overwrite_operand(o) and not p.needs_accumulation_buffer(o):
                w.line(f"s.d_{o} = (real*)(stage + {place});")
        if p.rows > 1:
            w.line("s.rows = rows_of(q, end);")

    def _write_weight_gradient_sum_kernel(self) -> None:
        # the blocks' parts of the gradient of weights that all rows share, added up
        self.w.line(f"enum {{ WEIGHTS = {self.p.dim['w']} }};")
        self.w.raw(cuda_header("sum"))

    def _write_node_sum_kernel(self) -> None:
        # write the kernel that adds up results of edges for each node
        (operand,) = self.p.scattered
        self.w.line(f"enum {{ COLLECTED = {self.p.dim[operand]} }};")
        self.w.raw(cuda_header("collect"))


class _RowTransferWriter:
    def __init__(self, placement: SharedMemoryPlacement, w: Writer) -> None:
        self.p, self.w = placement, w

    def _cpp_row_address(self, operand: str, prefix: str = "") -> str:
        # the first row of a step in an operand
        nodes = not (prefix and operand in self.p.scattered)
        index = f"ends[r].{_ENDS.get(operand, 'edge') if nodes else 'edge'}" if self.p.indexed else "q"
        return f"call.{prefix}{operand} + {index} * {self.p.dim[operand]}"

    @property
    def _rows_argument(self) -> str:
        return "const Ends* ends" if self.p.indexed else "i64 q"

    def write_call_struct(self) -> None:
        """Write ``struct Call``, the kernel's argument."""
        w = self.w
        with w.block("struct Call", "};"):
            w.line(f"const real {', '.join('*' + o for o in SLOTS)};")
            w.line(f"real {', '.join('*d_' + o for o in SLOTS)};")
            w.line("i64 rows, owners;")
            w.line("const i64 *order, *src, *dst;  // of edges: those of each owner together, and what they join")
            w.line("num *sums, *ends;  // of blocks: of weights, and of owners at the ends of their runs")

    def write_fetch_function(self) -> None:
        """Write the device function that fetches rows to shared memory."""
        p, w = self.p, self.w
        with w.block("DEVICE int rows_of(i64 q, i64 end)"):
            w.line("return end - q < ROWS ? (int)(end - q) : ROWS;")
        arguments = f"const Call& call, unsigned char* stage, u64* barrier, {self._rows_argument}, const int n"
        with w.block(f"DEVICE void fetch_rows({arguments})"):
            if p.indexed:
                self._write_fetch_of_edge_rows()
            else:
                self._write_fetch_of_consecutive_rows()

    def _write_fetch_of_consecutive_rows(self) -> None:
        # rows that stand side by side
        p, w = self.p, self.w
        whole = [o for o in p.row_operands if p.copies_rows_whole(o)]
        with w.block("if (n == ROWS)" if p.rows > 1 else ""):
            w.line(f"fetch_begin(barrier, {sum(p.row_bytes(o) for o in whole) * p.rows});")
            for o in p.row_operands:
                self._write_operand_fetch(o, o in whole)
        if p.rows > 1:
            with w.block("else"):
                w.line("fetch_begin(barrier, 0);")
                for o in p.row_operands:
                    self._write_operand_fetch(o, False)

    def _write_operand_fetch(self, operand: str, in_bulk: bool) -> None:
        p, place = self.p, f"stage + {self.p.stage[operand]}"
        if in_bulk:
            self.w.line(f"fetch({place}, {self._cpp_row_address(operand)}, {p.row_bytes(operand) * p.rows}, barrier);")
        else:
            count = f"n * {p.dim[operand]}" if p.rows > 1 else p.dim[operand]
            self.w.line(f"fetch_numbers((real*)({place}), {self._cpp_row_address(operand)}, {count});")

    def _write_fetch_of_edge_rows(self) -> None:
        # rows that stand apart: whole ones each by itself, short ones by all threads
        p, w = self.p, self.w
        whole, short = ([o for o in p.row_operands if p.copies_rows_whole(o) == yes] for yes in (True, False))
        w.line(f"fetch_begin(barrier, n * {sum(map(p.row_bytes, whole))});")
        self._write_row_loops(whole, short, self._write_fetch_of_one_row)

    def _write_row_loops(
        self, bulk_operands: list[str], other_operands: list[str], write_operand: Callable[[str, bool], None]
    ) -> None:
        for operands, head in (
            (bulk_operands, "int r = first_row(); r < n; r = next_row(r)"),
            (other_operands, "int r = 0; r < n; ++r"),
        ):
            if operands:
                self.w.raw("#pragma unroll 1")  # few threads have a row at all
                with self.w.block(f"for ({head})"):
                    for o in operands:
                        write_operand(o, o in bulk_operands)

    def _write_fetch_of_one_row(self, operand: str, in_bulk: bool) -> None:
        p, place = self.p, f"stage + {self.p.stage[operand]} + r * {self.p.row_bytes(operand)}"
        if in_bulk:
            self.w.line(f"fetch_row({place}, {self._cpp_row_address(operand)}, {p.row_bytes(operand)}, barrier);")
        else:
            self.w.line(f"fetch_numbers((real*)({place}), {self._cpp_row_address(operand)}, {p.dim[operand]});")

    def write_store_function(self) -> None:
        """Write the device function that stores results of rows."""
        p, w = self.p, self.w
        with w.block(f"DEVICE void deliver_rows(const Call& call, const Step& s, {self._rows_argument}, const int n)"):
            w.line("deliver_begin();")
            whole = [o for o in p.results if p.copies_rows_whole(o) and not p.needs_accumulation_buffer(o)]
            if p.indexed:
                self._write_row_loops(whole, [o for o in p.results if o not in whole], self._write_store_of_one_row)
            else:
                for o in p.results:
                    self._write_stores_of_consecutive_rows(o, o in whole)
            w.line("deliver_end();")

    def _write_stores_of_consecutive_rows(self, operand: str, in_bulk: bool) -> None:
        p, place, dim = self.p, self._cpp_row_address(operand, "d_"), self.p.dim[operand]
        slow = f"{'write_out' if p.needs_accumulation_buffer(operand) else 'copy'}({place}, s.d_{operand}, n * {dim});"
        if in_bulk:
            self.w.line(f"if (n == ROWS) deliver({place}, s.d_{operand}, {p.row_bytes(operand) * p.rows});")
        self.w.line(f"else {slow}" if in_bulk else slow)

    def _write_store_of_one_row(self, operand: str, in_bulk: bool) -> None:
        p, place = self.p, self._cpp_row_address(operand, "d_")
        here = f"s.d_{operand} + r * {p.dim[operand]}"
        if in_bulk:
            self.w.line(f"deliver_row({place}, {here}, {p.row_bytes(operand)});")
        else:
            self.w.line(
                f"{'write_out' if p.needs_accumulation_buffer(operand) else 'copy'}({place}, {here}, {p.dim[operand]});"
            )
