"""Kernels as a picture: what they reach of the machine's copy bandwidth and of its rate of multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import Findings, Point
from tpgen.base.drawing.colors import path_color
from tpgen.tools.inspection.figures import label_log_axes_plainly, new_figure, save_figure

_MARKERS = {"forward": "o", "backward": "s"}
_LAYOUTS = {"mul_ir": "full", "ir_mul": "none"}


def plot_roofline(found: Sequence[Findings], path: Path) -> None:
    """Left the roofline, right each kernel's share of both ceilings.

    The bandwidth is that of the fastest copy, the rate that of the fastest run of multiply-adds in registers.
    """
    points = [point for findings in found for point in findings.points]
    rate = max((findings.fma for findings in found if findings.fma), default=0.0)
    problems = list(dict.fromkeys(point.problem for point in points))
    figure = new_figure(13.0, max(5.0, 0.32 * len(problems) + 2.0))
    left, right = figure.subplots(1, 2)
    _draw_roof(left, points, problems, rate)
    _draw_shares(right, points, problems, rate)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    save_figure(figure, path)


def _draw_roof(axes: Any, points: Sequence[Point], problems: list[str], rate: float) -> None:
    bandwidth = max(point.bytes / point.copy_seconds for point in points)
    intensities = [point.flops / point.bytes for point in points]
    if rate:
        knee = rate / bandwidth
        ends = (min(intensities) / 2, max(*intensities, knee) * 2)
        roof = [(x, min(rate, bandwidth * x)) for x in (ends[0], knee, ends[1])]
        axes.plot([x for x, _ in roof], [y for _, y in roof], color="0.3", linewidth=1)
        label = f"copy {bandwidth / 1e9:.1f} GB/s, multiply-add {rate / 1e9:.0f} GFLOP/s"
        axes.set_title(label, fontsize=9)
    for point in points:
        style = _style(point, problems)
        if (point.direction, point.layout) == ("forward", "mul_ir"):
            style["label"] = point.problem
        axes.plot([point.flops / point.bytes], [point.flops / point.seconds], **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    label_log_axes_plainly(axes)
    axes.set_xlabel("FLOP for each byte that has to move")
    axes.set_ylabel("FLOP per second")
    axes.grid(alpha=0.25)


def _draw_shares(axes: Any, points: Sequence[Point], problems: list[str], rate: float) -> None:
    """Bandwidth in the problem's colour, against the copy timed beside it; multiply-adds as a grey bar."""
    for point in points:
        y = problems.index(point.problem) + (0.2 if point.direction == "backward" else -0.2)
        if rate:
            axes.plot([0, 100 * point.flops / point.seconds / rate], [y, y], color="0.8", linewidth=4, zorder=0)
        axes.plot([100 * point.copy_seconds / point.seconds], [y], **_style(point, problems))
    axes.axvline(100, color="0.3", linewidth=1)
    axes.set_yticks(range(len(problems)), problems, fontsize=8)
    axes.set_ylim(len(problems) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("% of copy bandwidth (marks) and of multiply-adds (bars)")
    axes.set_title("● forward  ■ forward+backward, hollow: ir_mul", fontsize=9)
    axes.grid(axis="x", alpha=0.25)


def _style(point: Point, problems: list[str]) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": _MARKERS[point.direction],
        "fillstyle": _LAYOUTS[point.layout],
        "markersize": 6,
        "color": path_color(problems.index(point.problem)),
    }
