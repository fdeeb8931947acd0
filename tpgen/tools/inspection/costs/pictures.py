"""Pictures by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import fx

from tpgen.base.drawing.colors import path_color, text_color
from tpgen.base.drawing.graphs import PictureNode, lay_out_graph_in_ranks
from tpgen.base.text import quantity
from tpgen.emitter.graph_writer import list_picture_nodes
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.plan import Plan
from tpgen.tools.inspection.costs.explained import ExplanationValues, PathExplanation
from tpgen.tools.inspection.figures import label_log_axes_plainly, new_figure, save_figure
from tpgen.tools.inspection.stages.request import Request

SHARED_COLOR = "0.75"
_DPI = 110  # pictures of many dots are large


def draw_explanation(explanation: ExplanationValues, path: str | Path) -> None:
    """Draw each path's costs as bars, and the roofline, into a file."""
    kinds: dict[str, list[float]] = {
        "FLOP per row": [p.flops for p in explanation.paths],
        "B per row": [p.bytes for p in explanation.paths],
    }
    if any(p.seconds for p in explanation.paths):
        kinds["s alone, for the batch"] = [p.seconds or 0.0 for p in explanation.paths]
    figure = new_figure(2.7 * len(kinds) + 5.6, max(3.4, 0.2 * len(explanation.paths) + 1.4))
    panels = figure.subplots(1, len(kinds) + 1, width_ratios=[1] * len(kinds) + [1.5], squeeze=False)[0]
    for n, (panel, (label, values)) in enumerate(zip(panels, kinds.items(), strict=False)):
        _draw_path_bars(panel, explanation.paths, values, label, with_path_names=n == 0)
    _draw_roofline(panels[-1], explanation)
    rows = f"{explanation.rows:,} rows" if explanation.nodes is None else f"{explanation.rows:,} edges"
    figure.suptitle(
        f"{explanation.product}\nstrategy {explanation.strategy}, {rows}, {explanation.dtype}, {explanation.device}",
        fontsize=9,
    )
    save_figure(figure, path, _DPI)


def _draw_path_bars(
    panel: Any, paths: Sequence[PathExplanation], values: Sequence[float], label: str, with_path_names: bool
) -> None:
    from matplotlib.ticker import MaxNLocator

    scale, prefix = next((one for one in _PREFIXES if max(values, default=0.0) >= one[0]), (1.0, ""))
    places = range(len(paths))
    panel.barh(places, [v / scale for v in values], color=[path_color(p.index) for p in paths], height=0.75, zorder=2)
    names = [f"{p.index}: {p.couples}" for p in paths] if with_path_names else [""] * len(paths)
    panel.set_yticks(places, names, fontsize=7)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelsize=8)
    panel.set_ylim(len(paths) - 0.4, -0.6)
    panel.set_xlabel(prefix + label, fontsize=9)
    panel.xaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
    panel.grid(axis="x", color="0.85", lw=0.6)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_TOTALS = {"predicted": ("predicted at least", "none"), "measured": ("measured forward", "k")}  # label and fill


def _draw_roofline(panel: Any, explanation: ExplanationValues) -> None:
    panel.set(xscale="log", yscale="log")
    panel.set_xlabel("FLOP per byte", fontsize=9)
    panel.set_ylabel("FLOP per second", fontsize=9)
    panel.tick_params(labelsize=8)
    label_log_axes_plainly(panel)
    panel.grid(color="0.88", lw=0.6)
    if not explanation.ceilings or not explanation.intensity:
        return
    ceilings = explanation.ceilings
    least = min(
        [explanation.intensity, ceilings.ridge, *(intensity for _, intensity, _ in explanation.roofline_points)]
    )
    low, high = least / 4, 8 * max(ceilings.ridge, explanation.intensity)
    knee = (low, low * ceilings.bandwidth), (ceilings.ridge, ceilings.flops), (high, ceilings.flops)
    panel.plot(*zip(*knee, strict=True), color="0.3", lw=1.5, zorder=2)
    small = {"fontsize": 7, "textcoords": "offset points"}
    panel.annotate(quantity(ceilings.flops, "FLOP/s"), knee[2], xytext=(-2, 4), ha="right", **small)
    middle = (low * ceilings.ridge) ** 0.5
    slope = (middle, middle * ceilings.bandwidth)
    panel.annotate(quantity(ceilings.bandwidth, "B/s"), slope, xytext=(-6, 5), ha="right", **small)
    for path, intensity, rate in explanation.roofline_points:
        panel.plot([intensity], [rate], "o", ms=4, color=path_color(path.index), zorder=3)
    for name, rate in explanation.rates.items():
        label, color = _TOTALS[name]
        panel.plot([explanation.intensity], [rate], "o", ms=9, mec="k", mfc=color, mew=1.5, label=label, zorder=4)
    panel.plot([], [], "o", ms=4, color="0.5", label="each path alone")
    panel.legend(frameon=False, fontsize=8, loc="lower right")
    panel.set_xlim(low, high)
    panel.set_ylim(top=3 * ceilings.flops)


_CELL = 0.085  # inches of an entry, the same for all couplings
_WIDE = 96  # entries side by side in a row of couplings
_GAP, _TITLE = 3, 3.2  # entries between two couplings, and above one


def draw_couplings(plan: Plan, path: str | Path) -> None:
    """Draw nonzero coupling entries into a file: a block per (l1, l2, l3), coloured by sign."""
    triples = sorted(
        dict.fromkeys((p.in1.ir.l, p.in2.ir.l, p.out.ir.l) for p in plan.paths), key=lambda ls: (ls[0], ls[2], ls[1])
    )
    # in a block i runs down and j across; slices k lie side by side, and entries have one size
    blocks = {ls: _put_slices_of_last_axis_side_by_side(wigner_3j(*ls)) for ls in triples}
    places, width, height = _pack_blocks_into_rows({ls: block.shape for ls, block in blocks.items()})
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


