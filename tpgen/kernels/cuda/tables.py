"""Tables of a row, made by all threads: each computes other entries by the same text, with numbers from an array.

Tables of the same segment sizes stand together, those of each copy in multiples of four: a lane reads four at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.kernels.placement.values import PlacedTable
from tpgen.kernels.sweep.statements import Component, Tabulate

Entry = tuple[tuple[float, int], ...]  # coefficients, and which number of the row (and copy) each multiplies


@dataclass(frozen=True)
class TableSet:
    """Tables with the same operand and copies: entry n of copy v at ``offset + v * entries + n``."""

    operand: str
    copies: int
    copy_stride: int
    offset: int
    tables: tuple[PlacedTable, ...]
    firsts: tuple[int, ...]  # the first entry of each table
    rows: tuple[Entry, ...]

    @property
    def entries(self) -> int:
        """Entries of one copy."""
        return len(self.rows)

    @property
    def size(self) -> int:
        return self.copies * self.entries

    @property
    def depth(self) -> int:
        """The most terms of any entry."""
        return max(map(len, self.rows))

    @property
    def paths(self) -> tuple[int, ...]:
        return tuple(sorted({path for t in self.tables for path in t.table.paths}))

    def column(self, n: int) -> tuple[tuple[float, int], ...]:
        """The n-th term of every entry; nothing, zero times the first number."""
        return tuple(row[n] if n < len(row) else (0.0, 0) for row in self.rows)


def table_sets(placed: tuple[PlacedTable, ...], needed: tuple[tuple[Tabulate, ...], ...]) -> tuple[TableSet, ...]:
    """The tables that some statement reads, in sets."""
    alike: dict[tuple[str, int, int], list[int]] = {}
    for n, table in enumerate(placed):
        if needed[n]:
            key = (table.operand, table.copies, table.copy_stride if table.copies > 1 else 0)
            alike.setdefault(key, []).append(n)
    made: list[TableSet] = []
    for (operand, copies, stride), members in alike.items():
        offset = made[-1].offset + made[-1].size if made else 0
        made.append(_table_set(operand, copies, stride, offset, [(placed[n], needed[n]) for n in members]))
    return tuple(made)


def _table_set(
    operand: str, copies: int, stride: int, offset: int, members: list[tuple[PlacedTable, tuple[Tabulate, ...]]]
) -> TableSet:
    firsts: list[int] = []
    rows: list[Entry] = []
    for placed, statements in members:
        firsts.append(len(rows))
        rows += [_entry(placed, statement) for statement in statements]
        rows += [()] * (-len(rows) % 4)
    return TableSet(operand, copies, stride, offset, tuple(p for p, _ in members), tuple(firsts), tuple(rows))


def _entry(placed: PlacedTable, statement: Tabulate) -> Entry:
    return tuple((term.coefficient, _place(placed, term.factors)) for term in statement.terms)


def _place(placed: PlacedTable, factors: tuple) -> int:
    (component,) = factors
    assert isinstance(component, Component)
    return placed.start + component.index * placed.index_stride
