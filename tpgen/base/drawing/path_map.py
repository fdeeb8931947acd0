"""SVG map of a product's paths.

>>> routes = (Route(0, (("in1", 0), ("in2", 0)), (("out", 0),), "path 0", 10),)
>>> shown = PathMap({"in1": ("4x1o",), "in2": ("1o",)}, {"out": ("4x0e",)}, routes)
>>> draw_path_map(shown).count("<text")
7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from tpgen.base.drawing.colors import line_color, path_color, text_color, to_css

_WIDTH = 352
_HEIGHT = 676  # what the screen of a laptop has room for: more paths stand closer, down to the closest
_CLOSEST, _WIDEST = 9.5, 30.0  # between two paths
_COLUMNS = {"in": 66, "path": 186, "out": 284}
_GROWTH = 6.0  # stroke of the path with the most operations, above the thinnest
_MOST = 40  # paths of a map in a notebook

End = tuple[str, int]  # name of an operand, number of its segment


@dataclass(frozen=True)
class Route:
    """Line of one path on a `PathMap`: start and end segments, cost."""

    index: int
    begins: tuple[End, ...]
    reaches: tuple[End, ...]
    name: str
    cost: int


@dataclass(frozen=True)
class PathMap:
    """Diagram of segments of operands and results, with the paths between."""

    operands: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    routes: tuple[Route, ...]
    unit: str = "FLOP per row"  # of what makes a route thick


def draw_first_paths(path_map: PathMap) -> str:
    """SVG map of the first 40 paths; "" without paths."""
    if not path_map.routes:
        return ""
    cut = len(path_map.routes) > _MOST
    said = f"<div>the first {_MOST} of {len(path_map.routes)} paths</div>" if cut else ""
    return draw_path_map(replace(path_map, routes=path_map.routes[:_MOST])) + said


def draw_path_map(path_map: PathMap, interactive: bool = False) -> str:
    """Draw a map as SVG; ``interactive`` adds hooks for scripts."""
    routes, segments = path_map.routes, sum(map(len, path_map.operands.values()))
    step = min(_WIDEST, max(_CLOSEST, _HEIGHT / (len(routes) + 1)))
    height = max(step * (len(routes) + 1), 22 * (segments + 3), 120)
    named = 'id="diagram"' if interactive else 'style="max-width:100%;max-height:600px"'
    sides = {**path_map.operands, **path_map.results}
    blocks = {
        **_divide_height_by_segment_counts(path_map.operands, height),
        **_divide_height_by_segment_counts(path_map.results, height),
    }
    places = {name: _evenly_spaced(len(sides[name]), top + 14, bottom) for name, (top, bottom) in blocks.items()}
    middles = _evenly_spaced(len(routes), 14, height)
    most = max((route.cost for route in routes), default=1)
    parts = [f'<svg {named} viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">']
    parts += [_draw_operand_title(name, 4, blocks[name][0], "start") for name in path_map.operands]
    parts += [_draw_operand_title(name, _WIDTH - 4, blocks[name][0], "end") for name in path_map.results]
    for route, y in zip(routes, middles, strict=True):
        curves, width = _svg_curves_of_path(route, places, y), 1 + _GROWTH * route.cost / max(1, most)
        parts.append(_svg_curve_with_label(route, curves, y, width, step, path_map.unit, interactive))
    for name, labels in path_map.operands.items():
        parts += _draw_segment_labels(labels, places[name], _COLUMNS["in"] - 6, "end")
    for name, labels in path_map.results.items():
        parts += _draw_segment_labels(labels, places[name], _COLUMNS["out"] + 6, "start")
    return "".join([*parts, "</svg>"])


def _divide_height_by_segment_counts(
    segments_of_operands: Mapping[str, Sequence[str]], height: float
) -> dict[str, tuple[float, float]]:
    # each operand has as much of the height as it has segments
    count, top, found = max(1, sum(map(len, segments_of_operands.values()))), 0.0, {}
    for name, labels in segments_of_operands.items():
        found[name] = (top, top + height * len(labels) / count)
        top = found[name][1]
    return found


def _evenly_spaced(count: int, top: float, bottom: float) -> list[float]:
    return [top + (n + 0.5) * (bottom - top) / count for n in range(count)]


def _draw_operand_title(name: str, x: float, top: float, anchor: str) -> str:
    attributes = _text_attributes(11, anchor)
    return f'<text class="side" x="{x}" y="{top + 11:.0f}" {attributes} font-weight="600">{escape(name)}</text>'


def _text_attributes(size: float, anchor: str, color: str = "currentColor") -> str:
    return f'font-size="{size:.1f}" text-anchor="{anchor}" fill="{color}"'


def _draw_segment_labels(segments: Iterable[str], heights: list[float], x: float, anchor: str) -> list[str]:
    room = min((b - a for a, b in pairwise(heights)), default=20.0)
    size = min(11.0, max(8.5, room - 1))
    return [
        f'<text x="{x}" y="{y + 0.36 * size:.1f}" {_text_attributes(size, anchor)} style="font-size:{size:.1f}px">'
        f"{escape(segment)}</text>"
        for segment, y in zip(segments, heights, strict=True)
    ]


def _svg_curves_of_path(route: Route, segment_heights: Mapping[str, list[float]], path_height: float) -> str:
    a, m, b = _COLUMNS["in"], _COLUMNS["path"], _COLUMNS["out"]
    curves = [(a, segment_heights[name][segment], m, path_height) for name, segment in route.begins]
    curves += [(m, path_height, b, segment_heights[name][segment]) for name, segment in route.reaches]
    return "".join(
        f"M{x0},{from_y:.1f}C{(x0 + x1) / 2},{from_y:.1f} {(x0 + x1) / 2},{to_y:.1f} {x1},{to_y:.1f}"
        for x0, from_y, x1, to_y in curves
    )


def _svg_curve_with_label(
    route: Route, curves: str, y: float, stroke_width: float, row_height: float, cost_unit: str, interactive: bool
) -> str:
    name, color = escape(route.name), path_color(route.index)
    tall, size, x = min(9.0, 0.48 * row_height), min(10.0, row_height - 1.2), _COLUMNS["path"]
    line = to_css(line_color(route.index))
    opening, grip = "<g>", ""
    if interactive:
        opening = (
            f'<g class="path" data-p="{route.index}" role="button" tabindex="0" aria-label="{name}" '
            f'style="{css_properties(route.index)}">'
        )
        grip = f'<path class="grip" d="{curves}"/>'
    return (
        f"{opening}<title>{name}, {route.cost:,} {cost_unit}</title>{grip}"
        f'<path d="{curves}" stroke-width="{stroke_width:.1f}" fill="none" stroke="{line}"/>'
        f'<ellipse class="dot" cx="{x}" cy="{y:.1f}" rx="9" ry="{tall:.1f}" fill="{to_css(color)}" stroke="{line}"/>'
        f'<text x="{x}" y="{y + 0.36 * size:.1f}" {_text_attributes(size, "middle", text_color(color))} '
        f'style="font-size:{size:.1f}px">{route.index}</text></g>'
    )


def css_properties(index: int) -> str:
    """CSS custom properties with a path's colours."""
    color = path_color(index)
    return f"--hue:{to_css(color)};--on:{text_color(color)}"
