"""Pictures of a product: its costs under the machine's ceilings, couplings, the fx graph coloured by path.

matplotlib is an optional part; a `TpgenError` says how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import fx

from tpgen.errors import TpgenError
from tpgen.inspection.figures import image, new_figure, save_figure
from tpgen.inspection.stages.dump import Request
from tpgen.planner.coupling import coupling
from tpgen.planner.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tpgen.inspection.costs.explain import Explanation, PathExplanation

SHARED_COLOR = "0.75"
_DPI = 110  # pictures of many dots are large


# Nine colours that are told apart with any kind of colour vision, by Paul Tol ("muted"); a tenth path has the first
# again, lighter, and then darker: where there are so many, numbers tell them apart.
_PALETTE = ("332288", "88ccee", "117733", "ddcc77", "cc6677", "44aa99", "882255", "999933", "aa4499")
_SHADES = ((1.0, 0.0), (0.6, 0.4), (0.65, 0.0))  # factor of the colour, and what of white is added


def path_color(index: int) -> tuple[float, float, float]:
    """The colour of a path, the same in every picture.

    >>> path_color(0) == path_color(9)
    False
    """
    turn, place = divmod(index, len(_PALETTE))
    kept, white = _SHADES[turn % len(_SHADES)]
    red, green, blue = (kept * byte / 255 + white for byte in bytes.fromhex(_PALETTE[place]))
    return red, green, blue


def text_color(color: tuple[float, float, float]) -> str:
    """Black or white, whichever reads better on a colour: 4.5 to 1 at least, as WCAG asks.

    >>> text_color((1.0, 1.0, 0.0)), text_color((0.2, 0.0, 0.5))
    ('#000', '#fff')
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if luminance > 0.179 else "#fff"


def draw_explanation(found: Explanation, path: str | Path) -> None:
    """Bars of each path's operations, bytes and (if measured) time; the product under the machine's roofline."""
    save_figure(_explained(found), path, _DPI)


def picture_of(found: Explanation) -> str:
    """The same picture as an element of HTML; empty without matplotlib, as a notebook has the table beside it."""
    try:
        return image(_explained(found))
    except TpgenError:
        return ""


def _explained(found: Explanation) -> Figure:
    kinds: dict[str, list[float]] = {
        "FLOP per row": [p.flops for p in found.paths],
        "bytes per row": [p.bytes for p in found.paths],
    }
    if any(p.seconds for p in found.paths):
        kinds["ms alone"] = [1e3 * (p.seconds or 0.0) for p in found.paths]
    figure = new_figure(3.2 * len(kinds) + 4.2, 0.2 * len(found.paths) + 2.2)
    panels = figure.subplots(1, len(kinds) + 1, width_ratios=[1] * len(kinds) + [1.3], squeeze=False)[0]
    for n, (panel, (label, values)) in enumerate(zip(panels, kinds.items(), strict=False)):
        _bars(panel, found.paths, values, label, named=n == 0)
    _roofline(panels[-1], found)
    figure.suptitle(f"{found.product}, {found.strategy}, {found.rows:,} rows of {found.dtype}", fontsize=9)
    return figure


def _bars(panel: Any, paths: Sequence[PathExplanation], values: Sequence[float], label: str, named: bool) -> None:
    places = range(len(paths))
    panel.barh(places, values, color=[path_color(p.index) for p in paths])
    names = [f"{p.index}: {p.in1} x {p.in2} → {p.out}" for p in paths] if named else [""] * len(paths)
    panel.set_yticks(places, names, fontsize=7)
    panel.set_ylim(len(paths) - 0.4, -0.6)
    panel.set_xlabel(label)
    panel.grid(axis="x", alpha=0.25)


