"""Statements of a sweep as C++: sums of products of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from tpgen.kernels.cpp.text import times, total
from tpgen.kernels.sweep.statements import Accumulate, Component, Load, Local, Statement, Sum, TableEntry, Value


@dataclass(frozen=True)
class Spelling:
    """How values are written: components by the operand they belong to, and locals not called by their name."""

    dtype: str
    components: dict[str, str]  # with a place for the index
    renamed: dict[str, str] = field(default_factory=dict)

    def value(self, value: Value) -> str:
        if isinstance(value, Component):
            return self.components[value.operand].format(value.index)
        if isinstance(value, TableEntry):
            return f"t[{value.index} * W]"
        assert isinstance(value, Local)
        return self.renamed.get(value.name, value.name)

    def sum(self, terms: Sum) -> str:
        return total([times(t.coefficient, " * ".join(map(self.value, t.factors)), self.dtype) for t in terms])


def runs(statements: Iterable[Statement]) -> Iterator[tuple[type, str, list]]:
    """Statements that belong together: of one kind, and of one operand where they read it or add to it."""
    for (kind, operand), group in groupby(statements, key=lambda s: (type(s), _operand(s))):
        yield kind, operand, list(group)


def _operand(statement: Statement) -> str:
    return statement.component.operand if isinstance(statement, Load | Accumulate) else ""


def components(terms: Sum) -> Iterator[Component]:
    """The components of operands that a sum reads."""
    return (f for term in terms for f in term.factors if isinstance(f, Component))
