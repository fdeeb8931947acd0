"""A report as Markdown: summary first, then every figure."""

from __future__ import annotations

from tpgen.bench.records import Report
from tpgen.bench.tables import COLUMNS, Cells, busy_line, environment_line, mean_cells, reason_cells, task_cells
from tpgen.planner.problems import PROBLEMS

_DETAIL = tuple(name for name in COLUMNS if name != "error")


def markdown_report(report: Report, image: str | None = None, details: bool = True) -> str:
    """One report as a section of Markdown; ``image`` is the plot's address as seen from the page.

    Without ``details`` the tables of single problems are left out: `detail_cells` has them.
    """
    parts = [f"Measured: {environment_line(report)}."]
    if busy := busy_line(report):
        parts.append(f"Note: {busy}.")
    if image:
        parts.append(f"![times faster than e3nn, by problem and task]({image})")
    found = [(task, mean_cells(report, task)) for task in report.tasks]
    parts += [f"### {task}: geometric means\n\n{cells.markdown()}" for task, cells in found if cells]
    if details:
        parts += [_problem_section(report, problem) for problem in report.problems]
    reasons = reason_cells(report)
    if reasons:
        parts.append(f"### Not timed\n\n{reasons.markdown()}")
    return "\n\n".join(parts) + "\n"


def detail_cells(report: Report) -> list[Cells]:
    """The table of every problem and task."""
    found = (task_cells(report, problem, task, _DETAIL) for problem in report.problems for task in report.tasks)
    return [cells for cells in found if cells]


def _problem_section(report: Report, problem: str) -> str:
    known = PROBLEMS.get(problem)
    parts = [f"### {problem}"]
    if known:
        parts.append(f"{known.about[0].upper()}{known.about[1:]}.")
    for task in report.tasks:
        cells = task_cells(report, problem, task, _DETAIL)
        if cells:
            parts.append(f"{cells.title}:\n\n{cells.markdown()}")
    return "\n\n".join(parts)
