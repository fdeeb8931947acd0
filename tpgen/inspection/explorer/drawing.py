"""Bars of every path's costs, in the colours that it has on the map."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from tpgen.drawing.path_map import hues
from tpgen.inspection.costs.explanation import Explanation, PathExplanation
from tpgen.text import duration

# What each column shows of a path, and how it writes it; a column of nothing is left out.
_BARS: dict[str, tuple[Callable[[PathExplanation], float | None], Callable[[float], str]]] = {
    "FLOP per row": (lambda p: p.flops, lambda value: f"{value:,.0f}"),
    "bytes per row": (lambda p: p.bytes, lambda value: f"{value:,.0f}"),
    "time alone": (lambda p: p.seconds, duration),
}


def bars(found: Explanation) -> str:
    """A row for each path: what it couples, and bars of its operations, bytes and (if measured) time."""
    shown = {
        name: (value, text)
        for name, (value, text) in _BARS.items()
        if any(value(path) is not None for path in found.paths)
    }
    if not shown:
        return ""
    most = {name: max(value(path) or 0 for path in found.paths) or 1 for name, (value, _) in shown.items()}
    head = "".join(f"<th>{name}</th>" for name in ("path", "couples", *shown))
    rows = []
    for path in found.paths:
        cells = "".join(
            f'<td><s style="width:{100 * (value(path) or 0) / most[name]:.0f}%"></s>'
            f"<span>{text(value(path) or 0)}</span></td>"
            for name, (value, text) in shown.items()
        )
        rows.append(
            f'<tr data-p="{path.index}" style="{hues(path.index)}"><td><em>{path.index}</em></td>'
            f"<td>{escape(path.couples)}</td>{cells}</tr>"
        )
    return f'<table id="bars"><tr>{head}</tr>{"".join(rows)}</table>'
