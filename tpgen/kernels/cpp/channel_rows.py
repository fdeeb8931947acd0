"""C++ of a channel kernel's loop over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tpgen.kernels.cpp.parts import CppParameters
from tpgen.kernels.cpp.text import Writer, row_index_text
from tpgen.kernels.placement.channel import ChannelPlacement, cpp_slot_name, weights_area_name
from tpgen.kernels.sweep.terms import SLOTS


def row_function_parameters(p: ChannelPlacement) -> CppParameters:
    """C++ parameters (type, name) of the function of a row: operands, results, scratch."""
    arguments = [("const real*", cpp_slot_name(slot)) for slot in p.given]
    arguments += [("real*", f"d_{o}") for o in p.opened]
    arguments += [("const num*" if name in p.table_areas else "num*", name) for name in p.scratch]
    arguments += [("const num*", f"s_{cpp_slot_name(slot)}") for slot in p.given_weights if p.reads_scratch(slot)]
    if p.sums_weights:
        arguments.append(("num*", "a_w"))
    return arguments


class _PairedGradient(NamedTuple):
    """C++ of two edges that sum one weight gradient: the first stores, the second adds."""

    state: str  # addresses: of what others are told, of the gradient, and of room beside it
    gradient: str
    beside: str
    size: int

    @property
    def statement_that_claims_gradient(self) -> str:
        return f"const bool first_of_pair = is_first({self.state});"

    @property
    def written_gradient_address(self) -> str:
        return f"first_of_pair ? {self.gradient} : {self.beside}"

    @property
    def statement_that_marks_gradient_written(self) -> str:
        return f"wrote({self.state});"

    def statement_that_adds_second_gradient(self, written: str) -> str:
        return f"add_second({self.gradient}, {written}, {self.size}, {self.state});"


class RowLoopWriter:
    """Writes C++ loops over a block's rows, in tiles of W rows."""

    def __init__(self, placement: ChannelPlacement, w: Writer) -> None:
        self.p, self.w = placement, w
        self.arguments = row_function_parameters(placement)

    def write_row_loops(self) -> None:
        """Write C++ that computes all rows of a block."""
        if self.p.owner:
            self._write_loop_over_rows_that_edges_sum_into(self.p.owner)
            return
        self.w.line("const i64 end = least(rows, (b + 1) * span);")
        with self.w.block("for (i64 q = b * span; q < end; q += W)"):
            self.w.line("const int n = least(W, end - q);")
            self.write_tile_setup("q + r")
            self.write_loop_over_rows_of_tile()

    def _write_loop_over_rows_that_edges_sum_into(self, operand: str) -> None:
        w = self.w
        w.line("const i64 from = owner_at(first, owners, b * span), to = owner_at(first, owners, (b + 1) * span);")
        w.line("const i64 end = first[to];")
        w.line("i64 q = first[from], tile = q;")
        sums = self.p.owner_sums
        self.write_declarations_of_row_pointers()
        with w.block("for (i64 o = from; o < to; ++o)"):
            for name in sums:
                w.line(f"clear({name}, {self.p.scratch[name]});")
            self.write_loop_over_rows_summed_together()
            w.line(f"finish(d_{operand} + o * {self.p.dim[operand]}{''.join(', ' + name for name in sums)});")

    def write_tile_setup_if_tile_begins(self) -> None:
        with self.w.block("if (q == tile)"):
            self.w.line("const int n = least(W, end - q);")
            self.write_tile_setup("order[q + r]")
            self.w.line("tile += n;")

    def write_pointers_to_rows_of_tile(self, operand: str, row: str, array: str = "") -> None:
        self.w.line(f"for (int r = 0; r < n; ++r) {{ const i64 e = {row}; {array}[r] = {self.row_address(operand)}; }}")

    def row_address(self, name: str) -> str:
        """C++ address of row ``e`` in an operand or result."""
        operand = name.removeprefix("d_").partition("_")[0]
        if operand == "w" and self.p.schedule.shared_weights:
            return name
        return f"{name} + {row_index_text(self.p.rule(operand))} * {self.p.dim[operand]}"

    def write_declarations_of_row_pointers(self) -> None:
        """Declare C++ arrays that outlive a tile, if any."""

    def write_tile_setup(self, row_index: str) -> None:
        """Write C++ that fills a tile's coupling tables; ``row_index``: C++ of a row's number."""
        for o in map(cpp_slot_name, self.p.tabulated_slots):
            self.w.line(f"const real* p_{o}[W] = {{}};")
            self.write_pointers_to_rows_of_tile(o, row_index, f"p_{o}")
        self.write_call_that_fills_coupling_tables()

    def write_call_that_fills_coupling_tables(self) -> None:
        # a kernel of `uuu` paths has no tables
        if not self.p.tabulated_slots:
            return
        places = [part for o in map(cpp_slot_name, self.p.tabulated_slots) for part in (f"p_{o}", f"t_{o}")]
        self.w.line(f"tabulate({', '.join(['n', *self.p.table_areas, *places])});")

    def shared_arguments(self, lane: str) -> dict[str, str]:
        """C++ values of arguments that rows share, by name; ``lane``: a row's lane in tables."""
        areas = {name: f"{name} + {lane}" for name in self.p.table_areas}
        return areas | {f"s_{cpp_slot_name(slot)}": weights_area_name(slot) for slot in self.p.given_weights}

    def write_loop_over_rows_of_tile(self) -> None:
        with self.w.block("for (int r = 0; r < n; ++r)"):
            self.w.line("const i64 e = q + r;")
            self._write_call_of_row_function("r")

    def write_loop_over_rows_summed_together(self) -> None:
        with self.w.block("for (; q < first[o + 1]; ++q)"):
            if self.p.tabulated_slots:
                self.write_tile_setup_if_tile_begins()
            self.w.line("const i64 e = order[q];")
            self._write_call_of_row_function("(q - first[from]) % W")

    def _write_call_of_row_function(self, lane: str) -> None:
        names = [*map(cpp_slot_name, self.p.call_slots), *(f"d_{o}" for o in self.p.opened)]
        values = self.shared_arguments(lane) | {name: self.row_address(name) for name in names}
        paired = _PairedGradient("state", "gradient", "second_w", self.p.dim["w"])
        if self.p.pair_gradient_size:
            self.w.line(f"char* const state = states + {row_index_text(self.p.rule('w'))};")
            self.w.line(f"real* const gradient = {values['d_w']};")
            self.w.line(paired.statement_that_claims_gradient)
            values["d_w"] = paired.written_gradient_address
        self.w.line(f"row({', '.join(values.get(name, name) for _, name in self.arguments)});")
        if self.p.pair_gradient_size:
            self.w.line(f"if (first_of_pair) {paired.statement_that_marks_gradient_written}")
            self.w.line(f"else {paired.statement_that_adds_second_gradient(paired.beside)}")


