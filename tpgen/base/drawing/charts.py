"""SVG charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, isfinite, log10

from tpgen.base.drawing.colors import line_color, text_color, to_css

_ROW = 18  # from one bar to the next
_LETTER = 6.2  # the most that a letter of a label is wide
_BAR, _BLUE, _GREEN, _RED = 220, "#4a7dbd", to_css(line_color(2)), "#d1495b"


def draw_bar_groups(groups: Mapping[str, Sequence[tuple[str, float, str]]]) -> str:
    """Draw titled groups of (label, value, text) bars, relative to each group's largest.

    >>> draw_bar_groups({"saved": [("min-cut", 10.0, "10 B"), ("default", 40.0, "40 B")]}).count("<rect")
    2
    """
    shown = {title: bars for title, bars in groups.items() if bars}
    left = 12 + _find_width_of_labels(label for bars in shown.values() for label, _, _ in bars)
    width = left + _BAR + 12 + _find_width_of_labels(text for bars in shown.values() for _, _, text in bars)
    parts, y = [], 4.0
    for title, bars in shown.items():
        parts.append(_svg_text(4, y + 11, title, weight=600))
        most = max((value for _, value, _ in bars if isfinite(value)), default=0.0) or 1.0
        for n, (label, value, text) in enumerate(bars):
            base = y + _ROW * (n + 1)
            long = _BAR * value / most if isfinite(value) else 0.0
            parts.append(_svg_text(left - 6, base + 11, label, "end"))
            parts.append(f'<rect x="{left}" y="{base + 2}" width="{long:.1f}" height="12" fill="{_BLUE}"/>')
            parts.append(_svg_text(left + long + 5, base + 11, text))
        y += _ROW * (len(bars) + 1) + 8
    return _wrap_parts_in_svg(parts, width, y) if parts else ""


def draw_stacked_bar(parts: Sequence[tuple[str, float]], total: float, remainder_name: str = "") -> str:
    """Draw (name, value) parts of a total as one bar, with a legend.

    >>> draw_stacked_bar([("a", 1.0), ("b", 2.0)], 4.0, "other").count("<rect")
    6
    """
    left = max(0.0, total - sum(value for _, value in parts))
    named = [*parts, *([(remainder_name, left)] if remainder_name else [])]
    total = sum(value for _, value in named) or 1.0
    drawn, x, width = [], 4.0, 2.0 * _BAR
    for n, (name, value) in enumerate(named):
        long, percent = width * value / total, f"{100 * value / total:.0f} %"
        color = line_color(n) if n < len(parts) else (0.5, 0.5, 0.5)
        title = f"<title>{escape(name)}: {percent}</title>"
        drawn.append(f'<rect x="{x:.1f}" y="4" width="{long:.1f}" height="20" fill="{to_css(color)}">{title}</rect>')
        if long > 7 * len(percent):
            drawn.append(_svg_text(x + long / 2, 18, percent, "middle", text_color(color)))
        y = 30 + _ROW * n
        drawn.append(f'<rect x="4" y="{y + 2}" width="11" height="11" fill="{to_css(color)}"/>')
        drawn.append(_svg_text(21, y + 11, f"{name}: {percent}"))
        x += long
    return _wrap_parts_in_svg(
        drawn, max(width + 8, 25 + _find_width_of_labels(f"{name}: 100 %" for name, _ in named)), 34 + _ROW * len(named)
    )


LabelledError = tuple[str, float | None, float | None]  # its label, how large it is, and the tolerance


def draw_error_scale(errors: Sequence[LabelledError]) -> str:
    """Draw (label, error, tolerance) on a logarithmic axis; a cross exceeds the tolerance.

    >>> drawn = draw_error_scale([("linear", 1e-8, 1e-6), ("equivariant", 1e-3, 1e-6)])
    >>> drawn.count("<circle"), drawn.count('class="beyond"')
    (1, 1)
    """
    errors = [(label, value, limit) for label, value, limit in errors if value is not None]
    seen = [v for _, *both in errors for v in both if v and isfinite(v) and v > 0]
    if not seen:
        return ""
    low, high = floor(log10(min(seen))) - 1, ceil(log10(max(seen))) + 1
    left, wide, bottom = 12 + _find_width_of_labels(label for label, _, _ in errors), 2 * _BAR, 6 + _ROW * len(errors)

    def x_of_value(value: float) -> float:
        power = low if value <= 0 else high if not isfinite(value) else log10(value)
        return left + wide * (power - low) / (high - low)

    parts = []
    for n in range(low, high + 1, max(1, (high - low) // 6)):
        x = x_of_value(10.0**n)
        parts += [
            _svg_line(x, 4, x, bottom, "", 'stroke-opacity="0.25"'),
            _svg_text(x, bottom + 13, f"1e{n}", "middle"),
        ]
    for n, (label, value, limit) in enumerate(errors):
        y = 6 + _ROW * n + _ROW / 2
        assert value is not None
        parts.append(_svg_text(left - 8, y + 4, label, "end"))
        if limit and limit > 0:
            parts.append(
                _svg_line(
                    x_of_value(limit), y - 7, x_of_value(limit), y + 7, f"tolerance {limit:.1e}", 'stroke-width="2"'
                )
            )
        parts.append(_draw_error_mark(x_of_value(value), y, value, limit))
        parts.append(_svg_text(left + wide + 8, y + 4, f"{value:.1e}" if value else "0"))
    parts.append(_svg_text(left + wide / 2, bottom + 28, "largest relative error; upright: the tolerance", "middle"))
    return _wrap_parts_in_svg(parts, left + wide + 70, bottom + 34)


def _draw_error_mark(x: float, y: float, value: float, tolerance: float | None) -> str:
    if tolerance is None or value <= tolerance:
        return f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{_GREEN}"/>'
    cross = f"M{x - 5:.1f},{y - 5}L{x + 5:.1f},{y + 5}M{x - 5:.1f},{y + 5}L{x + 5:.1f},{y - 5}"
    return f'<path class="beyond" d="{cross}" stroke="{_RED}" stroke-width="3"/>'


def _svg_line(x0: float, y0: float, x1: float, y1: float, title: str, style: str) -> str:
    ends = f'x1="{x0:.1f}" y1="{y0}" x2="{x1:.1f}" y2="{y1}"'
    return f'<line {ends} stroke="currentColor" {style}><title>{escape(title)}</title></line>'


def _find_width_of_labels(texts: Iterable[str]) -> float:
    return _LETTER * max(map(len, texts), default=0)


def _svg_text(
    x: float, y: float, content: str, anchor: str = "start", color: str = "currentColor", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{color}">{escape(content)}</text>'
    )


def _wrap_parts_in_svg(parts: Sequence[str], width: float, height: float) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {size} style="max-width:100%">{"".join(parts)}</svg>'
