"""CUDA text of a group's function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpgen.form.form import Term
from tpgen.kernels.cpp.expressions import sum_of_products_text
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement, has_copy_axis
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.groups import PathGroup, RegisterSegment, next_power_of_two
from tpgen.kernels.cuda.tables import LONG, TableSet, entries_of
from tpgen.kernels.placement.values import PlacedTable
from tpgen.kernels.sweep.statements import Accumulate, Component, Define, Local, Statement, Sum, TableEntry, Value
from tpgen.kernels.sweep.sweep import PathSweep
from tpgen.kernels.sweep.terms import INDEX, S

_MOST = 32  # numbers that are summed over lanes together


class GroupFunctionWriter:
    """Writes the CUDA function of a group of paths."""

    def __init__(self, placement: CudaChannelPlacement, group: PathGroup, w: Writer) -> None:
        self.p, self.s, self.group, self.w = placement, placement.schedule, group, w
        self.dtype = placement.schedule.target.dtype
        self.entries = dict[int, int]()  # places in the table of the path at hand

    def write_function_of_path_group(self) -> None:
        serial = self.p.serial
        arguments = f"const Step& s, const int chunk{'' if serial else ', const int set'}"
        arguments += "".join(f", num (&y_{o})[{self.p.dim[o]}]" for o in list_lane_sum_operands(self.p))
        with self.w.block(f"DEVICE void group_{self.group.number}({arguments})"):
            self._write_variables_for_row_and_channel_of_thread()
            if serial:
                self._write_zeros_of_row_sums()
                first, end = ("s.from", "s.to") if self.p.by else ("0", "s.rows")
                with self.w.block(f"for (int row = {first}; row < {end}; ++row)"):
                    self._write_row_computation()
                self._write_stores_of_row_sums()
            else:
                self._write_row_computation()

    # -- which channel, and which row --

    def _write_variables_for_row_and_channel_of_thread(self) -> None:
        w, g = self.w, self.group
        w.line("const int lane = threadIdx.x % 32;")
        mine = f"lane % {g.width}" if g.width < LANES else "lane"
        w.line(f"const int channel = {mine}{f' + chunk * {LANES}' if g.chunks > 1 else ''};")
        if not self.p.serial:
            w.line(f"const int row = set{f' * {g.rows} + lane / {g.width}' if g.rows > 1 else ''};")
        ragged = self._has_idle_lanes
        checks = [f"channel < {g.channels}"] * ragged + ["row < s.rows"] * (self.p.rows > 1 and not self.p.serial)
        w.line(f"const bool alive = {' && '.join(checks) or 'true'};")
        w.line(f"const int c = {f'channel < {g.channels} ? channel : {g.channels - 1}' if ragged else 'channel'};")

    def _write_row_computation(self) -> None:
        self._write_pointers_to_row_operands()
        for operand, start, size in self._list_ranges_summed_over_channels() if self._unit_has_own_sums else ():
            for position in range(start, start + size):
                self.w.line(f"num y_{operand}_{position} = 0;")
        for n, path in enumerate(self.group.paths):
            self._write_path_computation(n, path)
        self._write_sums_over_channels()

    def _write_pointers_to_row_operands(self) -> None:
        w = self.w
        for operand in dict.fromkeys(h.view.operand for h in self.group.held):
            if operand in self.p.given:
                one = operand not in self.p.row_operands
                w.line(f"const real* const {operand} = s.{operand}{self._cpp_row_offset(operand, one)};")
            if operand in self.p.opened:
                kind = "num" if self.p.needs_accumulation_buffer(operand) else "real"
                offset = self._cpp_row_offset(operand, self.p.is_summed_over_rows(operand))
                w.line(f"{kind}* const d_{operand} = s.d_{operand}{offset};")
        if self.p.table_size:
            w.line(f"const num* const T = s.T + row * {self.p.table_size};")
        for operand in () if self.p.has_one_lane_sum_per_warp else self.p.channel_sums:
            slot = f"row * {self.p.slots} + {self.group.slot}{' + chunk' if self.group.chunks > 1 else ''}"
            w.line(f"num* const p_{operand} = s.p_{operand} + ({slot}) * {self.p.dim[operand]};")

    def _cpp_row_offset(self, operand: str, one_for_all: bool) -> str:
        return "" if one_for_all else f" + row * {self.p.dim[operand]}"

    # -- what all rows add to --

    def _list_segments_summed_over_rows(self) -> list[tuple[Term, RegisterSegment]]:
        return [
            (self.group.paths[h.first].term, h)
            for h in self.group.held
            if h.opened and self.p.is_summed_over_rows(h.view.operand) and not has_copy_axis(h.view)
        ]

    def _write_zeros_of_row_sums(self) -> None:
        for _, h in self._list_segments_summed_over_rows():
            self._write_zero_registers_of_segment(h)

    def _write_stores_of_row_sums(self) -> None:
        carried = self._list_segments_summed_over_rows()
        for operand in dict.fromkeys(h.view.operand for _, h in carried):
            self.w.line(f"num* const d_{operand} = s.d_{operand};")
        for term, h in carried:
            with self.w.paths(term.path):
                self._write_store_of_segment(term, h)

    # -- one path --

    def _write_path_computation(self, path_position: int, path: PathSweep) -> None:
        term, (_, copies) = path.term, self.s.copy_loop(path.term)
        held = [h for h in self.group.held if any(h.view is self.s.view(term, leg.operand) for leg in term.legs)]
        inside = [h for h in held if copies > 1 and has_copy_axis(h.view)]
        outside = [h for h in held if h not in inside]
        with self.w.paths(term.path):
            self.w.line(f"// path {term.path}: {term.text}")
            self._write_loads_of_segments(term, [h for h in outside if h.first == path_position])
            with self.w.block(f"for (int v = 0; v < {copies}; ++v)" if copies > 1 else ""):
                self._write_loads_of_segments(term, inside)
                self._write_table_loads(term)
                summed = self._find_table_and_size_of_channel_sum_per_copy(term)
                if summed:
                    self.w.line(f"num y[{next_power_of_two(summed[1])}] = {{}};")
                for stage in path.stages:
                    for statement in stage.statements:
                        self._write_statement(term, statement)
                self._write_stores_of_segments(term, inside)
                if summed:
                    self._write_channel_sum_of_one_copy(*summed)
            self._write_stores_of_segments(term, [h for h in outside if h.last == path_position])

    def _write_loads_of_segments(self, term: Term, segments: list[RegisterSegment]) -> None:
        carried = [h for _, h in self._list_segments_summed_over_rows()]
        for h in segments:
            o, segment = h.view.operand, h.view.segment
            for n in h.loads:
                self.w.line(f"const num {o}_{segment}_{n} = widen({o}[{self._cpp_index_of_component(term, h, n)}]);")
            if h.opened and h not in carried:
                self._write_zero_registers_of_segment(h)

    def _write_stores_of_segments(self, term: Term, segments: list[RegisterSegment]) -> None:
        carried = [h for _, h in self._list_segments_summed_over_rows()]
        for h in segments:
            if h.opened and h not in carried:
                self._write_store_of_segment(term, h)

    def _write_zero_registers_of_segment(self, segment: RegisterSegment) -> None:
        for n in range(segment.view.components):
            self.w.line(f"num d_{segment.view.operand}_{segment.view.segment}_{n} = 0;")

    def _write_store_of_segment(self, term: Term, segment: RegisterSegment) -> None:
        # registers to where their numbers belong
        o = segment.view.operand
        put = "d_{0}[{1}] += {2};" if self.p.needs_accumulation_buffer(o) else "d_{0}[{1}] = narrow({2});"
        if self._has_idle_lanes and not self.p.needs_accumulation_buffer(o):
            self.w.line("__syncwarp();")  # lanes past the last channel have read what is written here
        with self.w.block("if (alive)"):
            for n in range(segment.view.components):
                self.w.line(
                    put.format(o, self._cpp_index_of_component(term, segment, n), f"d_{o}_{segment.view.segment}_{n}")
                )

    def _cpp_index_of_component(self, term: Term, segment: RegisterSegment, component: int) -> str:
        # address of a component in its row
        leg = term.leg(segment.view.operand)
        assert leg is not None
        letter, copies = self.s.copy_loop(term)
        variables = {self.s.channel(term): "c", letter: "v" if copies > 1 else "0"}
        variables[INDEX.get(leg.operand, "")] = str(component)
        return cpp_index_expression(
            segment.view.start, [(variables[a], term.size(leg.letters[n + 1 :])) for n, a in enumerate(leg.letters)]
        )

    # -- tables --

    def _find_table_and_entry_positions_of_term(
        self, term: Term
    ) -> tuple[TableSet, PlacedTable, int, dict[int, int]] | None:
        # the set, the table, its first entry, and the places of its entries behind the first
        for found in self.p.table_sets:
            for table, first, places in zip(found.tables, found.firsts, found.places, strict=True):
                if term in table.table.terms:
                    return found, table, first, places
        return None

    def _write_table_loads(self, term: Term) -> None:
        # gradients load a long table in parts, as other values fill the registers
        self.quads, found = dict[int, str](), self._find_table_and_entry_positions_of_term(term)
        if found is None:
            return
        tables, table, first, self.entries = found
        copy = f" + v * {tables.entries}" if tables.copies > 1 else ""
        for n in range(0, table.entries, 4):
            self.quads[n // 4] = f"const quad t{n // 4} = four(T + {tables.offset + first + n}{copy});"
        if table.entries <= LONG or self.p.opened == ("out",):
            self._write_loads_of_table_entry_quads(list(self.quads))

    def _write_loads_of_table_entry_quads(self, quad_numbers: Iterable[int]) -> None:
        # four entries of the path's table at once, each once
        for n in quad_numbers:
            line = self.quads.pop(n, None)
            if line:
                self.w.line(line)

    # -- statements --

    def _write_statement(self, term: Term, statement: Statement) -> None:
        self._write_loads_of_table_entry_quads(self.entries[entry.index] // 4 for entry in entries_of(statement))
        match statement:
            case Define():
                self.w.line(f"const num {statement.target} = {self._cpp_sum(statement.terms)};")
            case Accumulate() if statement.target.operand == S:
                self.w.line(f"const num {self._cpp_value(statement.target)} = {self._cpp_sum(statement.terms)};")
            case Accumulate():
                target = self._cpp_accumulator(term, statement.target)
                self.w.line(f"{target} += {self._cpp_sum(statement.terms)};")

    def _cpp_accumulator(self, term: Term, component: Component) -> str:
        if self.s.view(term, component.operand):
            return f"d_{component.operand}_{component.segment}_{component.index}"
        placed = self.s.table(term)
        assert placed is not None
        if placed.copies > 1:
            return f"y[{component.index}]"
        place = placed.start + component.index * placed.index_stride
        return f"y_{component.operand}_{place}" if self._unit_has_own_sums else f"y_{component.operand}[{place}]"

    def _cpp_sum(self, terms: Sum) -> str:
        return sum_of_products_text(terms, self._cpp_value, self.dtype)

    def _cpp_value(self, value: Value) -> str:
        if isinstance(value, Component) and value.operand == S:
            return f"s{value.index}"
        if isinstance(value, Component):
            return f"{value.operand}_{value.segment}_{value.index}"
        if isinstance(value, TableEntry):
            place = self.entries[value.index]
            return f"t{place // 4}.{'xyzw'[place % 4]}"
        assert isinstance(value, Local)
        return value.name

    # -- sums over channels --

    def _list_ranges_summed_over_channels(self) -> Iterator[tuple[str, int, int]]:
        # operand, start and size (at most 32) of each sum over channels
        for operand in self.p.channel_sums:
            found = (self.s.table(path.term) for path in self.group.paths)
            tables = [t for t in found if t and t.operand == operand and t.copies == 1]
            if tables:
                start, stop = (
                    min(t.start for t in tables),
                    max(t.start + self._count_components_of_operand(t) for t in tables),
                )
                yield from ((operand, n, min(_MOST, stop - n)) for n in range(start, stop, _MOST))

    def _count_components_of_operand(self, table: PlacedTable) -> int:
        return table.table.terms[0].size(INDEX[table.operand])

    @property
    def _unit_has_own_sums(self) -> bool:
        # a warp folds the sums, or leaves out lanes without a channel
        return not self.p.has_one_lane_sum_per_warp or self._has_idle_lanes

    def _write_sums_over_channels(self) -> None:
        for operand, start, size in self._list_ranges_summed_over_channels() if self._unit_has_own_sums else ():
            if self.p.has_one_lane_sum_per_warp:
                for n in range(start, start + size):
                    self.w.line(f"y_{operand}[{n}] += alive ? y_{operand}_{n} : 0;")
                continue
            values = [f"alive ? y_{operand}_{n} : 0" for n in range(start, start + size)]
            with self.w.block(""):
                self.w.line(f"num y[{next_power_of_two(size)}] = {{{', '.join(values)}}};")
                self.w.line(f"fold_lanes<{self.group.width}>(y, lane, {size}, p_{operand} + {start}, 1);")

    def _find_table_and_size_of_channel_sum_per_copy(self, term: Term) -> tuple[PlacedTable, int] | None:
        table = self.s.table(term)
        if table is None or table.copies == 1 or table.operand not in self.p.opened:
            return None
        return table, self._count_components_of_operand(table)

    def _write_channel_sum_of_one_copy(self, table: PlacedTable, size: int) -> None:
        # the sum over channels for the copy at hand
        if self._has_idle_lanes or (self.p.rows > 1 and not self.p.serial):
            self.w.line(f"for (int n = 0; n < {size}; ++n) y[n] = alive ? y[n] : 0;")
        place = f"p_{table.operand} + {table.start} + v * {table.copy_stride}"
        self.w.line(f"fold_lanes<{self.group.width}>(y, lane, {size}, {place}, {table.index_stride});")

    @property
    def _has_idle_lanes(self) -> bool:
        # whether some lanes have no channel
        return self.group.channels % self.group.width != 0


def cpp_index_expression(start: int, steps: list[tuple[str, int]]) -> str:
    """C++ index: constants plus variables times strides; ``steps``: (name or number, stride).

    >>> cpp_index_expression(64, [("c", 3), ("2", 1)]), cpp_index_expression(0, [("v", 8), ("c", 1)])
    ('66 + c * 3', 'v * 8 + c')
    """
    constant = start + sum(int(name) * stride for name, stride in steps if name.isdigit())
    parts = [f"{name} * {stride}" if stride != 1 else name for name, stride in steps if not name.isdigit()]
    return " + ".join([str(constant)] * bool(constant or not parts) + parts)


def list_lane_sum_operands(placement: CudaChannelPlacement) -> list[str]:
    """Operands whose gradients lanes sum over a warp's units."""
    return list(dict.fromkeys(operand for operand, _, _ in placement.lane_sum_ranges))
