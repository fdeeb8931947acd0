"""SVG pictures of graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TypeVar

from tpgen.base.drawing.colors import Color, line_color, path_color, text_color, to_css

_ACROSS, _DOWN, _LETTER = 26.0, 34.0, 6.0  # between two nodes, between two ranks; the most that a letter is wide
_MOST = 150  # nodes of a picture
_GREY: Color = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class PictureNode:
    """Node of a graph's picture: names of sources, title, path index."""

    reads: Sequence[str]
    title: str
    path: int | None = None
    is_end: bool = False  # whether its title stands beside it, as of what comes in and what goes out


def draw_node_graph(nodes: Mapping[str, PictureNode]) -> str:
    """Draw a graph as SVG, at most 150 nodes.

    >>> draw_node_graph({"x": PictureNode([], "x", is_end=True), "y": PictureNode(["x"], "mul", 3)}).count("<circle")
    2
    """
    shown = dict(list(nodes.items())[:_MOST])
    if not shown:
        return ""
    reads = {name: [source for source in dot.reads if source in shown] for name, dot in shown.items()}
    place, lines = lay_out_graph_in_ranks(
        reads, [name for name, dot in shown.items() if dot.is_end and not reads[name]]
    )
    side = 12 + _LETTER * max((len(dot.title) for dot in shown.values() if dot.is_end), default=0) / 2
    least = min(x for x, _ in place.values())

    def to_pixels(point: tuple[float, float]) -> tuple[float, float]:
        return side + _ACROSS * (point[0] - least), 26 - _DOWN * point[1]

    width = max(to_pixels(p)[0] for points in (place.values(), *lines.values()) for p in points) + side
    height = max(to_pixels(p)[1] for p in place.values()) + 26
    curves = [" ".join("{:.1f},{:.1f}".format(*to_pixels(p)) for p in points) for points in lines.values()]
    stroke = 'fill="none" stroke="currentColor" stroke-opacity="0.3"'
    drawn = [f'<polyline points="{where}" {stroke}/>' for where in curves]
    drawn += [_svg_circle_of_node(dot, *to_pixels(place[name])) for name, dot in shown.items()]
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    said = f"<div>the first {_MOST} of {len(nodes)} nodes</div>" if len(nodes) > _MOST else ""
    return f'<svg {size} style="max-width:100%;max-height:600px">{"".join(drawn)}</svg>{said}'


def _svg_circle_of_node(node: PictureNode, x: float, y: float) -> str:
    color = _GREY if node.path is None else path_color(node.path)
    edge = _GREY if node.path is None else line_color(node.path)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{to_css(color)}" stroke="{to_css(edge)}"/>'
    number = "" if node.path is None else _svg_text(x, y + 3, str(node.path), 8.5, text_color(color))
    beside = _svg_text(x, y - 11 if not node.reads else y + 19, node.title, 11, "currentColor") if node.is_end else ""
    served = "" if node.path is None else f", path {node.path}"
    return f"<g><title>{escape(node.title)}{served}</title>{circle}{number}{beside}</g>"


def _svg_text(x: float, y: float, content: str, size: float, color: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="middle"'
    return f'<text {where} fill="{color}">{escape(content)}</text>'


Node = TypeVar("Node", bound=Hashable)
_Point = tuple[float, float]
_ROUNDS = 8
_NARROW = 0.5  # room of a line that passes a rank, of that of a node


@dataclass(frozen=True)
class _EdgeAtRank:
    """Point at which an edge's line crosses a rank."""

    source: Hashable
    target: Hashable
    rank: int


def lay_out_graph_in_ranks(
    sources_by_node: Mapping[Node, Sequence[Node]], inputs: Iterable[Node] = ()
) -> tuple[dict[Node, _Point], dict[tuple[Node, Node], list[_Point]]]:
    """Lay out a graph in ranks: positions of nodes, and points of each edge's line.

    ``sources_by_node`` is in topological order.  Ranks descend from 0, at ``inputs``.

    >>> places, lines = lay_out_graph_in_ranks({"a": [], "b": [], "c": ["a", "b"], "d": ["c", "a"]}, inputs=["a", "b"])
    >>> [y for _, y in places.values()]
    [0, 0, -1, -2]
    >>> [y for _, y in lines["a", "d"]]
    [0, -1, -2]
    """
    depth = _find_rank_of_each_node(sources_by_node, set(inputs))
    above: dict[Hashable, list[Hashable]] = {node: [] for node in sources_by_node}
    chains: dict[tuple[Node, Node], list[Hashable]] = {
        (one, node): [one, *(_EdgeAtRank(one, node, n) for n in range(depth[one] + 1, depth[node])), node]
        for node in sources_by_node
        for one in dict.fromkeys(sources_by_node[node])
    }
    for chain in chains.values():
        for one, other in pairwise(chain):
            above.setdefault(other, []).append(one)
    ranks: list[list[Hashable]] = [[] for _ in range(1 + max(depth.values(), default=0))]
    for one in above:
        ranks[one.rank if isinstance(one, _EdgeAtRank) else depth[one]].append(one)  # type: ignore[index]
    x = _find_x_near_neighbours(ranks, above)
    y: dict[Hashable, float] = {one: -n for n, rank in enumerate(ranks) for one in rank}
    lines = {ends: [(x[one], y[one]) for one in chain] for ends, chain in chains.items()}
    return {node: (x[node], y[node]) for node in sources_by_node}, lines


def _find_rank_of_each_node(sources_by_node: Mapping[Node, Sequence[Node]], inputs: set[Node]) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for node, sources in sources_by_node.items():
        depth[node] = 1 + max((depth[source] for source in sources), default=-1)
    first: dict[Node, int] = {}  # reader's rank
    for node, sources in sources_by_node.items():
        for source in sources:
            first[source] = min(first.get(source, depth[node]), depth[node])
    return {n: d if sources_by_node[n] or n in inputs else max(0, first.get(n, 1) - 1) for n, d in depth.items()}


def _find_x_near_neighbours(
    ranks: list[list[Hashable]], sources_above: Mapping[Hashable, list[Hashable]]
) -> dict[Hashable, float]:
    # by turns near the nodes above and near the nodes below
    below: dict[Hashable, list[Hashable]] = {}
    for one, sources in sources_above.items():
        for source in sources:
            below.setdefault(source, []).append(one)
    x = {
        one: place
        for rank in ranks
        for one, place in zip(rank, _find_x_without_overlap(rank, [0.0] * len(rank)), strict=True)
    }
    for turn in range(2 * _ROUNDS):
        near = sources_above if turn % 2 == 0 else below
        for rank in ranks if turn % 2 == 0 else reversed(ranks):
            wanted = {one: _mean([x[other] for other in near.get(one, ())], x[one]) for one in rank}
            rank.sort(key=lambda one: wanted[one])
            x.update(zip(rank, _find_x_without_overlap(rank, [wanted[one] for one in rank]), strict=True))
    return x


def _find_x_without_overlap(rank: Sequence[Hashable], wanted_x: Sequence[float]) -> list[float]:
    # in this order, as near to the wanted positions as widths allow, and centred on them
    found: list[float] = []
    for n, (one, x) in enumerate(zip(rank, wanted_x, strict=True)):
        room = (_node_width(rank[n - 1]) + _node_width(one)) / 2
        found.append(max(x, found[-1] + room) if found else x)
    shift = _mean(wanted_x, 0.0) - _mean(found, 0.0)
    return [x + shift for x in found]


def _node_width(node: Hashable) -> float:
    return _NARROW if isinstance(node, _EdgeAtRank) else 1.0


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