def _roofline(panel: Any, found: Explanation) -> None:
    panel.set(xlabel="FLOP per byte", ylabel="GFLOP/s", xscale="log", yscale="log", title="")
    if found.ceilings:
        x = np.geomspace(min(0.1, found.intensity or 0.1), max(100.0, 3 * found.ceilings.ridge), 64)
        panel.plot(x, np.minimum(x * found.ceilings.bandwidth, found.ceilings.flops) / 1e9, color="0.3", lw=1.5)
    if not found.intensity:
        return
    times = {"predicted": (found.predicted_seconds, "none"), "measured": (found.forward_seconds, "C3")}
    for name, (seconds, color) in times.items():
        if seconds:
            rate = found.flops / seconds / 1e9
            panel.plot([found.intensity], [rate], "o", ms=8, mec="C3", mfc=color, label=name)
    panel.legend(frameon=False, fontsize=8)
    panel.grid(alpha=0.25)


_CELL = 0.085  # inches of an entry, the same for all couplings
_WIDE = 96  # entries side by side in a row of couplings
_GAP, _TITLE = 3, 3.2  # entries between two couplings, and above one


def draw_couplings(plan: Plan, path: str | Path) -> None:
    """The couplings of a product: which entries are not zero, a block for each (l1, l2, l3), red and blue by sign.

    In a block i runs down and j across; the slices k stand side by side.  Entries are of one size: areas compare.
    """
    triples = sorted(dict.fromkeys(p.ls for p in plan.paths), key=lambda ls: (ls[0], ls[2], ls[1]))
    blocks = {ls: _slices(coupling(*ls)) for ls in triples}
    places, width, height = _shelves({ls: block.shape for ls, block in blocks.items()})
    across, down = width + 2 * _GAP, height + _GAP + 6
    figure = new_figure(across * _CELL, down * _CELL)
    figure.set_layout_engine("none")
    figure.text(
        0.5,
        1 - 2.6 / down,
        "(l1, l2, l3): non-zero entries of all; i down, j across, k in blocks",
        ha="center",
        fontsize=8,
    )
    for ls, (x, y) in places.items():
        block = blocks[ls]
        tall, wide = block.shape
        panel = figure.add_axes(
            ((x + _GAP) / across, 1 - (y + 6 + tall) / down, wide / across, tall / down), xticks=[], yticks=[]
        )
        largest = float(np.nanmax(np.abs(block)))
        panel.imshow(block, cmap="RdBu", vmin=-largest, vmax=largest, interpolation="nearest", aspect="auto")
        panel.set_facecolor("0.8")  # between the slices
        count, size = np.count_nonzero(np.nan_to_num(block)), np.count_nonzero(~np.isnan(block))
        panel.set_title(f"{ls}  {count}/{size}", fontsize=7, pad=2, loc="left")
    save_figure(figure, path, _DPI)


def _slices(values: np.ndarray) -> np.ndarray:
    """The slices of the last axis side by side, a column of nothing between two."""
    padded = [np.pad(values[:, :, k], ((0, 0), (0, 1)), constant_values=np.nan) for k in range(values.shape[2])]
    return np.concatenate(padded, axis=1)[:, :-1]


def _shelves(
    shapes: dict[tuple[int, int, int], tuple[int, ...]],
) -> tuple[dict[tuple[int, int, int], tuple[float, float]], float, float]:
    """Places of blocks in rows, each row as tall as its tallest; with the width and height of all.

    >>> _shelves({(0, 0, 0): (1, 1), (1, 1, 0): (3, 3)})[0]
    {(0, 0, 0): (0.0, 0.0), (1, 1, 0): (11.0, 0.0)}
    """
    places, x, y, tallest, width = {}, 0.0, 0.0, 0.0, 40.0
    for ls, (tall, wide) in shapes.items():
        room = max(wide, 8)  # for its title
        if x and x + room > _WIDE:
            x, y, tallest = 0.0, y + tallest + _TITLE + _GAP, 0.0
        places[ls] = (x, y)
        x, tallest = x + room + _GAP, max(tallest, tall)
        width = max(width, x - _GAP)
    return places, width, y + tallest


