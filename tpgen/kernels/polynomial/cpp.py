"""C++ of a polynomial's sweep where its placement says: vectors over channels, rows in the order of their elements.

Which rows a task has follows from the rows alone, and where weights are open it has all of an element: sums have one
order, whatever the number of threads.
"""

from __future__ import annotations

from tpgen.kernels.cpp.prelude import header, prelude
from tpgen.kernels.cpp.text import GeneratedSource, Writer
from tpgen.kernels.polynomial.expressions import Expressions, gathered, slot_name
from tpgen.kernels.polynomial.placement import PolynomialPlacement, segments
from tpgen.kernels.polynomial.sweep import target_of, terms_of
from tpgen.kernels.sweep.statements import Component, Local, Statement

FAULTS = {1: "out of memory for scratch space", 2: "the index holds an element out of range"}
_WORTH = 1 << 17  # operations on vectors that are worth a second thread


def generate(placement: PolynomialPlacement) -> GeneratedSource:
    """The source of a sweep that has its place: deterministic, with a C entry point and no includes.

    The entry takes arrays of pointers to the given tensors and to the opened ones, the element of every row (null:
    all rows are of element 0, or each of its own), the number of elements and of channels, and the number of rows.
    """
    return _Text(placement).write()


class _Text:
    """Writes one source."""

    def __init__(self, at: PolynomialPlacement) -> None:
        self.at, self.sweep, self.dtype = at, at.sweep, at.target.dtype
        self.operands = at.operands
        self._texts = Expressions(at, "(vec{} + 1)", "load({name} + {index} * W)")
        self.w = Writer()

    def write(self) -> GeneratedSource:
        for line in [*str(self.at.plan).split("\n"), str(self.sweep.call)]:
            self.w.line(f"// {line}")
        self.w.raw(prelude(self.at.target, self.at.tiles, self.at.target.lanes))
        for name in ("order", "tasks", "channels"):
            self.w.raw(header(name))
        if self.at.coefficients:
            self._prologue()
        self._rows()
        if self.at.folded:
            self._epilogue()
        self._entry()
        return self.w.done()

    # -- one row --

    def _rows(self) -> None:
        at = self.at
        arguments = [f"const real* p_{slot_name(s)}" for s in at.inputs] + [
            f"real* o_{slot_name(s)}" for s in at.stored
        ]
        arguments += [f"num* o_{slot_name(s)}" for s in at.summed]
        arguments += [f"const num* {slot_name(s)}" for s in at.coefficients] + [
            f"num* {slot_name(s)}" for s in at.adjoints
        ]
        with self.w.block(f"static void row({', '.join([*arguments, 'i64 C', 'i64 c', 'int n'])})"):
            for slot in self.at.inputs:
                self._get(slot)
            for slot in self.at.swept:
                self.w.line(f"vec d_{slot_name(slot)}[{self.operands[slot].dim}] = {{}};")
            for statement in self.sweep.rows:
                self._statement(statement)
            for slot in self.at.stored:
                self._set(slot)
            for slot in self.at.summed:
                for i in range(self.operands[slot].dim):
                    self.w.line(f"o_{slot_name(slot)}[{i}] += sum_some(d_{slot_name(slot)}[{i}], n);")

    def _get(self, slot: str) -> None:
        operand, name = self.operands[slot], slot_name(slot)
        self.w.line(f"vec t_{name}[{operand.dim}];")
        if not operand.channels:
            for i in self.at.read[slot]:
                self.w.line(f"t_{name}[{i}] = vec{{}} + widen(p_{name}[{i}]);")
            return
        for start, size in self.at.segments_read(slot):
            place = f"p_{name} + {start} * C + c"
            if size == 1:
                self.w.line(f"t_{name}[{start}] = get_some({place}, n);")
            else:
                self.w.line(f"Items<{size}>::get({place} * {size}, n, t_{name} + {start});")

    def _set(self, slot: str) -> None:
        name = slot_name(slot)
        for start, size in segments(self.operands[slot]):
            place = f"o_{name} + {start} * C + c"
            if size == 1:
                self.w.line(f"set_some({place}, n, d_{name}[{start}]);")
            else:
                self.w.line(f"Items<{size}>::set({place} * {size}, n, d_{name} + {start});")

    def _statement(self, statement: Statement) -> None:
        text = self._texts.sum(terms_of(statement))
        target = target_of(statement)
        if isinstance(target, Local):
            self.w.line(f"const vec {target} = {text};")
        elif isinstance(target, Component) and target.operand.startswith("@"):
            self.w.line(f"add({slot_name(target.operand)} + {target.index} * W, {text});")
        elif isinstance(target, Component):
            self.w.line(f"d_{slot_name(target.operand)}[{target.index}] += {text};")

    # -- one element --

    def _prologue(self) -> None:
        arguments = [f"const num* {slot_name(s)}" for s in self.at.weights] + [
            f"num* {slot_name(s)}" for s in self.at.coefficients
        ]
        with self.w.block(f"static void prologue({', '.join(arguments)})"):
            for target, terms in gathered(self.sweep.prologue).items():
                self.w.line(f"store({slot_name(target.operand)} + {target.index} * W, {self._texts.sum(terms)});")

    def _epilogue(self) -> None:
        arguments = [f"const num* {slot_name(s)}" for s in (*self.at.weights, *self.at.adjoints)]
        arguments += [f"real* o_{slot_name(s)}" for s in self.at.folded]
        sums = gathered(self.sweep.epilogue)
        with self.w.block(f"static void epilogue({', '.join([*arguments, 'i64 C', 'int n'])})"):
            for slot in self.at.folded:
                for i in range(self.operands[slot].dim):
                    terms = sums.get(Component(slot, 0, i))
                    text = self._texts.sum(terms) if terms else "vec{}"
                    self.w.line(f"set_some(o_{slot_name(slot)} + {i} * C, n, {text});")

    # -- the entry point --

    def _entry(self) -> None:
        arguments = "const real* const* given, real* const* opened, const i64* index, const i64* sizes"
        unused = ", const void*, const void*, const void*, const void*"
        head = 'extern "C" __attribute__((visibility("default"))) int tpgen_kernel'
        with self.w.block(f"{head}({arguments}{unused}, i64 rows)"):
            self.w.line("const i64 elements = sizes[0], C = sizes[1], vectors = (C + W - 1) / W;")
            self.w.line("if (index && !inside(index, rows, elements)) return 2;")
            self.w.line("Tasks t;")
            self.w.line(f"if (make_tasks(&t, index, rows, elements, {self.at.span})) return 1;")
            self.w.line("int fault = 0;")
            sums = [f"s_{slot_name(slot)}" for slot in self.at.summed]
            for slot, name in zip(self.at.summed, sums, strict=True):
                size = f"rows * {self.operands[slot].dim}"
                self.w.line(f"num* {name} = 0;")
                self.w.line(f"if (posix_memalign((void**)&{name}, 64, ({size} + 1) * sizeof(num))) fault = 1;")
                self.w.line(f"else for (i64 m = 0; m < {size}; ++m) {name}[m] = 0;")
            with self.w.block("if (!fault)"):
                self._parallel()
                for slot, name in zip(self.at.summed, sums, strict=True):
                    place = f"opened[{self.at.opened.index(slot)}][m]"
                    self.w.line(
                        f"for (i64 m = 0; m < rows * {self.operands[slot].dim}; ++m) {place} = narrow({name}[m]);"
                    )
            for name in [*sums, "t.first"]:
                self.w.line(f"free({name});")
            self.w.line("return fault;")

    def _parallel(self) -> None:
        """Threads take tasks; one takes all channels of its rows where something is summed over channels."""
        groups = "1" if self.at.whole_rows else "vectors"
        self.w.line("i64 next = 0; i64* const taken = &next; int* const failed = &fault;")
        worth = f"rows * vectors * {max(1, self.sweep.operations)} > {_WORTH}"
        with self.w.block(f"on_threads({worth}, [=]() __attribute__((always_inline))", "});"):
            self._scratch()
            with self.w.block(
                f"for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < t.count * {groups};)"
            ):
                self.w.line("if (!scratch) { *failed = 1; continue; }")
                self.w.line(f"const i64 e = t.element[b / {groups}], from = t.begin[b / {groups}];")
                end = "t.first[e + 1]"
                self.w.line(f"const i64 to = {end if self.at.folded else f'least({end}, from + {self.at.span})'};")
                if self.at.whole_rows:
                    with self.w.block("for (i64 v = 0; v < vectors; ++v)"):
                        self._task()
                else:
                    self.w.line("const i64 v = b % vectors;")
                    self._task()
            self.w.line("free(scratch);")

    def _scratch(self) -> None:
        size = f"{max(1, sum(self.at.scratch.values()))} * W * sizeof(num)"
        self.w.line(f"num* scratch = 0; if (posix_memalign((void**)&scratch, 64, {size})) scratch = 0;")
        at = 0
        for slot, count in self.at.scratch.items():
            self.w.line(f"num* const {slot_name(slot)} = scratch + {at} * W;")
            at += count
        for n, slot in enumerate(self.at.given):
            if slot in self.at.read:
                self.w.line(f"const real* const p_{slot_name(slot)} = given[{n}];")
        for n, slot in enumerate(self.at.opened):
            if slot not in self.at.summed:
                self.w.line(f"real* const o_{slot_name(slot)} = opened[{n}];")

    def _task(self) -> None:
        """One vector of channels of a task's rows."""
        self.w.line("const i64 c = v * W; const int n = least(W, C - c);")
        if self.at.folded:
            with self.w.block("if (from == to)"):
                for slot in self.at.folded:
                    dim = self.operands[slot].dim
                    place = f"o_{slot_name(slot)} + (e * {dim} + i) * C + c"
                    self.w.line(f"for (int i = 0; i < {dim}; ++i) set_some({place}, n, vec{{}});")
                self.w.line("continue;")
        for slot in self.at.weights:
            dim, name = self.operands[slot].dim, slot_name(slot)
            value = f"get_some(p_{name} + (e * {dim} + i) * C + c, n)"
            self.w.line(f"for (int i = 0; i < {dim}; ++i) store({name} + i * W, {value});")
        if self.at.coefficients:
            self.w.line(f"prologue({', '.join(map(slot_name, (*self.at.weights, *self.at.coefficients)))});")
        for slot in self.at.adjoints:
            self.w.line(f"clear({slot_name(slot)}, {self.sweep.coefficients} * W);")
        with self.w.block("for (i64 q = from; q < to; ++q)"):
            self.w.line("const i64 r = t.order[q];")
            self.w.line(f"row({', '.join(self._row_call())});")
        if self.at.folded:
            places = [f"o_{slot_name(s)} + e * {self.operands[s].dim} * C + c" for s in self.at.folded]
            values = [*map(slot_name, (*self.at.weights, *self.at.adjoints)), *places, "C", "n"]
            self.w.line(f"epilogue({', '.join(values)});")

    def _row_call(self) -> list[str]:
        values = [f"p_{slot_name(s)} + r * {self._size(s)}" for s in self.at.inputs]
        values += [f"o_{slot_name(s)} + r * {self._size(s)}" for s in self.at.stored]
        values += [f"s_{slot_name(s)} + r * {self._size(s)}" for s in self.at.summed]
        return [*values, *map(slot_name, (*self.at.coefficients, *self.at.adjoints)), "C", "c", "n"]

    def _size(self, slot: str) -> str:
        operand = self.operands[slot]
        return f"{operand.dim} * C" if operand.channels else str(operand.dim)
