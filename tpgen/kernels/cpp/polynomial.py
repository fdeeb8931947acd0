"""C++ of a polynomial sweep: vectors over channels, rows by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpgen.kernels.cpp.expressions import CppExpressions
from tpgen.kernels.cpp.prelude import header_text, prelude_text
from tpgen.kernels.cpp.text import (
    GeneratedSource,
    Writer,
    block_for_each_task,
    entry_function_head,
    scratch_area_declarations,
    write_allocation,
)
from tpgen.kernels.placement.polynomial import PolynomialPlacement, component_runs, polynomial_slot_name
from tpgen.kernels.sweep.monomials import merge_sums_by_component
from tpgen.kernels.sweep.statements import Component, Computation, Local
from tpgen.planner.polynomial_plan import format_terms

# Sums have one order for any number of threads: rows alone determine the tasks, and a task has all rows of an element
# if weights are open.

_WORTH = 1 << 17  # operations on vectors that are worth a second thread
_MOVED = 8  # operations, for as long as a component takes between memory and registers


class TargetTemplates(NamedTuple):
    """Format strings of C++ types, loads and stores of a row."""

    number: str  # the type of what is computed with
    one: str
    kept: str  # a coefficient, or the gradient of one
    add: str
    spread: str  # a component that all channels share
    get: str  # a segment
    set: str


_VECTORS = TargetTemplates(
    "vec",
    "(vec{} + 1)",
    "load({0} + {1} * W)",
    "add({0} + {1} * W, {2});",
    "vec{{}} + widen(p_{0}[{1}])",
    "Items<{2}>::get(p_{0} + {1} * C + c * {2}, n, t_{0} + {1});",
    "Items<{2}>::set(o_{0} + {1} * C + c * {2}, n, d_{0} + {1});",
)


class PolynomialRowWriter:
    """Writes C++ loads, statements and stores of a polynomial's row."""

    def __init__(self, at: PolynomialPlacement, w: Writer, templates: TargetTemplates) -> None:
        """Prepare to write C++ with the format strings ``templates``."""
        self.at, self.w, self.templates = at, w, templates
        texts = {s: templates.kept.format(polynomial_slot_name(s), "{}") for s in at.scratch}
        texts |= {s: f"t_{polynomial_slot_name(s)}[{{}}]" for s in at.read_components if s not in texts}
        self.expressions = CppExpressions(at.target.dtype, texts, one=templates.one)

    def write_loads(self, slot: str) -> None:
        """Write C++ that loads an input into an array."""
        operand, name = self.at.operands[slot], polynomial_slot_name(slot)
        self.w.line(f"{self.templates.number} t_{name}[{operand.dim}];")
        if operand.channels:
            for start, size in self.at.segments_read(slot):
                self.w.line(self.templates.get.format(name, start, size))
        else:
            for i in self.at.read_components[slot]:
                self.w.line(f"t_{name}[{i}] = {self.templates.spread.format(name, i)};")

    def write_declarations_of_zero_sums(self) -> None:
        """Declare a C++ array of zeros for each result."""
        for slot in self.at.row_slots:
            self.w.line(f"{self.templates.number} d_{polynomial_slot_name(slot)}[{self.at.operands[slot].dim}] = {{}};")

    def write_cpp_statement(self, statement: Computation) -> None:
        text, target = self.expressions.sum_expression(statement.terms), statement.target
        if isinstance(target, Local):
            self.w.line(f"const {self.templates.number} {target} = {text};")
            return
        assert isinstance(target, Component)
        name = polynomial_slot_name(target.operand)
        if target.operand in self.at.scratch:
            self.w.line(self.templates.add.format(name, target.index, text))
        else:
            self.w.line(f"d_{name}[{target.index}] += {text};")

    def write_stores(self, slot: str) -> None:
        """Write C++ that stores a result."""
        for start, size in component_runs(self.at.operands[slot]):
            self.w.line(self.templates.set.format(polynomial_slot_name(slot), start, size))


def generate_polynomial(placement: PolynomialPlacement) -> GeneratedSource:
    """Generate the C++ kernel of a polynomial."""
    # the entry point's index gives each row's element; null: element 0, or each row its own
    return _PolynomialKernelWriter(placement).write_kernel_source()


def _argument_declarations(cpp_type: str, prefix: str, slots: list[str]) -> list[str]:
    return [f"{cpp_type} {prefix}{polynomial_slot_name(s)}" for s in slots]


