"""Pictures of a product: its costs under the machine's ceilings, couplings, the fx graph coloured by path.

matplotlib is an optional part; a `TpgenError` says how to get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpgen.errors import TpgenError
from tpgen.inspection.dump import Request
from tpgen.inspection.explain import Explanation, PathExplanation
from tpgen.planner.coupling import coupling
from tpgen.planner.plan import Plan

SHARED_COLOR = "0.75"


def new_figure(width: float, height: float) -> Any:
    """A figure that needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TpgenError("pictures need matplotlib; install it with: pip install 'tpgen[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure; the ending of the path says the format."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def path_color(index: int, count: int) -> tuple[float, float, float]:
    """The colour of a path, the same in every picture: neighbours differ in hue, and alternate in lightness.

    >>> path_color(0, 4) == path_color(1, 4)
    False
    """
    from colorsys import hls_to_rgb

    # steps of the golden ratio spread any number of hues evenly
    return hls_to_rgb((0.6 + 0.618034 * index) % 1.0, (0.42, 0.55)[index % 2], 0.65)


def draw_explanation(found: Explanation, path: str | Path) -> None:
    """Bars of each path's operations, bytes and (if measured) time; the product under the machine's roofline."""
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
    save_figure(figure, path)


def _bars(panel: Any, paths: Sequence[PathExplanation], values: Sequence[float], label: str, named: bool) -> None:
    places = range(len(paths))
    panel.barh(places, values, color=[path_color(p.index, len(paths)) for p in paths])
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


def draw_couplings(plan: Plan, path: str | Path) -> None:
    """The couplings of a product: which entries are not zero, a block for each, its slices k side by side."""
    triples = list(dict.fromkeys(p.ls for p in plan.paths))
    columns = min(4, len(triples)) or 1
    rows = -(-len(triples) // columns) or 1
    figure = new_figure(3.0 * columns, 1.5 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, ls in zip(panels, triples, strict=False):
        values = coupling(*ls)
        flat = np.concatenate([np.pad(values[:, :, k], ((0, 0), (0, 1))) for k in range(values.shape[2])], axis=1)
        largest = float(np.abs(values).max())
        panel.imshow(flat[:, :-1], cmap="RdBu", vmin=-largest, vmax=largest, interpolation="nearest")
        for k in range(1, values.shape[2]):
            panel.axvline(k * (values.shape[1] + 1) - 1, color="0.8", lw=3)
        panel.set_title(f"{ls}: {np.count_nonzero(values)} of {values.size}", fontsize=8)
    for panel in panels:
        panel.set(xticks=[], yticks=[])
    for panel in panels[len(triples) :]:
        panel.axis("off")
    save_figure(figure, path)


def draw_graph(request: Request, path: str | Path) -> None:
    """The fx graph: a dot for each node, coloured by its path (grey: several or all), inputs at the top."""
    nodes = [node for node in request.emission().graph.nodes if node.op != "get_attr"]
    depth: dict[Any, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth.get(n, -1) for n in node.all_input_nodes), default=-1)
    ranks: dict[int, list[Any]] = {}
    for node in nodes:
        ranks.setdefault(depth[node], []).append(node)
    place = {n: (i - (len(rank) - 1) / 2, -d) for d, rank in ranks.items() for i, n in enumerate(rank)}
    figure = new_figure(min(14.0, 2.5 + 0.28 * max(map(len, ranks.values()))), min(14.0, 1.0 + 0.3 * len(ranks)))
    panel = figure.subplots()
    count = len(request.plan.paths)
    for node in nodes:
        for source in (n for n in node.all_input_nodes if n in place):
            panel.plot(*zip(place[source], place[node], strict=True), color="0.85", lw=0.5, zorder=1)
    for node, (x, y) in place.items():
        served = node.meta["tpgen"].instructions
        color = path_color(served[0], count) if len(served) == 1 else SHARED_COLOR
        panel.plot([x], [y], "o", ms=5, color=color, zorder=2)
        if node.op in ("placeholder", "output"):
            panel.annotate(node.name, (x, y), xytext=(6, 0), textcoords="offset points", fontsize=7, va="center")
    panel.axis("off")
    save_figure(figure, path)
