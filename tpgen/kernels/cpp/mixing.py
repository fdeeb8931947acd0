"""C++ of a path whose output copies come from the weights: P, the products with the weights, D, a block at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tpgen.kernels.cpp.batch_vectors import ROWS, BatchVectors
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.sweep.statements import Accumulate, SweepStage
from tpgen.kernels.sweep.sweep import PathSweep
from tpgen.kernels.sweep.terms import P


class MixingText:
    """Writes one path of a placement."""

    def __init__(self, placement: BatchPlacement, path: PathSweep, w: Writer) -> None:
        self.p, self.path, self.w, self.term = placement, path, w, path.term
        self.vectors = BatchVectors(placement, path.term, w)
        self.first, self.mix = path.term.inputs[0], path.term.mode.mixing
        self.inner = path.term.size(path.term.inputs[1:])  # input copies that share their first one
        self.k, self.mixed = path.term.size("k"), path.term.size(self.mix)
        self.out = f"{self.vectors.start('out')} * (i64)R"
        self.needs_p = any(isinstance(s, Accumulate) and s.component.operand == P for s in path.stages[0].statements)
        self.gradients = "D" in placement.scratch

    def write(self) -> None:
        first, step, stages = self.first, self.p.block(self.term) // self.inner, self.path.stages
        if self.p.flips(self.term):
            self.w.line(f"flip(s_out + {self.out}, G, {self.mixed}, {self.k} * R);")
        with self.w.block(f"for (int {first}0 = 0; {first}0 < {self.term.size(first)}; {first}0 += {step})"):
            self.w.line(f"const int {first}1 = least({self.term.size(first)}, {first}0 + {step});")
            if self.needs_p:
                self._coupled(stages[0])
            self._weights()
            if self.gradients:
                self._coupled(stages[-1])

    def _each_input(self) -> AbstractContextManager[None]:
        first = self.first
        loop = f"for (int {first} = {first}0; {first} < {first}1; ++{first})"
        return self.vectors.each(loop, self.vectors.loops(self.term.inputs[1:]), ROWS)

    @property
    def _input(self) -> str:
        """Position of the current input copies in the block."""
        return self.vectors.position(self.term.inputs, f"({self.first} - {self.first}0)")

    def _coupled(self, stage: SweepStage) -> None:
        with self._each_input():
            self.vectors.body(stage.statements)

    def _weights(self) -> None:
        if not self.term.weighted:
            self._copies()
        elif self.p.row_weights:
            self._row_weights()
        else:
            self._products()

    def _copies(self) -> None:
        """Unweighted mixing: every input copy goes to the single output copy."""
        with self._each_input():
            for n in range(self.k):
                place = f"({self._input} * {self.k} + {n}) * R + r"
                if "out" in self.p.opened:
                    self.w.line(f"add(a_out + {self.out} + {n} * R + r, load(P + {place}));")
                if self.gradients:
                    self.w.line(f"store(D + {place}, load(s_out + {self.out} + {n} * R + r));")

    def _products(self) -> None:
        first, mixed, k, out = self.first, self.mixed, self.k, self.out
        self.w.line(f"const int count = ({first}1 - {first}0) * {self.inner};")
        at = f"{self.vectors.start('w')} + {first}0 * {self.inner * mixed}"
        if "out" in self.p.opened:
            self._multiply(f"a_out + {out}", f"weights + {at}, 1, {mixed}", "P", f"{mixed}, count", f"{k} * R")
        if "w" in self.p.opened:
            if self.p.flips(self.term):
                self._multiply(f"a_w + {at}", f"P, {k} * R, 1", "G", f"count, {k} * R", str(mixed))
            else:
                self.w.line(f"correlate(a_w + {at}, {mixed}, P, s_out + {out}, count, {mixed}, {k} * R);")
        if self.gradients:
            self._multiply(
                "D", f"weights + {at}, {mixed}, 1", f"s_out + {out}", f"count, {mixed}", f"{k} * R", add=False
            )

    def _multiply(self, into: str, left: str, right: str, sizes: str, columns: str, add: bool = True) -> None:
        """Write a product of matrices whose rows stand one behind the other, or add it."""
        flag = "true" if add else "false"
        self.w.line(f"multiply<{flag}>({into}, {columns}, {left}, {right}, {columns}, {sizes}, {columns});")

    def _row_weights(self) -> None:
        first, k = self.first, self.k
        with (
            self.vectors.staged_weights(first, f"{first}0", f"{first}1"),
            self.w.block(f"for (int m = 0; m < {self.inner}; ++m) {ROWS}"),
        ):
            block = f"((({first} - {first}0) * {self.inner} + m) * {k})"
            if self.needs_p:
                self._columns("c", f"P + {block} * R")
            if self.gradients:
                self.w.line(f"vec d[{k}] = {{}};")
            with self.w.block(self.vectors.loops(self.mix)):
                self._row_weight(f"((({first} - {first}2) * {self.inner} + m) * {self.mixed} + {self.mix}) * R + r")
            if self.gradients:
                for n in range(k):
                    self.w.line(f"store(D + ({block} + {n}) * R + r, d[{n}]);")

    def _columns(self, name: str, base: str) -> None:
        values = " ".join(f"{name}[{n}] = load({base} + {n} * R + r);" for n in range(self.k))
        self.w.line(f"vec {name}[{self.k}]; {values}")

    def _row_weight(self, at: str) -> None:
        out = f"({self.vectors.start('out')} + {self.mix} * {self.k}) * (i64)R"
        if self.p.opened != ("w",):
            self.w.line(f"const vec weight = load(s_w + {at});")
        if self.p.opened != ("out",):
            self._columns("g", f"s_out + {out}")
        for n in range(self.k):
            if "out" in self.p.opened:
                self.w.line(f"add(a_out + {out} + {n} * R + r, weight * c[{n}]);")
            if self.gradients:
                self.w.line(f"d[{n}] += weight * g[{n}];")
        if "w" in self.p.opened:
            self.w.line(f"store(a_w + {at}, {' + '.join(f'c[{n}] * g[{n}]' for n in range(self.k))});")