class _PolynomialKernelWriter:
    def __init__(self, placement: PolynomialPlacement) -> None:
        """Prepare to write the C++ kernel of a polynomial."""
        self.at, self.sweep, self.w = placement, placement.sweep, Writer()
        self.row = PolynomialRowWriter(placement, self.w, _VECTORS)
        self.dim = {slot: operand.dim for slot, operand in placement.operands.items()}

    def write_kernel_source(self) -> GeneratedSource:
        """Write functions and entry point; return the C++ source."""
        for line in [*format_terms(self.at.plan).split("\n"), str(self.sweep.call)]:
            self.w.line(f"// {line}")
        self.w.raw(prelude_text(self.at.target, self.at.transposed_segments, self.at.target.lanes))
        for name in ("indices", "order", "tasks", "channels"):
            self.w.raw(header_text(name))
        if self.at.coefficients:
            self._write_function_that_computes_coefficients()
        self._write_function_that_computes_row()
        if self.at.open_weights:
            self._write_function_that_computes_weight_gradients()
        self._write_entry_point()
        return self.w.finish()

    def _write_function_that_computes_row(self) -> None:
        at = self.at
        arguments = _argument_declarations("const real*", "p_", at.inputs) + _argument_declarations(
            "real*", "o_", at.stored
        )
        arguments += _argument_declarations("num*", "o_", at.channel_sums)
        arguments += _argument_declarations("const num*", "", at.coefficients) + _argument_declarations(
            "num*", "", at.adjoints
        )
        with self.w.block(f"static void row({', '.join([*arguments, 'i64 C', 'i64 c', 'int n'])})"):
            for slot in at.inputs:
                self.row.write_loads(slot)
            self.row.write_declarations_of_zero_sums()
            for statement in self.sweep.rows:
                self.row.write_cpp_statement(statement)
            for slot in at.stored:
                self.row.write_stores(slot)
            for name, i in ((polynomial_slot_name(s), i) for s in at.channel_sums for i in range(self.dim[s])):
                self.w.line(f"o_{name}[{i}] += sum_some(d_{name}[{i}], n);")

    def _write_function_that_computes_coefficients(self) -> None:
        arguments = _argument_declarations("const num*", "", self.at.weights) + _argument_declarations(
            "num*", "", self.at.coefficients
        )
        with self.w.block(f"static void prologue({', '.join(arguments)})"):
            for target, terms in merge_sums_by_component(self.sweep.prologue).items():
                value = self.row.expressions.sum_expression(terms)
                self.w.line(f"store({polynomial_slot_name(target.operand)} + {target.index} * W, {value});")

    def _write_function_that_computes_weight_gradients(self) -> None:
        arguments = _argument_declarations("const num*", "", [*self.at.weights, *self.at.adjoints])
        arguments += _argument_declarations("real*", "o_", self.at.open_weights)
        sums = merge_sums_by_component(self.sweep.epilogue)
        with self.w.block(f"static void epilogue({', '.join([*arguments, 'i64 C', 'int n'])})"):
            for slot, i in ((s, i) for s in self.at.open_weights for i in range(self.dim[s])):
                text = self.row.expressions.sum_expression(sums.get(Component(slot, 0, i), ())) or "vec{}"
                self.w.line(f"set_some(o_{polynomial_slot_name(slot)} + {i} * C, n, {text});")

    def _write_entry_point(self) -> None:
        sums = [
            (f"s_{polynomial_slot_name(s)}", f"rows * {self.dim[s]}", self.at.opened.index(s))
            for s in self.at.channel_sums
        ]
        with self.w.block(entry_function_head()):
            self.w.line("const i64 elements = indices[0].size, C = channels, vectors = (C + W - 1) / W;")
            self.w.line("const i64* const index = (const i64*)indices[0].at;")
            self.w.line("if (index && !inside(index, rows, elements)) return 2;")
            write_allocation(self.w, "i64", "tasks", f"tasks_size(rows, elements, {self.at.span})")
            self.w.line(f"const Tasks t = make_tasks(tasks, index, rows, elements, {self.at.span});")
            for name, size, _ in sums:
                write_allocation(self.w, "num", name, f"{size} + 1")
                self.w.line(f"for (i64 m = 0; m < {size}; ++m) {name}[m] = 0;")
            self.w.line("int fault = 0;")
            self._write_threaded_loop_over_row_tasks()
            for name, size, n in sums:
                self.w.line(f"for (i64 m = 0; m < {size}; ++m) opened[{n}][m] = narrow({name}[m]);")
            self.w.line("return fault;")

    def _write_threaded_loop_over_row_tasks(self) -> None:
        # threads loop over tasks: rows of an element; all channels if a result is summed over channels
        groups = "1" if self.at.has_all_channels_per_task else "vectors"
        moved = sum(self.dim.get(slot, 0) for slot in (*self.at.read_components, *self.at.opened))
        shared = f"rows * vectors * {self.sweep.operations + _MOVED * moved}, {_WORTH}"
        size = f"{max(1, sum(self.at.scratch.values()))} * W"
        with block_for_each_task(self.w, f"t.count * {groups}", shared, size, self._declarations_of_thread_variables()):
            self.w.line(f"const i64 e = t.element[b / {groups}], from = t.begin[b / {groups}];")
            end = "t.first[e + 1]"
            self.w.line(f"const i64 to = {end if self.at.open_weights else f'least({end}, from + {self.at.span})'};")
            if self.at.has_all_channels_per_task:
                with self.w.block("for (i64 v = 0; v < vectors; ++v)"):
                    self._write_computation_of_task_rows()
            else:
                self.w.line("const i64 v = b % vectors;")
                self._write_computation_of_task_rows()

    def _declarations_of_thread_variables(self) -> Iterator[str]:
        # declarations of scratch, and of the tensors that a thread reads and writes
        at = self.at
        yield from scratch_area_declarations(
            {polynomial_slot_name(slot): count for slot, count in at.scratch.items()}, " * W"
        )
        read = [(slot, n) for n, slot in enumerate(at.given) if slot in at.read_components]
        yield from (f"const real* const p_{polynomial_slot_name(slot)} = given[{n}];" for slot, n in read)
        written = [(slot, n) for n, slot in enumerate(at.opened) if slot not in at.channel_sums]
        yield from (f"real* const o_{polynomial_slot_name(slot)} = opened[{n}];" for slot, n in written)

    def _write_computation_of_task_rows(self) -> None:
        # one vector of channels of a task's rows
        self.w.line("const i64 c = v * W; const int n = least(W, C - c);")
        if self.at.open_weights:
            with self.w.block("if (from == to)"):
                for slot in self.at.open_weights:
                    place = f"o_{polynomial_slot_name(slot)} + (e * {self.dim[slot]} + i) * C + c"
                    self.w.line(f"for (int i = 0; i < {self.dim[slot]}; ++i) set_some({place}, n, vec{{}});")
                self.w.line("continue;")
        for slot in self.at.weights:
            value = f"get_some(p_{polynomial_slot_name(slot)} + (e * {self.dim[slot]} + i) * C + c, n)"
            self.w.line(
                f"for (int i = 0; i < {self.dim[slot]}; ++i) store({polynomial_slot_name(slot)} + i * W, {value});"
            )
        if self.at.coefficients:
            self.w.line(f"prologue({', '.join(map(polynomial_slot_name, (*self.at.weights, *self.at.coefficients)))});")
        for slot in self.at.adjoints:
            self.w.line(f"clear({polynomial_slot_name(slot)}, {self.sweep.coefficients} * W);")
        with self.w.block("for (i64 q = from; q < to; ++q)"):
            self.w.line("const i64 r = t.order[q];")
            self.w.line(f"row({', '.join(self._arguments_of_row_function_call())});")
        if self.at.open_weights:
            places = [f"o_{polynomial_slot_name(s)} + e * {self.dim[s]} * C + c" for s in self.at.open_weights]
            values = [*map(polynomial_slot_name, (*self.at.weights, *self.at.adjoints)), *places, "C", "n"]
            self.w.line(f"epilogue({', '.join(values)});")

    def _arguments_of_row_function_call(self) -> list[str]:
        at = self.at
        rows = [("p", at.inputs), ("o", at.stored), ("s", at.channel_sums)]
        values = [f"{p}_{polynomial_slot_name(s)} + r * {at.row_size_text(s)}" for p, slots in rows for s in slots]
        return [*values, *map(polynomial_slot_name, (*at.coefficients, *at.adjoints)), "C", "c", "n"]