# -- groups of rows, where there are many paths ------------------------------------------------------------------------
#
# They take one path after the other.  Where rows came one after the other, neither the code of a path nor its tables
# would be in the nearest caches any more when the next row needs them.


def _is_operand_in_memory(name: str) -> bool:
    return name.removeprefix("d_").partition("_")[0] in SLOTS


class RowGroupParameters:
    """C++ parameters of a function that computes a group of rows."""

    def __init__(self, placement: ChannelPlacement) -> None:
        self.p, self._row = placement, row_function_parameters(placement)

    @property
    def row_group_parameters(self) -> CppParameters:
        """C++ parameters (type, name): number of rows, and for each argument an array."""
        return [
            ("int", "n"),
            *((f"{kind} const*" if _is_operand_in_memory(name) else kind, f"{name}s") for kind, name in self._row),
        ]

    @contextmanager
    def loop_over_rows(self, w: Writer) -> Iterator[None]:
        """Write a C++ loop over rows that declares the arguments of each."""
        with w.block("for (int r = 0; r < n; ++r)"):
            places = {
                n: f"{n}s[r]" if _is_operand_in_memory(n) else f"{n}s + r * {self.p.row_stride(n)}"
                for _, n in self._row
            }
            w.line(" ".join(f"{kind} const {name} = {places[name]};" for kind, name in self._row))
            yield


class RowGroupLoopWriter(RowLoopWriter):
    """Writes C++ loops over groups of rows."""

    def write_tile_setup(self, row_index: str) -> None:
        """Write C++ that fills a tile's row pointers and coupling tables."""
        if not self.p.owner:
            self.write_declarations_of_row_pointers()
        for _, name in self._pointer_arguments():
            self.write_pointers_to_rows_of_tile(name, row_index, f"p_{name}")
        self.write_call_that_fills_coupling_tables()

    def _pointer_arguments(self) -> CppParameters:
        return [(kind, name) for kind, name in self.arguments if _is_operand_in_memory(name)]

    def write_declarations_of_row_pointers(self) -> None:
        """Declare C++ arrays of a tile's row pointers."""
        for kind, name in self._pointer_arguments():
            self.w.line(f"{kind} p_{name}[W];")

    def write_loop_over_rows_of_tile(self) -> None:
        with self.w.block(f"for (int r = 0; r < n; r += {self.p.rows_per_group})"):
            self._write_call_of_row_group_function(f"least({self.p.rows_per_group}, n - r)")

    def write_loop_over_rows_summed_together(self) -> None:
        with self.w.block("for (int m; q < first[o + 1]; q += m)"):
            self.write_tile_setup_if_tile_begins()
            self.w.line("const int r = (q - first[from]) % W;")
            self.w.line(f"m = least({self.p.rows_per_group}, least(first[o + 1], tile) - q);")
            self._write_call_of_row_group_function("m")

    def _write_call_of_row_group_function(self, row_count: str) -> None:
        values = self.shared_arguments("r") | {name: f"p_{name} + r" for _, name in self._pointer_arguments()}
        size = self.p.dim["w"]
        paired = _PairedGradient(
            f"states + (p_d_w[r + k] - d_w) / {size}", "p_d_w[r + k]", f"second_w + k * {size}", size
        )
        if self.p.pair_gradient_size:
            values["d_w"] = "gradients"
            self._write_choice_of_paired_gradient_addresses(paired, row_count)
            row_count = "members"
        self.w.line(f"row_group({', '.join([row_count, *(values.get(name, name) for _, name in self.arguments)])});")
        if self.p.pair_gradient_size:
            self._write_flags_and_additions_of_paired_gradients(paired)

    def _write_choice_of_paired_gradient_addresses(self, paired: _PairedGradient, row_count: str) -> None:
        # choose where the rows of a group write gradients of weights
        self.w.line(f"real* gradients[{self.p.rows_per_group}]; const int members = {row_count};")
        with self.w.block("for (int k = 0; k < members; ++k)"):
            self.w.line(paired.statement_that_claims_gradient)
            self.w.line(f"gradients[k] = {paired.written_gradient_address};")

    def _write_flags_and_additions_of_paired_gradients(self, paired: _PairedGradient) -> None:
        # mark first gradients as written, which other threads may wait for, before waiting for theirs
        self.w.line(
            f"for (int k = 0; k < members; ++k) if (gradients[k] == {paired.gradient}) "
            + paired.statement_that_marks_gradient_written
        )
        with self.w.block("for (int k = 0; k < members; ++k)"):
            self.w.line(
                f"if (gradients[k] != {paired.gradient}) {paired.statement_that_adds_second_gradient('gradients[k]')}"
            )