def draw_graph(request: Request, path: str | Path) -> None:
    """The fx graph: a dot for each node, coloured by its path (grey: several or all), inputs at the top."""
    names = {p.index: f"{p.index}: {p.in1} x {p.in2} → {p.out}" for p in request.plan.paths}
    colors = {index: path_color(index) for index in names}

    def key(node: fx.Node) -> int | None:
        served = node.meta["tpgen"].instructions
        return served[0] if len(served) == 1 else None

    _draw_nodes(request.emission().graph, key, names, colors, "several paths, or all", path)


def draw_network(graph_module: fx.GraphModule, path: str | Path) -> None:
    """The graph of a traced or flat network: a dot for each node, coloured by its module.

    Black nodes serve several products (see `inline_products`), grey ones are the network's own code.  Modules count as
    far as the network itself names them: ``convolutions.0`` and not what is inside.
    """
    homes = dict.fromkeys(_home(node) for node in graph_module.graph.nodes)
    modules = [home for home in homes if home not in (None, _SHARED)]
    names: dict[Any, str] = {home: str(home) for home in modules}
    colors: dict[Any, Any] = {home: path_color(n) for n, home in enumerate(modules)}
    if _SHARED in homes:
        names[_SHARED], colors[_SHARED] = _SHARED, "black"
    _draw_nodes(graph_module.graph, _home, names, colors, "the network's own code", path)


_SHARED = "several products"


def _home(node: fx.Node) -> str | None:
    if len(node.meta.get("shared_by", ())) > 1:
        return _SHARED
    parts = str(node.meta.get("module_path", "")).split(".")
    return ".".join(parts[: 2 if len(parts) > 1 and parts[1].isdigit() else 1]) or None


def _draw_nodes(
    graph: fx.Graph,
    key: Callable[[fx.Node], Any],
    names: Mapping[Any, str],
    colors: Mapping[Any, Any],
    others: str,
    path: str | Path,
) -> None:
    """Dots in ranks by depth, each in the colour of its key; a legend says what the keys are."""
    nodes = [node for node in graph.nodes if node.op != "get_attr"]
    place = _places(nodes)
    wide = 1 + max(2 * abs(x) for x, _ in place.values())
    tall = 1 + max(-y for _, y in place.values())
    lines = min(len(names), 40)
    figure = new_figure(min(14.0, 4.5 + 0.28 * wide), min(14.0, max(1.0 + 0.3 * tall, 0.16 * lines + 0.6)))
    panel = figure.subplots()
    for node in nodes:
        for source in (n for n in node.all_input_nodes if n in place):
            panel.plot(*zip(place[source], place[node], strict=True), color="0.85", lw=0.5, zorder=1)
    for node, (x, y) in place.items():
        panel.plot([x], [y], "o", ms=5, color=colors.get(key(node), SHARED_COLOR), zorder=2)
        if node.op in ("placeholder", "output"):
            panel.annotate(node.name, (x, y), xytext=(6, 0), textcoords="offset points", fontsize=7, va="center")
    for one, name in names.items():
        panel.plot([], [], "o", ms=5, color=colors[one], label=name)
    panel.plot([], [], "o", ms=5, color=SHARED_COLOR, label=others)
    panel.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1 + len(names) // 40)
    panel.axis("off")
    save_figure(figure, path, _DPI)


def _places(nodes: Sequence[fx.Node]) -> dict[fx.Node, tuple[float, float]]:
    """Each node a rank below the lowest that it reads, ranks centred."""
    depth: dict[fx.Node, int] = {}
    ranks: dict[int, list[fx.Node]] = {}
    for node in nodes:
        depth[node] = 1 + max((depth.get(n, -1) for n in node.all_input_nodes), default=-1)
        ranks.setdefault(depth[node], []).append(node)
    return {n: (i - (len(rank) - 1) / 2, -d) for d, rank in ranks.items() for i, n in enumerate(rank)}
