"""Moves of vectors of rows in and out of registers, and the loops over copies around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tpgen.kernels.cpp.expressions import Spelling, Sums, runs
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.statements import Accumulate, Define, Load, Statement
from tpgen.kernels.sweep.terms import BETWEEN, INDEX, D, P, PathTerm

LOCAL = {"x1": "x", "x2": "y", "w": "weight", "out": "g", P: "c", D: "d"}
ROWS = "for (int r = 0; r < R; r += W)"


class BatchVectors:
    """Writes the statements of one path of a placement."""

    def __init__(self, placement: BatchPlacement, term: PathTerm, w: Writer) -> None:
        self.p, self.term, self.w = placement, term, w
        arrays = {o: f"{name}[{{}}]" for o, name in LOCAL.items()}
        self.spelling = Spelling(placement.schedule.target.dtype, arrays)

    def start(self, operand: str) -> int:
        return self.p.schedule.start(self.term, operand)

    def body(self, statements: tuple[Statement, ...], weight: str = "") -> None:
        """Statements in order, then what they have added up; ``weight`` is the place of the weight at hand."""
        sums = Sums(self.w)
        for kind, operand, run in runs(statements):
            if kind is Load and operand == "w":
                value = f"load(s_w + {weight})" if self.p.row_weights else f"vec{{}} + weights[{weight}]"
                self.w.line(f"const vec weight[1] = {{{value}}};")
            elif kind is Load:
                self._fetch(operand, [s.component.index for s in run])
            elif kind is Define:
                for s in run:
                    self.w.line(f"const vec {s.name} = {self.spelling.sum(s.terms)};")
            elif kind is Accumulate:
                sums.add(operand, [(s.component.index, self.spelling.sum(s.terms)) for s in run])
        for operand, values in sums.found.items():
            for n, value in values.items():
                self._deliver(operand, f"{self._place(operand)} + {n} * R + r" if operand != "w" else weight, value)

    def _deliver(self, operand: str, place: str, value: str) -> None:
        if operand in BETWEEN:
            self.w.line(f"store({operand} + {place}, {value});")
        elif operand != "w":
            self.w.line(f"add(a_{operand} + {place}, {value});")
        elif self.p.row_weights:
            self.w.line(f"store(a_w + {place}, {value});")
        else:
            self.w.line(f"a_w[{place}] += lane_sum({value});")

    def _fetch(self, operand: str, indices: list[int]) -> None:
        name, area = LOCAL[operand], operand if operand in BETWEEN else f"s_{operand}"
        values = " ".join(f"{name}[{n}] = load({area} + {self._place(operand)} + {n} * R + r);" for n in indices)
        self.w.line(f"vec {name}[{self.term.size(INDEX.get(operand, 'k'))}]; {values}")

    def _copy(self, operand: str) -> str:
        """The copy of an operand's segment at the current loop letters."""
        mode = self.term.mode
        if self.term.pairs and operand != "out":
            return f"pair_{'a' if operand == 'x1' else 'b'}[p]"
        return self.position({"x1": mode.in1, "x2": mode.in2, "out": mode.out}[operand])

    def _place(self, operand: str) -> str:
        """Start of ``[irrep axis][R]`` of the current copy; P and D hold the copies of a block of inputs."""
        if operand in BETWEEN:
            first = self.term.inputs[0]
            return f"{self.position(self.term.inputs, f'({first} - {first}0)')} * {self.term.size('k')} * R"
        return f"({self.start(operand)} + {self._copy(operand)} * {self.term.size(INDEX[operand])}) * (i64)R"

    def position(self, letters: str, first: str = "") -> str:
        """Position of the current copies of some letters; ``first`` may stand for the first of them."""
        text = first or letters[0]
        for a in letters[1:]:
            text = f"({text} * {self.term.size(a)} + {a})"
        return text

    def loops(self, letters: str) -> str:
        return " ".join(f"for (int {a} = 0; {a} < {self.term.size(a)}; ++{a})" for a in letters)

    def each(self, *parts: str) -> AbstractContextManager[None]:
        return self.w.block(" ".join(part for part in parts if part))

    @contextmanager
    def staged_weights(self, first: str, start: str, end: str) -> Iterator[None]:
        """A loop over first copies, with the weights of each row moved in and out for several of them."""
        chunk, step = self.p.chunk(self.term), self.p.staged(self.term)
        with self.w.block(f"for (int {first}2 = {start}; {first}2 < {end}; {first}2 += {step})"):
            self.w.line(f"const int {first}3 = least({end}, {first}2 + {step});")
            place = f"n, {self.start('w')} + {first}2 * {chunk}, ({first}3 - {first}2) * {chunk}"
            if "w" in self.p.given:
                self.w.line(f"stage_rows(p_w, {place}, s_w, 1);")
            with self.w.block(f"for (int {first} = {first}2; {first} < {first}3; ++{first})"):
                yield
            if "w" in self.p.opened:
                self.w.line(f"unstage_rows(a_w, q_w, {place}, 1);")
