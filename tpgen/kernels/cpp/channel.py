"""C++ of the channel schedule."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from tpgen.form.form import Term
from tpgen.kernels.cpp.channel_rows import (
    RowGroupLoopWriter,
    RowGroupParameters,
    RowLoopWriter,
    row_function_parameters,
)
from tpgen.kernels.cpp.expressions import CppExpressions, RegisterSums, components_read
from tpgen.kernels.cpp.parts import PartFunctionWriter, parameter_list
from tpgen.kernels.cpp.prelude import header_text
from tpgen.kernels.cpp.text import Writer, write_sum_of_blocks
from tpgen.kernels.placement.channel import ChannelPlacement, cpp_slot_name, table_area_name, weights_area_name
from tpgen.kernels.placement.values import PlacedTable, SegmentView
from tpgen.kernels.sweep.statements import Accumulate, SweepStage, Tabulate
from tpgen.kernels.sweep.sweep import PathSweep
from tpgen.kernels.sweep.terms import INDEX, S, operand_of


class ChannelKernelWriter:
    """Writes C++ of a tensor product kernel with SIMD vectors over channels."""

    def __init__(self, placement: ChannelPlacement, w: Writer) -> None:
        self.p, self.s, self.w = placement, placement.schedule, w
        self.dtype = placement.schedule.target.dtype

    def write_functions_called_by_kernel(self) -> None:
        if self.p.in_parts:
            self._write_functions_of_coupling_tables_and_paths()
        else:
            self._write_function_that_fills_coupling_tables()
            self._write_function_that_computes_row()
        if self.p.owner:
            arguments = f"real* d_{self.p.owner}" + "".join(f", const num* {name}" for name in self.p.owner_sums)
            with self.w.part("function finish"), self.w.block(f"static void finish({arguments})"):
                self._write_stores_from_scratch_to_memory(self.p.owner, f"a_{self.p.owner}")

    def _write_functions_of_coupling_tables_and_paths(self) -> None:
        # a function for each table and for some paths each; a group of rows takes one path after the other
        parts, group = PartFunctionWriter(self.w), RowGroupParameters(self.p)
        for placed in self._coupling_tables_that_kernel_reads():
            filled = [slot for slot in self.p.tabulated_slots if self.p.statements_that_fill_table(placed, slot)]
            arguments = [
                ("num*", name) for slot in filled for name in (table_area_name(slot), f"t_{cpp_slot_name(slot)}")
            ]
            with self.w.part("function tabulate"), parts.function_block(arguments):
                self._write_entries_of_coupling_table(placed)
        tables = len(parts.calls)
        self.w.raw(header_text("ahead"))
        for paths in self.p.paths_of_each_function:
            with self.w.part("function row"), parts.function_block(group.row_group_parameters):
                for path in paths:
                    with group.loop_over_rows(self.w):
                        self._write_prefetches_for_path_after(path.term)
                        self._write_path_loops_over_multiplicities(path)
        self._write_function_that_fills_coupling_tables(parts.calls[:tables])
        with (
            self.w.part("function row"),
            self.w.block(f"static void row_group({parameter_list(group.row_group_parameters)})"),
        ):
            with group.loop_over_rows(self.w):
                self._write_input_staging_and_zeroed_sums_of_row()
            for call in parts.calls[tables:]:
                self.w.line(call)
            with group.loop_over_rows(self.w):
                self._write_stores_of_row_results()

    def _write_prefetches_for_path_after(self, term: Term) -> None:
        # ask for what the row's next path has in memory
        for view in self.p.views_to_prefetch(term):
            size = view.outer * view.channels * view.inner
            for slot in self.p.given:
                if operand_of(slot) == view.operand:
                    self.w.line(f"will_read<{size}>({cpp_slot_name(slot)} + {view.start});")
            if view.operand in self.p.opened:
                self.w.line(f"will_write<{size}>(d_{view.operand} + {view.start});")

    def _coupling_tables_that_kernel_reads(self) -> list[PlacedTable]:
        return [placed for placed in self.s.tables if placed.operand in map(operand_of, self.p.tabulated_slots)]

    def _write_function_that_fills_coupling_tables(self, part_calls: Sequence[str] = ()) -> None:
        slots = self.p.tabulated_slots
        arguments = "".join(f", num* {name}" for name in self.p.table_areas)
        arguments += "".join(f", const real* const* p_{o}, num* t_{o}" for o in map(cpp_slot_name, slots))
        with self.w.part("function tabulate"), self.w.block(f"static void tabulate(int n{arguments})"):
            for slot in slots:
                o = cpp_slot_name(slot)
                with self.w.block("for (int r = 0; r < W; ++r)"):
                    for start, size in self.p.tabulated_ranges(operand_of(slot)):
                        with self._tag_lines_with_paths_of_segment(operand_of(slot), start):
                            self.w.line(
                                f"for (int e = {start}; e < {start + size}; ++e) "
                                f"t_{o}[e * W + r] = r < n ? widen(p_{o}[r][e]) : 0;"
                            )
            for call in part_calls:
                self.w.line(call)
            for placed in () if part_calls else self._coupling_tables_that_kernel_reads():
                self._write_entries_of_coupling_table(placed)

    def _write_entries_of_coupling_table(self, table: PlacedTable) -> None:
        for slot in self.p.tabulated_slots:
            if statements := self.p.statements_that_fill_table(table, slot):
                self._write_coupling_table_entries_from_input(table, slot, statements)

    def _write_coupling_table_entries_from_input(
        self, placed: PlacedTable, slot: str, statements: Sequence[Tabulate]
    ) -> None:
        paths, expressions = placed.table.paths, CppExpressions(self.dtype, {slot: "x{}"})
        with self.w.paths(*paths):
            many = "s" * (len(paths) > 1)
            self.w.line(f"// T[{placed.table.letter}, k] of path{many} {', '.join(map(str, paths))}")
            with self.w.block(f"for (int v = 0; v < {placed.copies}; ++v)"):
                self.w.line(
                    f"const num* x = t_{cpp_slot_name(slot)} + ({placed.start} + v * {placed.copy_stride}) * W;"
                )
                self.w.line(f"num* t = {table_area_name(slot)} + ({placed.offset} + v * {placed.entries}) * W;")
                for n in sorted({c.index for s in statements for c in components_read(s.terms)}):
                    self.w.line(f"const vec x{n} = load(x + {n * placed.index_stride} * W);")
                for s in statements:
                    self.w.line(f"store(t + {s.target.index} * W, {expressions.sum_expression(s.terms)});")

    def _write_function_that_computes_row(self) -> None:
        with (
            self.w.part("function row"),
            self.w.block(f"static void row({parameter_list(row_function_parameters(self.p))})"),
        ):
            self._write_input_staging_and_zeroed_sums_of_row()
            for path in self.p.sweep.paths:
                self._write_path_loops_over_multiplicities(path)
            self._write_stores_of_row_results()

    def _write_input_staging_and_zeroed_sums_of_row(self) -> None:
        for slot in self.p.given:
            for v in self.p.segments_to_stage(slot):
                shape, name = f"<{v.outer}, {v.channels}, {v.inner}>", cpp_slot_name(slot)
                with self._tag_lines_with_paths_of_segment(v.operand, v.start):
                    self.w.line(f"stage{shape}({name} + {v.start}, s_{name} + {v.scratch});")
        self._write_zeros_to_scratch_sums()

    def _write_stores_of_row_results(self) -> None:
        for operand in self.p.opened:
            if not self.p.is_summed_over_rows(operand):
                self._write_stores_from_scratch_to_memory(operand, f"a_{operand}")

    def _write_zeros_to_scratch_sums(self) -> None:
        for view in self.p.views_to_clear:
            self.w.line(f"clear(a_{view.operand} + {view.scratch}, {view.size});")
        for operand in self.s.scalar_operands:
            if operand in self.p.opened and not self.p.is_summed_over_rows(operand):
                for start, size in self.p.tabulated_ranges(operand):
                    with self._tag_lines_with_paths_of_segment(operand, start):
                        self.w.line(f"clear(r_{operand} + {start} * W, {size} * W);")

    def _write_stores_from_scratch_to_memory(self, operand: str, scratch_area: str) -> None:
        # scratch to memory for one operand's open slot, and zeros where no path writes
        for start, size in self.p.tabulated_ranges(operand) if operand in self.s.scalar_operands else []:
            with self._tag_lines_with_paths_of_segment(operand, start):
                self.w.line(
                    f"for (int e = {start}; e < {start + size}; ++e) "
                    f"d_{operand}[e] = narrow(lane_sum(load(r_{operand} + e * W)));"
                )
        for v in self.s.views_of(operand):
            if self.p.goes_through_scratch(v):
                shape = f"<{v.outer}, {v.channels}, {v.inner}>"
                with self._tag_lines_with_paths_of_segment(operand, v.start):
                    self.w.line(f"unstage{shape}({scratch_area} + {v.scratch}, d_{operand} + {v.start});")
        for start, size in self.p.starts_and_sizes_that_no_path_uses(operand):
            self.w.line(f"zero(d_{operand} + {start}, {size});")

    def _tag_lines_with_paths_of_segment(self, operand: str, start: int) -> AbstractContextManager[None]:
        # lines inside move a segment, for all paths that have to do with it
        return self.w.paths(*self.s.path_numbers_of_segment(operand, start))

    def _write_path_loops_over_multiplicities(self, path: PathSweep) -> None:
        term, placed = path.term, self.s.table(path.term)
        inside, *behind = path.stages
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            with self.w.block(f"for (int v = 0; v < {self.s.copy_loop(term)[1]}; ++v)"):
                for slot in self.p.tabulated_slots if placed else ():
                    if placed and self.p.statements_that_fill_table(placed, slot):
                        t, area = table_area_name(slot).replace("T", "t"), table_area_name(slot)
                        self.w.line(f"const num* {t} = {area} + ({placed.offset} + v * {placed.entries}) * W;")
                if placed and behind:
                    self.w.line(f"vec s[{placed.entries}] = {{}};")
                with self.w.block(f"for (int c = 0; c < {self.s.count_padded_channels(term)}; c += W)"):
                    self._write_channel_loop_body(term, inside)
                for stage in behind:
                    self._write_additions_of_sums_over_channels(placed, stage)

    def _write_channel_loop_body(self, term: Term, stage: SweepStage) -> None:
        expressions = CppExpressions(
            self.dtype, {slot: f"{_vector_array_name(slot)}[{{}}]" for slot in self.p.call_slots}
        )
        sums = RegisterSums(self.w, [o for o in self.p.opened if self.s.view(term, o)])
        if placed := self.s.table(term):
            sums.found[S] = {n: f"s[{n}]" for n in range(placed.entries)}  # declared before the loop over channels
        sums.write_statements(
            stage.statements, expressions, partial(_write_vector_loads_of_components, self.w, self.p, term)
        )
        for operand, values in sums.found.items():
            if operand != S:
                _write_vector_stores_of_components(self.w, self.p, term, operand, values)

    def _write_additions_of_sums_over_channels(self, placed: PlacedTable | None, stage: SweepStage) -> None:
        # the sums over channels into the vectors of the tabulated operand
        assert placed is not None
        expressions = CppExpressions(self.dtype, {S: "s[{}]"})
        for s in stage.statements:
            assert isinstance(s, Accumulate)
            place = f"{placed.start} + v * {placed.copy_stride} + {s.target.index * placed.index_stride}"
            self.w.line(f"add(r_{placed.operand} + ({place}) * W, {expressions.sum_expression(s.terms)});")

    def write_copy_of_shared_weights_into_scratch(self) -> None:
        for slot in self.p.given_weights:
            for v in self.s.views_of("w"):
                shape = f"<{v.outer}, {v.channels}, {v.inner}>"
                with self._tag_lines_with_paths_of_segment("w", v.start):
                    self.w.line(
                        f"stage{shape}({cpp_slot_name(slot)} + {v.start}, {weights_area_name(slot)} + {v.scratch});"
                    )

    def write_sum_of_weight_gradients_over_blocks(self) -> None:
        write_sum_of_blocks(self.w, self.p.scratch_size_of_shared_weights)
        self._write_stores_from_scratch_to_memory("w", "sums")

    def write_loop_over_rows_of_block(self) -> None:
        (RowGroupLoopWriter if self.p.in_parts else RowLoopWriter)(self.p, self.w).write_row_loops()


# -- moves of vectors of channels: from memory, from tiles of memory, or from scratch ----------------------------------

_LOCAL = {"x1": "x", "x2": "y", "w": "u", "out": "g"}  # arrays of vectors inside a loop over channels


def _vector_array_name(slot: str) -> str:
    """C++ name of an operand's array of vectors.

    >>> _vector_array_name("x1"), _vector_array_name("x1.1")
    ('x', 'x_1')
    """
    operand = operand_of(slot)
    return cpp_slot_name(_LOCAL[operand] + slot[len(operand) :])


def _write_vector_loads_of_components(
    w: Writer, p: ChannelPlacement, term: Term, slot: str, component_indices: list[int]
) -> None:
    # declare the vectors of a slot
    view = p.schedule.view(term, operand_of(slot))
    assert view is not None
    name, memory = _vector_array_name(slot), cpp_slot_name(slot)
    array = f"{name}[{view.components}]"
    if p.goes_through_scratch(view):
        values = [(n, f"load({_cpp_component_address(p, view, term, n, f's_{memory}')})") for n in component_indices]
    elif view.inner == 1:
        values = [(n, f"fetch({_cpp_component_address(p, view, term, n, memory)})") for n in component_indices]
    else:
        at = _cpp_component_address(p, view, term, 0, memory)
        w.line(f"vec {array}; Tile<{view.inner}>::fetch_items({at}, {name});")
        return
    w.line(f"vec {array}; " + " ".join(f"{name}[{n}] = {text};" for n, text in values))


def _write_vector_stores_of_components(
    w: Writer, p: ChannelPlacement, term: Term, operand: str, value_of_component: dict[int, str]
) -> None:
    # store or add the vectors of one open slot; what is stored is stored whole
    view = p.schedule.view(term, operand)
    assert view is not None
    listed = [value_of_component.get(n, "vec{}") for n in range(view.components)]
    if p.goes_through_scratch(view):
        stores = p.stores_instead_of_adding(view, term)
        for n, value in enumerate(listed):
            if stores or n in value_of_component:
                address = _cpp_component_address(p, view, term, n, f"a_{operand}")
                w.line(f"{'store' if stores else 'add'}({address}, {value});")
    elif view.inner == 1:
        for n, value in enumerate(listed):
            w.line(f"put({_cpp_component_address(p, view, term, n, f'd_{operand}')}, {value});")
    else:
        w.line(f"const vec o_{operand}[{view.components}] = {{{', '.join(listed)}}};")
        w.line(
            f"Tile<{view.inner}>::put_items({_cpp_component_address(p, view, term, 0, f'd_{operand}')}, o_{operand});"
        )


def _cpp_component_address(p: ChannelPlacement, view: SegmentView, term: Term, component_index: int, base: str) -> str:
    # Address of vector ``c`` of one component, in scratch or, for segments that are not staged, in memory.
    # In memory the address may be that of a tile.
    staged = p.goes_through_scratch(view)
    strides, start = (view.scratch_strides(), view.scratch) if staged else (view.memory_strides(), view.start)
    offset = start + component_index * strides.get(INDEX.get(view.operand, ""), 0)
    loop = strides.get(p.schedule.copy_loop(term)[0], 0)
    channel = "c" if staged or view.inner == 1 else f"c * {view.inner}"
    return f"{base} + {offset} + " + (f"v * {loop} + " if loop else "") + channel
