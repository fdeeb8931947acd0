"""C++ of a sweep's statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from tpgen.form.call import Slot
from tpgen.kernels.cpp.text import Writer, scaled_text, sum_text
from tpgen.kernels.placement.channel import cpp_slot_name
from tpgen.kernels.sweep.statements import Accumulate, Component, Define, Load, Local, Statement, Sum, TableEntry, Value


def sum_of_products_text(terms: Sum, value: Callable[[Value], str], dtype: str, one: str = "") -> str:
    """Write a sum of products; ``one`` spells an empty product."""
    return sum_text([scaled_text(t.coefficient, " * ".join(map(value, t.factors)) or one, dtype) for t in terms])


@dataclass(frozen=True)
class CppExpressions:
    """C++ expressions of a kernel's values and sums."""

    dtype: str
    components: dict[str, str]  # with a place for the index
    one: str = ""

    def value_expression(self, value: Value) -> str:
        """C++ expression of a component, table entry or local variable."""
        if isinstance(value, Component):
            return self.components[value.operand].format(value.index)
        if isinstance(value, TableEntry):
            return f"t{cpp_slot_name(str(Slot('', value.levels)))}[{value.index} * W]"
        assert isinstance(value, Local)
        return value.name

    def sum_expression(self, terms: Sum) -> str:
        return sum_of_products_text(terms, self.value_expression, self.dtype, self.one)


class RegisterSums:
    """C++ sums of results in registers, by operand and component."""

    def __init__(self, w: Writer, operands: Iterable[str] = ()) -> None:
        self.w = w
        self.found: dict[str, dict[int, str]] = {o: {} for o in operands}

    def write_statements(
        self, statements: Iterable[Statement], expressions: CppExpressions, load: Callable[[str, list[int]], None]
    ) -> None:
        """Write C++ of statements in order; ``load`` writes the loads of an operand's components."""
        for kind, operand, run in _group_statements_by_kind_and_operand(statements):
            if kind is Load:
                load(operand, [s.target.index for s in run])
            elif kind is Define:
                for s in run:
                    self.w.line(f"const vec {s.target} = {expressions.sum_expression(s.terms)};")
            elif kind is Accumulate:
                self._write_additions_to_register_sums(
                    operand, [(s.target.index, expressions.sum_expression(s.terms)) for s in run]
                )

    def _write_additions_to_register_sums(self, operand: str, component_values: list[tuple[int, str]]) -> None:
        found = self.found.setdefault(operand, {})
        for n, value in component_values:
            if n in found:
                self.w.line(f"{found[n]} += {value};")
            else:
                found[n] = f"sum_{operand}_{n}"
                self.w.line(f"vec {found[n]} = {value};")


def _group_statements_by_kind_and_operand(statements: Iterable[Statement]) -> Iterator[tuple[type, str, list]]:
    # consecutive statements of one kind, and of one operand if these load or accumulate

    def kind_and_operand(s: Statement) -> tuple[type, str]:
        return type(s), s.target.operand if isinstance(s, Load | Accumulate) else ""

    for (kind, operand), group in groupby(statements, kind_and_operand):
        yield kind, operand, list(group)


def components_read(terms: Sum) -> Iterator[Component]:
    return (f for term in terms for f in term.factors if isinstance(f, Component))