def _put_slices_of_last_axis_side_by_side(values: np.ndarray) -> np.ndarray:
    # a column of nan between two slices
    padded = [np.pad(values[:, :, k], ((0, 0), (0, 1)), constant_values=np.nan) for k in range(values.shape[2])]
    return np.concatenate(padded, axis=1)[:, :-1]


def _pack_blocks_into_rows(
    shapes: dict[tuple[int, int, int], tuple[int, ...]],
) -> tuple[dict[tuple[int, int, int], tuple[float, float]], float, float]:
    # positions, width and height
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
    """Draw a program's fx graph into a file: a dot per node, coloured by path."""
    names = {p.index: f"{p.index}: {p.in1} x {p.in2} → {p.out}" for p in request.plan.paths}
    colors = {index: path_color(index) for index in names}
    _draw_graph_dots(
        list_picture_nodes(request.emit_program().graph),
        names,
        colors,
        "several paths, or all",
        path,
        with_numbers=True,
    )


def draw_network(graph_module: fx.GraphModule, path: str | Path) -> None:
    """Draw a network's fx graph into a file: a dot per node, coloured by module."""
    homes = {node.name: _module_path_of_node(node) for node in graph_module.graph.nodes}
    modules = sorted(filter(None, dict.fromkeys(homes.values())), key=lambda home: home == _SHARED)
    numbers = {home: n for n, home in enumerate(modules)}
    colors = {n: "black" if home == _SHARED else path_color(n) for n, home in enumerate(modules)}
    found = list_picture_nodes(graph_module.graph).items()
    dots = {name: replace(dot, path=numbers.get(homes[name] or "")) for name, dot in found}
    _draw_graph_dots(dots, dict(enumerate(modules)), colors, "the network's own code", path)


_SHARED = "several products"


def _module_path_of_node(node: fx.Node) -> str | None:
    if len(node.meta.get("shared_by", ())) > 1:
        return _SHARED
    parts = str(node.meta.get("module_path", "")).split(".")
    return ".".join(parts[: 2 if len(parts) > 1 and parts[1].isdigit() else 1]) or None


def _draw_graph_dots(
    dots: Mapping[str, PictureNode],
    names: Mapping[int, str],
    colors: Mapping[Any, Any],
    others_label: str,
    path: str | Path,
    with_numbers: bool = False,
) -> None:
    # dots in ranks, each in the colour of its path, or with its number too; a legend says what paths are
    reads = {name: [source for source in dot.reads if source in dots] for name, dot in dots.items()}
    inputs = [name for name, dot in dots.items() if dot.is_end and not reads[name]]
    place, lines = lay_out_graph_in_ranks(reads, inputs)
    xs = [x for x, _ in place.values()]
    wide, tall = max(xs) - min(xs), -min(y for _, y in place.values())
    rows = min(len(names), 40)
    size = min(16.0, 4.6 + 0.26 * wide), min(14.0, max(1.0 + 0.3 * tall, 0.16 * rows + 0.6))
    figure = new_figure(*size)
    panel = figure.subplots()
    for points in lines.values():
        panel.plot(*zip(*points, strict=True), color="0.82", lw=0.6, zorder=1)
    for name, (x, y) in place.items():
        number = dots[name].path
        _draw_node_dot(
            panel, x, y, colors.get(number, SHARED_COLOR), str(number) if with_numbers and number is not None else ""
        )
    for name in (name for name, dot in dots.items() if dot.is_end):
        away, va = (8, "bottom") if name in inputs else (-8, "top")
        _draw_node_title(panel, dots[name], place[name], (0, away), ha="center", va=va)
    for name in _names_of_dots_with_room_for_title(place, dots):
        _draw_node_title(panel, dots[name], place[name], (6, 0), fontsize=5.5, color="0.3", va="center")
    for number, name in names.items():
        panel.plot([], [], "o", ms=6, color=colors[number], label=name)
    panel.plot([], [], "o", ms=6, color=SHARED_COLOR, label=others_label)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1 + len(names) // 40)
    panel.axis("off")
    save_figure(figure, path, _DPI)


def _draw_node_dot(panel: Any, x: float, y: float, color: Any, number: str) -> None:
    panel.plot([x], [y], "o", ms=7.5, color=color, mec="white", mew=0.6, zorder=2)
    if number:
        on = text_color(color) if isinstance(color, tuple) else "#fff"
        panel.annotate(number, (x, y), fontsize=4.5, color=on, ha="center", va="center_baseline", zorder=3)


def _draw_node_title(
    panel: Any, dot: PictureNode, position: tuple[float, float], offset: tuple[int, int], **style: Any
) -> None:
    box = {"fc": "white", "ec": "none", "pad": 0.6}
    style = {"fontsize": 8, "zorder": 1.5, "bbox": box, **style}
    panel.annotate(dot.title, position, xytext=offset, textcoords="offset points", **style)


def _names_of_dots_with_room_for_title(
    dot_positions: Mapping[str, tuple[float, float]], dots: Mapping[str, PictureNode]
) -> list[str]:
    # names of the inner dots that have room for their title on their right, before the next dot of the rank
    ranks: dict[float, list[tuple[float, str]]] = {}
    for name, (x, y) in dot_positions.items():
        ranks.setdefault(y, []).append((x, name))
    kept = []
    for rank in ranks.values():
        rank.sort(key=lambda item: item[0])
        follows = [*(x for x, _ in rank[1:]), float("inf")]
        for (x, name), after in zip(rank, follows, strict=True):
            if not dots[name].is_end and after - x > 0.18 * len(dots[name].title) + 0.7:
                kept.append(name)
    return kept
