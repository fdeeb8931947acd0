"""The roofline as SVG."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log10

from tpgen.base.drawing.colors import path_color, to_css
from tpgen.base.drawing.path_map import css_properties
from tpgen.base.text import duration, quantity
from tpgen.tools.inspection.costs.explained import ExplanationValues, PathExplanation
from tpgen.tools.inspection.costs.roofline import Ceilings

_RULE, _ROOF = 'stroke="#80808060"', 'fill="none" stroke="#4a7dbd" stroke-width="2"'
_TOTALS = {
    "predicted": 'fill="none" stroke="currentColor" stroke-width="2"',
    "measured": 'fill="currentColor"',
}
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 422, 14, 126


_ToPixels = Callable[[float, float], tuple[float, float]]  # where a point of intensity and rate stands


def draw_roofline_svg(explanation: ExplanationValues, interactive: bool = False) -> str:
    """SVG text of operations per second over operations per byte; empty without ceilings."""
    ceilings = explanation.ceilings
    if ceilings is None or not explanation.intensity:
        return ""
    left, right = -1.0, max(2.0, log10(4 * ceilings.ridge), log10(4 * explanation.intensity))
    high = log10(ceilings.flops) + 0.35
    low = min([high - 3, *(log10(rate) - 0.6 for rate in explanation.rates.values())])

    def to_pixels(intensity: float, rate: float) -> tuple[float, float]:
        x = _LEFT + (_RIGHT - _LEFT) * (log10(intensity) - left) / (right - left)
        y = _BOTTOM - (_BOTTOM - _TOP) * (log10(rate) - low) / (high - low)
        return min(max(x, _LEFT), _RIGHT), min(max(y, _TOP), _BOTTOM)

    labels = _LabelPlacer()
    parts = _write_grid_lines_svg(to_pixels, left, right, low, high)
    totals = _write_product_points_svg(to_pixels, labels, explanation)  # first, as what they name is one point
    parts += _write_ceiling_lines_svg(to_pixels, labels, ceilings, left, right)
    parts += [
        *(
            _write_path_point_svg(path, *to_pixels(intensity, rate))
            for path, intensity, rate in explanation.roofline_points
        ),
        *totals,
    ]
    # on the interactive page a path's point appears when the path is chosen
    named = 'id="roofline"' if interactive else 'style="max-width:100%"'
    return f'<svg {named} viewBox="0 0 440 158" width="440" height="158">{"".join(parts)}</svg>'


class _LabelPlacer:
    _LETTER, _LINE = 5.9, 12.0  # the most that a letter is wide, and a line is tall

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float, float]] = []

    def write_label_without_overlap(self, content: str, x: float, y: float, above: bool = False) -> str:
        # a label near a point of the roof: below it on the right, or above on the left, else where there is room
        wide = self._LETTER * len(content)
        beside = [(x + 9, "start", x + 9), (x - 9, "end", x - 9 - wide)]
        sides, downs = (beside[::-1], (-6, 3.5, -18, 13, 25)) if above else (beside, (13, 3.5, 25, -6, 37, -18, -30))
        places = [(at, name, start, y + down) for down in downs for at, name, start in sides]
        free = (place for place in places if self._is_label_place_free(place[2], place[3], wide))
        at, name, start, base = next(free, places[0])
        self._taken.append((start, base - self._LINE, start + wide, base))
        return _write_svg_text(at, base, name, content)

    def _is_label_place_free(self, left_edge: float, baseline: float, width: float) -> bool:
        inside = left_edge >= _LEFT + 2 and left_edge + width <= _RIGHT + 16 and _TOP <= baseline <= _BOTTOM - 2
        return inside and not any(
            left_edge < right and left < left_edge + width and baseline - self._LINE < bottom and top < baseline
            for left, top, right, bottom in self._taken
        )


def _write_grid_lines_svg(to_pixels: _ToPixels, left: float, right: float, low: float, high: float) -> list[str]:
    parts = []
    for n in range(ceil(left), floor(right) + 1):
        x, _ = to_pixels(10.0**n, 10**low)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}" {_RULE}/>')
        parts.append(_write_svg_text(x, _BOTTOM + 13, "middle tick", f"{10.0**n:g}"))
    for n in range(ceil(low), floor(high) + 1):
        _, y = to_pixels(10**left, 10.0**n)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" {_RULE}/>')
        parts.append(_write_svg_text(_LEFT - 5, y + 3.5, "end tick", quantity(10.0**n, "")))
    middle = (_TOP + _BOTTOM) / 2
    parts.append(_write_svg_text((_LEFT + _RIGHT) / 2, _BOTTOM + 28, "middle", "FLOP per byte"))
    turned = f'transform="rotate(-90 9 {middle})"'
    parts.append(_write_svg_text(9, middle, "middle", "FLOP/s", turned))
    return parts


def _write_ceiling_lines_svg(
    to_pixels: _ToPixels, labels: _LabelPlacer, ceilings: Ceilings, left: float, right: float
) -> list[str]:
    start, ridge = to_pixels(10**left, 10**left * ceilings.bandwidth), to_pixels(ceilings.ridge, ceilings.flops)
    points = (start, ridge, to_pixels(10**right, ceilings.flops))
    middle = (start[0] + ridge[0]) / 2, (start[1] + ridge[1]) / 2
    return [
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" {_ROOF}/>',
        labels.write_label_without_overlap(quantity(ceilings.flops, "FLOP/s"), _RIGHT + 9, ridge[1], above=True),
        labels.write_label_without_overlap(quantity(ceilings.bandwidth, "B/s"), *middle, above=True),
    ]


def _write_path_point_svg(path: PathExplanation, x: float, y: float) -> str:
    name = f"path {path.index}, {'measured alone' if path.seconds else 'predicted'}"
    fill = to_css(path_color(path.index))
    return (
        f'<circle class="point" data-p="{path.index}" style="{css_properties(path.index)}" cx="{x:.1f}" '
        f'cy="{y:.1f}" r="4" fill="{fill}" stroke="currentColor"><title>{name}</title></circle>'
    )


def _write_product_points_svg(to_pixels: _ToPixels, labels: _LabelPlacer, explanation: ExplanationValues) -> list[str]:
    parts = []
    for name, rate in explanation.rates.items():
        x, y = to_pixels(explanation.intensity, rate)
        parts.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="5" {_TOTALS[name]}/>')
        parts.append(labels.write_label_without_overlap(f"{name} {duration(explanation.flops / rate)}", x, y))
    return parts


def _write_svg_text(x: float, y: float, classes: str, content: str, transform: str = "") -> str:
    # the first class is the anchor: start, middle or end
    style = f'text-anchor="{classes.split()[0]}" font-size="10" fill="currentColor"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}" {style} {transform}>{content}</text>'
