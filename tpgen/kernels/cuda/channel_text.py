"""CUDA text of a channel placement's step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from tpgen.kernels.cpp.text import Writer, number_literal
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.group_text import GroupFunctionWriter, list_lane_sum_operands
from tpgen.kernels.cuda.groups import next_power_of_two
from tpgen.kernels.cuda.tables import TableSet


class ChannelStepWriter:
    """Writes the CUDA text of a step: threads fill tables, warps run path groups, threads add partial sums."""

    def __init__(self, placement: CudaChannelPlacement, w: Writer) -> None:
        self.p, self.w = placement, w
        self.dtype = placement.schedule.target.dtype

    def write_constant_arrays(self) -> None:
        """Write C++ arrays of each table's coefficients and component positions."""
        for n, tables in enumerate(self.p.table_sets):
            for d in range(tables.depth):
                with self.w.paths(*tables.paths):
                    column = tables.column(d)
                    values = ", ".join(number_literal(value, self.dtype) for value, _ in column)
                    places = ", ".join(str(place) for _, place in column)
                    self.w.line(f"static __device__ const num value_{n}_{d}[] = {{{values}}};")
                    kind = _narrowest_unsigned_c_type(place for _, place in column)
                    self.w.line(f"static __device__ const {kind} place_{n}_{d}[] = {{{places}}};")

    def write_device_functions(self) -> None:
        with self.w.part("function group"):
            for group in self.p.groups:
                GroupFunctionWriter(self.p, group, self.w).write_function_of_path_group()
        with self.w.part("which warp does what"):
            self._write_work_table_and_warp_dispatch()
        with self.w.part("tables"):
            self._write_table_filling_function()

    def _write_table_filling_function(self) -> None:
        if not self.p.table_sets:
            return
        with self.w.block("DEVICE void tabulate(const Step& s)"):
            for n, tables in enumerate(self.p.table_sets):
                with self.w.paths(*tables.paths):
                    self._write_loop_over_table_entries(n, tables)

    def _write_loop_over_table_entries(self, set_number: int, tables: TableSet) -> None:
        w = self.w
        with w.block(f"for (int n = threadIdx.x; n < {tables.size * self.p.rows}; n += THREADS)"):
            row, copy = f"row * {self.p.dim[tables.operand]}", f"n / {tables.entries} % {tables.copies}"
            w.line(f"const int m = n % {tables.entries}, v = {copy}, row = n / {tables.size};")
            w.line(f"const real* const y = s.{tables.operand} + {row} + v * {tables.copy_stride};")
            terms = [f"value_{set_number}_{d}[m] * widen(y[place_{set_number}_{d}[m]])" for d in range(tables.depth)]
            w.line(f"s.T[row * {self.p.table_size} + {tables.offset} + n % {tables.size}] = {' + '.join(terms)};")

    def _write_work_table_and_warp_dispatch(self) -> None:
        # write the table of each warp's units; a group past the last is nothing
        w, p = self.w, self.p
        depth, nothing = p.depth, f"{{{len(p.groups)}, 0, 0}}"
        numbers = [n for units in p.work for u in units for n in (u.chunk, u.rows)]
        kind = "unsigned char" if max(len(p.groups), *numbers) < 2**8 else "unsigned short"  # wider: a register
        w.line(f"struct Unit {{ {kind} group, chunk, set; }};")
        with w.block(f"static __constant__ const Unit work[{p.warps}][{depth}] =", "};"):
            for units in p.work:
                listed = [f"{{{u.work.number}, {u.chunk}, {u.rows}}}" for u in units]
                w.line(f"{{{', '.join(listed + [nothing] * (depth - len(units)))}}},")
        with w.block("DEVICE void compute_units(const Step& s)"):
            w.line("const int warp = this_warp();")
            for o in list_lane_sum_operands(p):
                w.line(f"num y_{o}[{p.dim[o]}] = {{}};")
            with w.block(f"for (int n = 0; n < {depth}; ++n)"):
                self._write_switch_over_path_groups()
            for o, start, size in p.lane_sum_ranges:
                self._write_sum_over_lanes(o, start, size)

    def _write_switch_over_path_groups(self) -> None:
        w, p = self.w, self.p
        w.line("const Unit u = work[warp][n];")
        with w.block("switch (u.group)"):
            for group in p.groups:
                where = ", ".join(
                    ["u.chunk", *["u.set"] * (not p.serial), *(f"y_{o}" for o in list_lane_sum_operands(p))]
                )
                w.line(f"case {group.number}: group_{group.number}(s, {where}); break;")

    def _write_sum_over_lanes(self, operand: str, start: int, size: int) -> None:
        # the sum over lanes of what a warp has added up
        values = ", ".join(f"y_{operand}[{n}]" for n in range(start, start + size))
        with self.w.block(""):
            self.w.line(f"num y[{next_power_of_two(size)}] = {{{values}}};")
            part = f"s.p_{operand} + warp * {self.p.dim[operand]} + {start}"
            self.w.line(f"fold_lanes<{LANES}>(y, threadIdx.x % {LANES}, {size}, {part}, 1);")

    def write_compute_function_body(self) -> None:
        p, w = self.p, self.w
        if p.table_sets:
            w.line("tabulate(s);")
        for o in p.channel_sums:
            w.line(f"clear(s.p_{o}, {p.slots * p.dim[o] * p.rows});")
        for o in p.results:
            self._write_zeroing_of_result(o)
        w.line("__syncthreads();")
        owned = [o for o in p.channel_sums if o == p.owner]
        with write_owner_loop(w, p.by):
            w.line("compute_units(s);")
            self._write_sums_over_channels(owned)
        self._write_sums_over_channels([o for o in p.channel_sums if o not in owned])

    def _write_sums_over_channels(self, operands: Sequence[str]) -> None:
        if operands:
            self.w.line("__syncthreads();")
        for o in operands:
            self._write_sum_over_channels(o)

    def _write_zeroing_of_result(self, operand: str) -> None:
        # clear areas that are added to, and numbers that no path writes
        p, w, dim = self.p, self.w, self.p.dim[operand]
        if p.needs_accumulation_buffer(operand):
            w.line(f"clear(s.d_{operand}, {dim * p.rows});")
        elif operand not in p.channel_sums or p.schedule.views_of(operand):
            for start, size in p.starts_and_sizes_that_no_path_uses(operand):
                for row in range(p.rows):
                    w.line(f"clear(s.d_{operand} + {start + row * dim}, {size});")

    def _write_sum_over_channels(self, operand: str) -> None:
        # in the order of the groups; of all rows, or of one owner, that add to the same numbers
        p, w, dim = self.p, self.w, self.p.dim[operand]
        first, end, rows = "0", f"{p.slots}", p.rows
        if p.is_summed_over_rows(operand):
            begin, last = ("s.from", "s.to") if operand == p.owner else ("0", "s.rows")
            first, end, rows = f"{begin} * {p.slots}", f"{last} * {p.slots}", 1
        for start, size in p.sum_ranges(operand):
            with w.block(f"for (int n = threadIdx.x; n < {size * rows}; n += THREADS)"):
                w.line(f"const int row = n / {size}, place = {start} + n % {size};")
                w.line(f"const num* const part = s.p_{operand} + row * {p.slots * dim} + place;")
                w.line("num sum = 0;")
                w.line(f"for (int m = {first}; m < {end}; ++m) sum += part[m * {dim}];")
                put = f"s.d_{operand}[row * {dim} + place]"
                w.line(f"{put} += sum;" if p.needs_accumulation_buffer(operand) else f"{put} = narrow(sum);")


@contextmanager
def write_owner_loop(w: Writer, owner: str | None) -> Iterator[None]:
    """Write a loop over the nodes that own a step's rows; none without ``owner``."""
    if owner is None:
        yield
        return
    with w.block("for (s.from = 0; s.from < s.rows; s.from = s.to)"):
        w.line("next_piece(call, s, run, ends);")
        yield


def _narrowest_unsigned_c_type(numbers: Iterable[int]) -> str:
    """Narrowest of two C types that holds all numbers.

    >>> _narrowest_unsigned_c_type([0, 65535]), _narrowest_unsigned_c_type([65536])
    ('unsigned short', 'unsigned')
    """
    return "unsigned short" if max(numbers, default=0) < 2**16 else "unsigned"
