"""Print a plan as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpgen.base.drawing.path_map import PathMap, draw_first_paths
from tpgen.base.notebook import div_lines, html_table
from tpgen.base.text import table

_RIGHT = ("path", "term", "paths", "weights", "coefficient", "coupling", "flops", "bytes")
_BARS = ("flops", "bytes")


@dataclass(frozen=True)
class PlanRow:
    """An instruction's index, and texts of table cells by column name."""

    index: int
    cells: dict[str, str]


def table_lines(title: str, rows: Sequence[PlanRow], totals: str) -> list[tuple[str, int | None]]:
    """A plan's printed table: lines, each with instruction index or None."""
    above = [*title.split("\n"), ""]
    if not rows:
        return [(text, None) for text in (*above, totals)]
    cells, left = _arrange_cells_and_left_columns(rows)
    head, *found = table(cells, left=left).split("\n")
    body = [(text, row.index) for text, row in zip(found, rows, strict=True)]
    return [*((text, None) for text in (*above, head)), *body, ("", None), (totals, None)]


def table_html(title: str, rows: Sequence[PlanRow], totals: str, path_map: PathMap) -> str:
    """A plan's HTML table with cost bars and path diagram."""
    cells, left = _arrange_cells_and_left_columns(rows)
    bars = {name: [float(row.cells[name]) for row in rows] for name in _BARS if name in cells[0]}
    return (
        div_lines(*title.split("\n")) + html_table(cells, left, bars) + div_lines(totals) + draw_first_paths(path_map)
    )


def _arrange_cells_and_left_columns(rows: Sequence[PlanRow]) -> tuple[list[list[str]], list[int]]:
    names = dict.fromkeys(name for row in rows for name in row.cells)
    order = sorted(names, key=lambda name: (name not in _RIGHT[:2], not name.startswith("in")))
    heads = [name for name in order if any(row.cells.get(name) for row in rows)]
    cells = [heads, *([row.cells.get(name, "") for name in heads] for row in rows)]
    return cells, [n for n, name in enumerate(heads) if name not in _RIGHT]
