"""The picture of a graph: its nodes in ranks, in the colours of the paths that they serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tpgen.drawing.colors import Color, css, line_color, path_color, text_color
from tpgen.drawing.ranks import layered

_ACROSS, _DOWN, _LETTER = 26.0, 34.0, 6.0  # between two nodes, between two ranks; the most that a letter is wide
_MOST = 150  # nodes of a picture
_GREY: Color = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Dot:
    """A node: the names of those that it reads, what it is called, and the path that it serves where that is one."""

    reads: Sequence[str]
    title: str
    path: int | None = None
    is_end: bool = False  # whether its title stands beside it, as of what comes in and what goes out


def graph_picture(dots: Mapping[str, Dot]) -> str:
    """A graph as SVG, what is read above what reads it; of many nodes the first, as is said below.

    >>> graph_picture({"x": Dot([], "x", is_end=True), "y": Dot(["x"], "mul", 3)}).count("<circle")
    2
    """
    shown = dict(list(dots.items())[:_MOST])
    if not shown:
        return ""
    reads = {name: [source for source in dot.reads if source in shown] for name, dot in shown.items()}
    place, lines = layered(reads, [name for name, dot in shown.items() if dot.is_end and not reads[name]])
    side = 12 + _LETTER * max((len(dot.title) for dot in shown.values() if dot.is_end), default=0) / 2
    least = min(x for x, _ in place.values())

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return side + _ACROSS * (point[0] - least), 26 - _DOWN * point[1]

    width = max(at(p)[0] for points in (place.values(), *lines.values()) for p in points) + side
    height = max(at(p)[1] for p in place.values()) + 26
    curves = [" ".join("{:.1f},{:.1f}".format(*at(p)) for p in points) for points in lines.values()]
    stroke = 'fill="none" stroke="currentColor" stroke-opacity="0.3"'
    drawn = [f'<polyline points="{where}" {stroke}/>' for where in curves]
    drawn += [_dot(dot, *at(place[name])) for name, dot in shown.items()]
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    said = f"<div>the first {_MOST} of {len(dots)} nodes</div>" if len(dots) > _MOST else ""
    return f'<svg {size} style="max-width:100%;max-height:600px">{"".join(drawn)}</svg>{said}'


def _dot(dot: Dot, x: float, y: float) -> str:
    color = _GREY if dot.path is None else path_color(dot.path)
    edge = _GREY if dot.path is None else line_color(dot.path)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{css(color)}" stroke="{css(edge)}"/>'
    number = "" if dot.path is None else _text(x, y + 3, str(dot.path), 8.5, text_color(color))
    beside = _text(x, y - 11 if not dot.reads else y + 19, dot.title, 11, "currentColor") if dot.is_end else ""
    served = "" if dot.path is None else f", path {dot.path}"
    return f"<g><title>{escape(dot.title)}{served}</title>{circle}{number}{beside}</g>"


def _text(x: float, y: float, content: str, size: float, color: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="middle"'
    return f'<text {where} fill="{color}">{escape(content)}</text>'
