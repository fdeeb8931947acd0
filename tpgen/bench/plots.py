"""A report as a picture: how many times faster than e3nn's best, problem by problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpgen.bench.records import Report
from tpgen.bench.tasks import TASKS
from tpgen.drawing.colors import path_color
from tpgen.inspection.figures import new_figure, save_figure

# A colour says the family, a marker the backend; e3nn is grey.
_MARKERS = {"eager": "o", "script": "s", "inductor": "^", "cudagraphs": "D"}


def plot_report(report: Report, path: str | Path) -> None:
    """Draw one panel per task: a row for each problem, a mark for each contender, e3nn's best at the line."""
    names = [name for name in report.contenders if any(r.contender == name and r.median for r in report.records)]
    figure = new_figure(4.2 * len(report.tasks) + 2.5, 0.34 * len(report.problems) + 2.0)
    panels = figure.subplots(1, len(report.tasks), sharey=True, squeeze=False)[0] if report.tasks else []
    for panel, task in zip(panels, report.tasks, strict=True):
        _draw_task(panel, report, task, names)
    if len(panels):
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    machine = report.environment.gpu if report.settings.device == "cuda" else report.environment.cpu
    figure.suptitle(f"{report.settings.dtype} on {machine}", fontsize=10)
    save_figure(figure, path)


def _draw_task(panel: Any, report: Report, task: str, names: list[str]) -> None:
    families = [family for family in dict.fromkeys(name.split("/")[0] for name in names) if family != "e3nn"]
    for name in names:
        points = [
            (ratio, y)
            for y, problem in enumerate(report.problems)
            if (record := report.find(problem, task, name)) and (ratio := report.speedup(record))
        ]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        family, backend = name.split("/")
        color = "0.55" if family == "e3nn" else path_color(families.index(family))
        marker = _MARKERS.get(backend, "*")
        panel.plot(xs, ys, linestyle="", marker=marker, markersize=6, label=name, color=color)
    panel.axvline(1.0, color="0.3", linewidth=1)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    panel.xaxis.set_minor_formatter(lambda value, _: "")
    panel.set_yticks(range(len(report.problems)), report.problems, fontsize=8)
    panel.set_ylim(len(report.problems) - 0.5, -0.5)
    panel.set_title(TASKS[task].label if task in TASKS else task)
    panel.set_xlabel("times faster than the best of e3nn")
    panel.grid(axis="both", alpha=0.25)
