"""Tables of linear combinations of a row's numbers, filled by all threads."""

# Entries of a copy fill a multiple of four, which a lane reads at once.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tpgen.kernels.placement.values import PlacedTable
from tpgen.kernels.sweep.statements import Component, Statement, TableEntry, Tabulate, Value
from tpgen.kernels.sweep.sweep import PathSweep, Sweep

LONG = 64  # entries of a table, which registers cannot hold beside all else
_Entry = tuple[tuple[float, int], ...]  # coefficients, and which number of the row (and copy) each multiplies


@dataclass(frozen=True)
class TableSet:
    """Tables of linear combinations of one operand: entry n of copy v is at ``offset + v * entries + n``."""

    operand: str
    copies: int
    copy_stride: int
    offset: int
    tables: tuple[PlacedTable, ...]
    firsts: tuple[int, ...]  # the first entry of each table
    places: tuple[dict[int, int], ...]  # of the entries of each, behind its first
    rows: tuple[_Entry, ...]

    @property
    def entries(self) -> int:
        """Entries of one copy."""
        return len(self.rows)

    @property
    def size(self) -> int:
        return self.copies * self.entries

    @property
    def depth(self) -> int:
        """Most terms of an entry."""
        return max(map(len, self.rows))

    @property
    def paths(self) -> tuple[int, ...]:
        return tuple(sorted({path for t in self.tables for path in t.table.paths}))

    def column(self, n: int) -> tuple[tuple[float, int], ...]:
        """The n-th term of every entry; zero if missing."""
        return tuple(row[n] if n < len(row) else (0.0, 0) for row in self.rows)


def make_table_sets(placed: tuple[PlacedTable, ...], sweep: Sweep) -> tuple[TableSet, ...]:
    """Group the tables that a sweep reads, by operand and copies."""
    alike: dict[tuple[str, int, int], list[int]] = {}
    for n, table in enumerate(placed):
        if sweep.tables[n]:
            key = (table.operand, table.copies, table.copy_stride if table.copies > 1 else 0)
            alike.setdefault(key, []).append(n)
    made: list[TableSet] = []
    read = _rank_entries_by_first_read(sweep.paths)
    for (operand, copies, stride), members in alike.items():
        offset = made[-1].offset + made[-1].size if made else 0
        tables = [(placed[n], _sort_entries_by_first_read(sweep.tables[n], read)) for n in members]
        made.append(_make_table_set(operand, copies, stride, offset, tables))
    return tuple(made)


def _sort_entries_by_first_read(table: tuple[Tabulate, ...], ranks: dict[TableEntry, int]) -> tuple[Tabulate, ...]:
    # entries of a table in the order in which they stand
    if len(table) <= LONG:
        return table
    return tuple(sorted(table, key=lambda s: ranks.get(s.target, len(ranks))))


def _rank_entries_by_first_read(paths: Iterable[PathSweep]) -> dict[TableEntry, int]:
    # ranks of table entries, by the statement that reads each first
    statements = (s for path in paths for stage in path.stages for s in stage.statements)
    found = dict.fromkeys(entry for statement in statements for entry in entries_of(statement))
    return {entry: rank for rank, entry in enumerate(found)}


def entries_of(statement: Statement) -> list[TableEntry]:
    return [value for value in statement.factors if isinstance(value, TableEntry)]


def _make_table_set(
    operand: str, copies: int, stride: int, offset: int, tables: list[tuple[PlacedTable, tuple[Tabulate, ...]]]
) -> TableSet:
    firsts: list[int] = []
    rows: list[_Entry] = []
    for placed, statements in tables:
        firsts.append(len(rows))
        rows += [_list_terms_of_entry(placed, statement) for statement in statements]
        rows += [()] * (-len(rows) % 4)
    places = tuple({s.target.index: n for n, s in enumerate(statements)} for _, statements in tables)
    return TableSet(operand, copies, stride, offset, tuple(p for p, _ in tables), tuple(firsts), places, tuple(rows))


def _list_terms_of_entry(placed: PlacedTable, statement: Tabulate) -> _Entry:
    return tuple((term.coefficient, _row_position_of_factor(placed, term.factors)) for term in statement.terms)


def _row_position_of_factor(table: PlacedTable, factors: tuple[Value, ...]) -> int:
    (component,) = factors
    assert isinstance(component, Component)
    return table.start + component.index * table.index_stride
