"""C++ of a path with vectors over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from tpgen.form.form import Term
from tpgen.kernels.cpp.expressions import CppExpressions, RegisterSums
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.statements import Statement
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, D, P

LOCAL = {"x1": "x", "x2": "y", "w": "weight", "out": "g", P: "c", D: "d"}
ROW_LOOP = "for (int r = 0; r < R; r += W)"


def name_store_function(p: BatchPlacement, operand: str) -> str:
    """Name of the C++ function that stores a tile's rows or adds to owners' rows."""
    return "add_rows" if operand == p.owner else "unstage_rows"


def write_vector_loads(w: Writer, array: str, count: int, address: str, factor: str = "") -> None:
    """Write C++ that loads ``count`` consecutive vectors into an array, each times ``factor``."""
    values = " ".join(f"{array}[{n}] = {factor}load({address} + {n} * R + r);" for n in range(count))
    w.line(f"vec {array}[{count}]; {values}")


class BatchPathWriter:
    """Writes C++ statements of one path with SIMD vectors over batch rows."""

    def __init__(self, placement: BatchPlacement, term: Term, w: Writer) -> None:
        """Prepare to write C++ of the path ``term``."""
        self.p, self.term, self.w = placement, term, w
        self.sides = placement.sides_of_weight_matrix(term)
        arrays = {o: f"{name}[{{}}]" for o, name in LOCAL.items()}
        self.expressions = CppExpressions(placement.schedule.target.dtype, arrays)

    def segment_start(self, operand: str) -> int:
        return self.p.schedule.segment_start(self.term, operand)

    def write_statements(self, statements: tuple[Statement, ...], weight_address: str = "") -> None:
        """Write C++ of statements, and of stores of their sums."""
        sums = RegisterSums(self.w)
        sums.write_statements(
            statements, self.expressions, partial(self._write_vector_loads_of_components, weight_address)
        )
        for operand, values in sums.found.items():
            for n, value in values.items():
                place = (
                    f"{self._cpp_address_of_irrep_copy(operand)} + {n} * R + r" if operand != "w" else weight_address
                )
                self._write_store_or_addition_of_sum(operand, place, value)

    def _write_store_or_addition_of_sum(self, operand: str, address: str, value: str) -> None:
        if operand in BETWEEN:
            self.w.line(f"store({operand} + {address}, {value});")
        elif operand != "w":
            self.w.line(f"add(a_{operand} + {address}, {value});")
        elif self.p.has_weights_per_row:
            self.w.line(f"store(a_w + {address}, {value});")
        else:
            self.w.line(f"a_w[{address}] += lane_sum({value});")

    def _write_vector_loads_of_components(self, weight_address: str, operand: str, components: list[int]) -> None:
        if operand == "w":
            value = (
                f"load(s_w + {weight_address})"
                if self.p.has_weights_per_row
                else f"vec{{}} + weights[{weight_address}]"
            )
            self.w.line(f"const vec weight[1] = {{{value}}};")
            return
        name, area = LOCAL[operand], operand if operand in BETWEEN else f"s_{operand}"
        values = " ".join(
            f"{name}[{n}] = load({area} + {self._cpp_address_of_irrep_copy(operand)} + {n} * R + r);"
            for n in components
        )
        self.w.line(f"vec {name}[{self.term.size(INDEX.get(operand, self.sides.axis))}]; {values}")

    def _cpp_index_of_irrep_copy(self, operand: str) -> str:
        # the copy of an operand's segment at the current loop letters
        mode = self.term.mode
        if self.term.pairs and operand != "out":
            return f"pair_{'a' if operand == 'x1' else 'b'}[p]"
        return self.flat_index_text({"x1": mode.in1, "x2": mode.in2, "out": mode.out}[operand])

    def _cpp_address_of_irrep_copy(self, operand: str) -> str:
        # start of ``[irrep axis][R]`` of the current copy; P and D hold a block of copies
        if operand in BETWEEN:
            copies = self.sides.copies
            first = copies[0]
            return f"{self.flat_index_text(copies, f'({first} - {first}0)')} * {self.term.size(self.sides.axis)} * R"
        start, copy = self.segment_start(operand), self._cpp_index_of_irrep_copy(operand)
        return f"({start} + {copy} * {self.term.size(INDEX[operand])}) * (i64)R"

    def flat_index_text(self, letters: str, first: str = "") -> str:
        """C++ flat index of loop variables ``letters``; ``first`` replaces the first."""
        text = first or letters[0]
        for a in letters[1:]:
            text = f"({text} * {self.term.size(a)} + {a})"
        return text

    def nested_loop_heads(self, letters: str) -> str:
        return " ".join(f"for (int {a} = 0; {a} < {self.term.size(a)}; ++{a})" for a in letters)

    def open_block(self, *parts: str) -> AbstractContextManager[None]:
        return self.w.block(" ".join(part for part in parts if part))

    @contextmanager
    def loop_with_weights_in_scratch(self, letter: str, start: str, end: str) -> Iterator[None]:
        """Write a C++ loop of ``letter`` around lines written inside, with row weights in scratch."""
        chunk, step = self.p.weights_per_copy(self.term), self.p.count_copies_with_weights_in_scratch(self.term)
        with self.w.block(f"for (int {letter}2 = {start}; {letter}2 < {end}; {letter}2 += {step})"):
            self.w.line(f"const int {letter}3 = least({end}, {letter}2 + {step});")
            place = f"n, {self.segment_start('w')} + {letter}2 * {chunk}, ({letter}3 - {letter}2) * {chunk}"
            if "w" in self.p.given:
                self.w.line(f"stage_rows(p_w, R, {place}, s_w, 1);")
            with self.w.block(f"for (int {letter} = {letter}2; {letter} < {letter}3; ++{letter})"):
                yield
            if "w" in self.p.opened:
                self.w.line(f"{name_store_function(self.p, 'w')}(a_w, q_w, R, {place}, 1);")
