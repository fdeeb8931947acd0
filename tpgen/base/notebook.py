"""HTML for notebooks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from html import escape
from math import isfinite
from typing import Any

_CELL = "padding:1px 8px;white-space:nowrap;text-align:{align};background:none"
_BAR = "background:linear-gradient(90deg,#4a7dbd55 {share:.0f}%,transparent {share:.0f}%)"
# Tints below the text, whose colour stays the page's: they read on light pages and on dark ones.
_STATUS = {"passed": "background:#2da44e33", "failed": "background:#cf222e44;font-weight:bold"}


class Shown:
    """Base class: IPython prints a value's text, notebooks its HTML.

    >>> class Text(Shown):
    ...     def __str__(self):
    ...         return "1 < 2"
    >>> Text()._repr_html_()
    '<pre style="line-height:1.2">1 &lt; 2</pre>'
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Let IPython print by `_repr_pretty_`, not ``__repr__``."""
        super().__init_subclass__(**options)
        if "_repr_pretty_" not in vars(cls):
            cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{type(self).__name__}(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        return _preformatted(str(self))


def _preformatted(text: str) -> str:
    return f'<pre style="line-height:1.2">{escape(text)}</pre>'


def html_table(
    rows: Sequence[Sequence[Any]], left: Container[int] = (), bars: Mapping[str, Sequence[float]] | None = None
) -> str:
    """HTML table of rows, heads first; ``left`` columns are left-aligned.

    ``bars``: a column's values, drawn relative to the largest.

    >>> html_table([("a", "b"), (1, 2)], bars={"b": [2.0]}).count("linear-gradient(90deg,#4a7dbd55 100%")
    1
    """
    head, *body = rows
    shares = {
        head.index(name): _find_percent_of_largest(values) for name, values in (bars or {}).items() if name in head
    }
    lines = [_html_row("th", head, left, {})]
    lines += [
        _html_row("td", cells, left, {c: found[n] for c, found in shares.items()}) for n, cells in enumerate(body)
    ]
    return f'<table style="font-size:90%;border-collapse:collapse">{"".join(lines)}</table>'


def _find_percent_of_largest(values: Sequence[float]) -> list[float]:
    finite = [value if isfinite(value) else 0.0 for value in values]
    most = max(finite, default=0.0) or 1.0
    return [100 * value / most for value in finite]


def _html_row(tag: str, cells: Sequence[Any], left: Container[int], shares: Mapping[int, float]) -> str:
    return f"<tr>{''.join(_html_cell(tag, str(cell), n in left, shares.get(n)) for n, cell in enumerate(cells))}</tr>"


def _html_cell(tag: str, text: str, is_left: bool, bar_percent: float | None) -> str:
    style = [_CELL.format(align="left" if is_left else "right"), _STATUS.get(text, "")]
    style += [_BAR.format(share=bar_percent)] if bar_percent is not None else []
    return f'<{tag} style="{";".join(filter(None, style))}">{escape(text)}</{tag}>'


def div_lines(*texts: str) -> str:
    """One HTML ``div`` per non-empty text."""
    return "".join(f"<div>{escape(text)}</div>" for text in texts if text)


def collapsible(title: str, text: str) -> str:
    """HTML text that a click on the title opens.

    >>> collapsible("code", "a")
    '<details><summary>code</summary><pre style="line-height:1.2">a</pre></details>'
    """
    return f"<details><summary>{escape(title)}</summary>{_preformatted(text)}</details>"
