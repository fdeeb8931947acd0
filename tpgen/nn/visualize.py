"""Draw a product: inputs on the two upper sides of a hexagon, the output below, a star for each path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tpgen.errors import TpgenError
from tpgen.planner.plan import Plan


def draw_product(
    plan: Plan, sizes: Sequence[float] | None = None, aspect_ratio: float | str = 1, axes: Any = None
) -> tuple[Any, Any]:
    """Draw every path as three lines from its segments to a meeting point.

    ``sizes`` (one per instruction) colours the paths, dark for large; without it paths are black, and unweighted ones
    dashed.  ``aspect_ratio`` is a number, or ``auto`` to follow the number of segments.  Returns ``(figure, axes)``.
    """
    plt = _pyplot()
    axes = axes if axes is not None else plt.gca()
    corners = _corners(plan, aspect_ratio)
    legs = [
        _spread(corners[2 * n], corners[2 * n + 1], [str(segment) for segment in irreps])
        for n, irreps in enumerate((plan.irreps_in1, plan.irreps_in2, plan.irreps_out))
    ]
    for start, stop in zip(corners[0::2], corners[1::2], strict=True):
        axes.plot(*zip(start, stop, strict=True), color="black", linewidth=1)
    largest = max(sizes, default=0.0) if sizes is not None else 0.0
    for index, instruction in enumerate(plan.instructions):
        points = [leg[i][0] for leg, i in zip(legs, instruction[:3], strict=True)]
        shade = sizes[index] / largest if sizes is not None and largest > 0 else 1.0
        style = "-" if instruction.has_weight else "--"
        _draw_path(axes, points, plt.get_cmap("Blues")(0.25 + 0.75 * shade) if sizes is not None else "black", style)
    for leg, side, turn in zip(legs, ("right", "left", "center"), (0, 0, 90), strict=True):
        for point, label in leg:
            vertical = "top" if side == "center" else "center"
            axes.annotate(label, point, rotation=turn, ha=side, va=vertical, **_offset(side))
    axes.set_aspect("equal")
    axes.margins(0.25)
    axes.axis("off")
    return axes.get_figure(), axes


def mean_squares(views: Iterable[tuple[int, Any, Tensor]], count: int) -> list[float]:
    """The size of each of ``count`` instructions' weights, zero where it has none."""
    sizes = [0.0] * count
    for index, _, view in views:
        sizes[index] = float(view.detach().pow(2).mean()) if view.numel() else 0.0
    return sizes


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise TpgenError("drawing a product needs matplotlib; install it with: pip install matplotlib") from error
    return plt


def _corners(plan: Plan, aspect_ratio: float | str) -> list[np.ndarray]:
    """Ends of the sides of in1 (upper left), in2 (upper right) and out (bottom)."""
    if aspect_ratio == "auto":
        inputs = max(len(plan.irreps_in1), len(plan.irreps_in2))
        stretch = np.array([max(len(plan.irreps_out), 1), max(inputs, len(plan.irreps_out) / 2, 1)]) * 0.1
    elif isinstance(aspect_ratio, (int, float)):
        count = max(len(plan.irreps_in1), len(plan.irreps_in2), len(plan.irreps_out), 1)
        stretch = np.array([aspect_ratio, 1.0]) * 0.1 * count
    else:
        raise TpgenError(f"aspect_ratio must be a number or 'auto', got {aspect_ratio!r}")
    angles = np.radians([180, 120, 0, 60, 240, 300])
    return list(np.stack([np.cos(angles), np.sin(angles)], axis=1) * stretch)


def _spread(start: np.ndarray, stop: np.ndarray, labels: list[str]) -> list[tuple[np.ndarray, str]]:
    count = len(labels) + 1
    return [(start + (n + 1) / count * (stop - start), label) for n, label in enumerate(labels)]


def _draw_path(axes: Any, points: list[np.ndarray], color: Any, style: str) -> None:
    meeting = np.mean(points, axis=0)
    for point in points:
        axes.plot(*zip(point, meeting, strict=True), color=color, linestyle=style, linewidth=1.2)


def _offset(side: str) -> dict[str, Any]:
    shift = {"right": (-6, 4), "left": (6, 4), "center": (0, -6)}[side]
    return {"textcoords": "offset points", "xytext": shift, "fontsize": 9}
