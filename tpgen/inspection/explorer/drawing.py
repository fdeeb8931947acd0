"""The two drawings of the page, as SVG: the path diagram and the roofline."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10

from tpgen.inspection.explain import Explanation
from tpgen.inspection.pictures import path_color
from tpgen.planner.plan import Path, Plan

_WIDTH = 380
_STEP = 19  # between two paths
_COLUMNS = {"in": 84, "path": 200, "out": 300}
_GROWTH = 6.0  # stroke of the path with the most operations, above the thinnest


def css_color(index: int, count: int) -> str:
    """The colour of a path, as CSS has it."""
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in path_color(index, count))


def diagram(plan: Plan) -> str:
    """Inputs on the left, the output on the right, a dot and three curves for each path, thick for many operations."""
    height = max(_STEP * (len(plan.paths) + 1), 22 * (len(plan.irreps_in1) + len(plan.irreps_in2) + 3), 120)
    half = height * len(plan.irreps_in1) / max(1, len(plan.irreps_in1) + len(plan.irreps_in2))
    places = {
        "in1": _spread(len(plan.irreps_in1), 14, half),
        "in2": _spread(len(plan.irreps_in2), half + 14, height),
        "out": _spread(len(plan.irreps_out), 14, height),
        "path": _spread(len(plan.paths), 14, height),
    }
    most = max((path.flops for path in plan.paths), default=1)
    parts = [f'<svg id="diagram" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">']
    for title, x, y in (("in1", 8, 11), ("in2", 8, half + 11), ("out", _WIDTH - 26, 11)):
        parts.append(f'<text class="side" x="{x}" y="{y:.0f}">{title}</text>')
    for n, path in enumerate(plan.paths):
        parts.append(_curves(path, len(plan.paths), places, places["path"][n], 1 + _GROWTH * path.flops / most))
    parts += _labels(plan.irreps_in1, places["in1"], _COLUMNS["in"] - 6, "end")
    parts += _labels(plan.irreps_in2, places["in2"], _COLUMNS["in"] - 6, "end")
    parts += _labels(plan.irreps_out, places["out"], _COLUMNS["out"] + 6, "start")
    return "".join([*parts, "</svg>"])


def _spread(count: int, top: float, bottom: float) -> list[float]:
    return [top + (n + 0.5) * (bottom - top) / count for n in range(count)]


def _labels(irreps: Iterable, places: list[float], x: float, anchor: str) -> list[str]:
    return [
        f'<text class="leg" x="{x}" y="{y + 4:.1f}" text-anchor="{anchor}">{escape(str(segment))}</text>'
        for segment, y in zip(irreps, places, strict=True)
    ]


def _curves(path: Path, count: int, places: dict[str, list[float]], y: float, width: float) -> str:
    a, m, b = _COLUMNS["in"], _COLUMNS["path"], _COLUMNS["out"]
    y1, y2, y3 = places["in1"][path.in1.index], places["in2"][path.in2.index], places["out"][path.out.index]
    bends = "".join(
        f"M{x0},{from_y:.1f}C{(x0 + x1) / 2},{from_y:.1f} {(x0 + x1) / 2},{to_y:.1f} {x1},{to_y:.1f}"
        for x0, from_y, x1, to_y in ((a, y1, m, y), (a, y2, m, y), (m, y, b, y3))
    )
    name = f"path {path.index}: {path.in1} x {path.in2} → {path.out} ({path.mode.name})"
    return (
        f'<g class="path" data-p="{path.index}" role="button" aria-label="{escape(name)}" '
        f'style="--hue:{css_color(path.index, count)}"><title>{escape(name)}, {path.flops:,} FLOP per row</title>'
        f'<path class="grip" d="{bends}"/><path d="{bends}" stroke-width="{width:.1f}"/>'
        f'<circle cx="{m}" cy="{y:.1f}" r="8"/><text x="{m}" y="{y + 3:.1f}">{path.index}</text></g>'
    )


def roofline(found: Explanation) -> str:
    """Operations per second against operations per byte: the machine's ceiling, the prediction, what was measured."""
    if found.ceilings is None or not found.intensity:
        return ""
    left, right = -1.0, max(2.0, log10(4 * found.ceilings.ridge), log10(4 * found.intensity))
    low, high = log10(found.ceilings.flops) - 4, log10(found.ceilings.flops) + 0.4

    def at(intensity: float, rate: float) -> tuple[float, float]:
        x = 44 + 310 * (log10(intensity) - left) / (right - left)
        return x, min(150.0, 150 - 140 * (log10(rate) - low) / (high - low))

    roof = [(10**left, 10**left * found.ceilings.bandwidth), (found.ceilings.ridge, found.ceilings.flops)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in [*roof, (10**right, found.ceilings.flops)]))
    marks = {"predicted": found.predicted_seconds, "measured": found.forward_seconds}
    dots = []
    for name, seconds in marks.items():
        if seconds:
            x, y = at(found.intensity, found.flops / seconds)
            dots.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{name}</title></circle>')
            dots.append(f'<text x="{x + 9:.1f}" y="{y + 12:.1f}">{name}</text>')
    return (
        f'<svg id="roofline" viewBox="0 0 370 180" width="370" height="180"><polyline points="{points}"/>'
        f'<line x1="44" y1="150" x2="354" y2="150"/><line x1="44" y1="8" x2="44" y2="150"/>'
        f'<text x="200" y="172" text-anchor="middle">FLOP per byte, 0.1 to {10**right:,.0f}</text>'
        f'<text x="12" y="90" transform="rotate(-90 12 90)" text-anchor="middle">FLOP/s</text>{"".join(dots)}</svg>'
    )
