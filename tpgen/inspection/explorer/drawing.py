"""The drawings of the page, as SVG and HTML: the path diagram, the roofline, the bars of every path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

from tpgen.form.linear import AnyPlan
from tpgen.inspection.costs.explain_polynomial import PolynomialExplanation
from tpgen.inspection.costs.explanation import Explanation, PathExplanation
from tpgen.inspection.costs.pictures import path_color, text_color
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.planner.linear import LinearPath, LinearPlan
from tpgen.text import duration, quantity

_WIDTH = 352
_HEIGHT = 676  # what the screen of a laptop has room for: more paths stand closer, down to the closest
_CLOSEST, _WIDEST = 9.5, 30.0  # between two paths
_COLUMNS = {"in": 66, "path": 186, "out": 284}
_GROWTH = 6.0  # stroke of the path with the most operations, above the thinnest


def css_color(index: int) -> str:
    """The colour of a path, as CSS has it."""
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in path_color(index))


def hues(index: int) -> str:
    """The colour of a path and the colour of text on it, as the custom properties of CSS that the page reads."""
    return f"--hue:{css_color(index)};--on:{text_color(path_color(index))}"


# --- the diagram ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """A path on the map: the segments where it begins, by operand, the one that it reaches, and what it costs."""

    index: int
    begins: tuple[tuple[str, int], ...]
    reaches: int
    name: str
    cost: int


@dataclass(frozen=True)
class PathMap:
    """What the diagram shows: the segments of every operand, those of the output, and the paths between them."""

    operands: Mapping[str, tuple[str, ...]]
    out: tuple[str, ...]
    routes: tuple[Route, ...]
    unit: str = "FLOP per row"  # of what makes a route thick


def path_map(plan: AnyPlan) -> PathMap:
    """The map of a product or a linear layer."""
    ends = {"in": plan.irreps_in} if isinstance(plan, LinearPlan) else {"in1": plan.irreps_in1, "in2": plan.irreps_in2}
    routes = []
    for p in plan.paths:
        sources = [p.in1] if isinstance(p, LinearPath) else [p.in1, p.in2]
        begins = tuple((name, source.index) for name, source in zip(ends, sources, strict=True))
        mode = "" if isinstance(p, LinearPath) else f" ({p.mode.name})"
        couples = f"{' x '.join(map(str, sources))} → {p.out}{mode}"
        routes.append(Route(p.index, begins, p.out.index, f"path {p.index}: {couples}", p.flops))
    operands = {name: tuple(map(str, irreps)) for name, irreps in ends.items()}
    return PathMap(operands, tuple(map(str, plan.irreps_out)), tuple(routes))


def diagram(shown: PathMap) -> str:
    """Inputs on the left, the output on the right, a dot and curves for each path, thick for many operations."""
    routes, segments = shown.routes, sum(map(len, shown.operands.values()))
    step = min(_WIDEST, max(_CLOSEST, _HEIGHT / (len(routes) + 1)))
    height = max(step * (len(routes) + 1), 22 * (segments + 3), 120)
    places = {"out": _spread(len(shown.out), 14, height), "path": _spread(len(routes), 14, height)}
    parts = [f'<svg id="diagram" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">']
    top = 0.0
    for name, labels in shown.operands.items():
        bottom = top + height * len(labels) / max(1, segments)
        places[name] = _spread(len(labels), top + 14, bottom)
        parts.append(f'<text class="side" x="4" y="{top + 11:.0f}">{escape(name)}</text>')
        top = bottom
    parts.append(f'<text class="side" x="{_WIDTH - 22}" y="11">out</text>')
    most = max((route.cost for route in routes), default=1)
    for n, route in enumerate(routes):
        parts.append(
            _curves(route, places, places["path"][n], 1 + _GROWTH * route.cost / max(1, most), step, shown.unit)
        )
    for name, labels in shown.operands.items():
        parts += _labels(labels, places[name], _COLUMNS["in"] - 6, "end")
    parts += _labels(shown.out, places["out"], _COLUMNS["out"] + 6, "start")
    return "".join([*parts, "</svg>"])


def _spread(count: int, top: float, bottom: float) -> list[float]:
    return [top + (n + 0.5) * (bottom - top) / count for n in range(count)]


def _labels(irreps: Iterable, places: list[float], x: float, anchor: str) -> list[str]:
    room = min((b - a for a, b in pairwise(places)), default=20.0)
    size = min(11.0, max(8.5, room - 1))
    return [
        f'<text x="{x}" y="{y + 0.36 * size:.1f}" text-anchor="{anchor}" style="font-size:{size:.1f}px">'
        f"{escape(str(segment))}</text>"
        for segment, y in zip(irreps, places, strict=True)
    ]


def _curves(route: Route, places: Mapping[str, list[float]], y: float, width: float, step: float, unit: str) -> str:
    a, m, b = _COLUMNS["in"], _COLUMNS["path"], _COLUMNS["out"]
    curves = [(a, places[name][segment], m, y) for name, segment in route.begins]
    curves.append((m, y, b, places["out"][route.reaches]))
    bends = "".join(
        f"M{x0},{from_y:.1f}C{(x0 + x1) / 2},{from_y:.1f} {(x0 + x1) / 2},{to_y:.1f} {x1},{to_y:.1f}"
        for x0, from_y, x1, to_y in curves
    )
    name = escape(route.name)
    tall, size = min(9.0, 0.48 * step), min(10.0, step - 1.2)
    return (
        f'<g class="path" data-p="{route.index}" role="button" tabindex="0" aria-label="{name}" '
        f'style="{hues(route.index)}"><title>{name}, {route.cost:,} {unit}</title>'
        f'<path class="grip" d="{bends}"/><path d="{bends}" stroke-width="{width:.1f}"/>'
        f'<ellipse class="dot" cx="{m}" cy="{y:.1f}" rx="9" ry="{tall:.1f}"/>'
        f'<text x="{m}" y="{y + 0.36 * size:.1f}" style="font-size:{size:.1f}px">{route.index}</text></g>'
    )


# --- the roofline -----------------------------------------------------------------------------------------------------

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 422, 14, 126


Measured = Explanation | PolynomialExplanation
_At = Callable[[float, float], tuple[float, float]]  # where a point of intensity and rate stands


def roofline(found: Measured, paths: Sequence[PathExplanation]) -> str:
    """Operations per second against operations per byte: the machine's ceiling, the prediction, what was measured.

    Each path has a point too, by its own operations and bytes, which the page shows while the path is chosen.
    """
    ceilings = found.ceilings
    if ceilings is None or not found.intensity:
        return ""
    left, right = -1.0, max(2.0, log10(4 * ceilings.ridge), log10(4 * found.intensity))
    high = log10(ceilings.flops) + 0.35
    times = [seconds for seconds in (found.predicted_seconds, found.forward_seconds) if seconds]
    low = min([high - 3, *(log10(found.flops / seconds) - 0.6 for seconds in times)])

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = _LEFT + (_RIGHT - _LEFT) * (log10(intensity) - left) / (right - left)
        y = _BOTTOM - (_BOTTOM - _TOP) * (log10(rate) - low) / (high - low)
        return min(max(x, _LEFT), _RIGHT), min(max(y, _TOP), _BOTTOM)

    labels = _Labels()
    parts = _grid(at, left, right, low, high)
    totals = _totals(at, labels, found)  # first, as what they name is one point
    parts += _roof(at, labels, ceilings, left, right)
    parts += [*(_point(at, found, path) for path in paths if path.flops), *totals]
    return f'<svg id="roofline" viewBox="0 0 440 158" width="440" height="158">{"".join(parts)}</svg>'


class _Labels:
    """Places labels in the frame of the roofline, each where it covers none that stands there already."""

    _LETTER, _LINE = 5.9, 12.0  # the most that a letter is wide, and a line is tall

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float, float]] = []

    def put(self, content: str, x: float, y: float, above: bool = False) -> str:
        """A label near a point of the roof: below it on the right, or above on the left, else where there is room."""
        wide = self._LETTER * len(content)
        beside = [(x + 9, "start", x + 9), (x - 9, "end", x - 9 - wide)]
        sides, downs = (beside[::-1], (-6, 3.5, -18, 13, 25)) if above else (beside, (13, 3.5, 25, -6, 37, -18, -30))
        places = [(at, css, start, y + down) for down in downs for at, css, start in sides]
        free = (place for place in places if self._is_free(place[2], place[3], wide))
        at, css, start, base = next(free, places[0])
        self._taken.append((start, base - self._LINE, start + wide, base))
        return _text(at, base, css, content)

    def _is_free(self, start: float, base: float, wide: float) -> bool:
        inside = start >= _LEFT + 2 and start + wide <= _RIGHT + 16 and _TOP <= base <= _BOTTOM - 2
        return inside and not any(
            start < right and left < start + wide and base - self._LINE < bottom and top < base
            for left, top, right, bottom in self._taken
        )


def _grid(at: _At, left: float, right: float, low: float, high: float) -> list[str]:
    """A line and a number for each power of ten, and the names of the axes."""
    parts = []
    for n in range(ceil(left), floor(right) + 1):
        x, _ = at(10.0**n, 10**low)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}"/>')
        parts.append(_text(x, _BOTTOM + 13, "middle tick", f"{10.0**n:g}"))
    for n in range(ceil(low), floor(high) + 1):
        _, y = at(10**left, 10.0**n)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 5, y + 3.5, "end tick", quantity(10.0**n, "")))
    middle = (_TOP + _BOTTOM) / 2
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 28, "middle", "FLOP per byte"))
    parts.append(f'<text x="9" y="{middle}" transform="rotate(-90 9 {middle})" class="middle">FLOP/s</text>')
    return parts


def _roof(at: _At, labels: _Labels, ceilings: Ceilings, left: float, right: float) -> list[str]:
    start, ridge = at(10**left, 10**left * ceilings.bandwidth), at(ceilings.ridge, ceilings.flops)
    points = (start, ridge, at(10**right, ceilings.flops))
    return [
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>',
        labels.put(quantity(ceilings.flops, "FLOP/s"), _RIGHT + 9, ridge[1], above=True),
        labels.put(quantity(ceilings.bandwidth, "B/s"), *_between(start, ridge), above=True),
    ]


def _between(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2


def _point(at: _At, found: Measured, path: PathExplanation) -> str:
    intensity = path.flops / path.bytes
    least = found.ceilings.seconds(found.rows * path.flops, found.rows * path.bytes) if found.ceilings else None
    rate = found.rows * path.flops / (path.seconds or least or 1.0)
    x, y = at(intensity, rate)
    name = f"path {path.index}, {'measured alone' if path.seconds else 'predicted'}"
    return (
        f'<circle class="point" data-p="{path.index}" style="{hues(path.index)}" cx="{x:.1f}" '
        f'cy="{y:.1f}" r="4"><title>{name}</title></circle>'
    )


def _totals(at: _At, labels: _Labels, found: Measured) -> list[str]:
    parts = []
    for name, seconds in (("predicted", found.predicted_seconds), ("measured", found.forward_seconds)):
        if seconds:
            x, y = at(found.intensity, found.flops / seconds)
            parts.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
            parts.append(labels.put(f"{name} {duration(seconds)}", x, y))
    return parts


def _text(x: float, y: float, css: str, content: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{content}</text>'


# --- the bars ---------------------------------------------------------------------------------------------------------

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
        cells = "".join(_bar(value(path) or 0, most[name], text) for name, (value, text) in shown.items())
        rows.append(
            f'<tr data-p="{path.index}" style="{hues(path.index)}"><td><em>{path.index}</em></td>'
            f"<td>{escape(path.couples)}</td>{cells}</tr>"
        )
    return f'<table id="bars"><tr>{head}</tr>{"".join(rows)}</table>'


def _bar(value: float, most: float, text: Callable[[float], str]) -> str:
    return f'<td><s style="width:{100 * value / most:.0f}%"></s><span>{text(value)}</span></td>'
