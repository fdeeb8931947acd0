"""A report as Markdown: summary first, then every figure."""

from __future__ import annotations

import torch

from tpgen.bench.gate import BOUNDS
from tpgen.bench.records import Report
from tpgen.bench.tables import COLUMNS, Cells, busy_line, environment_line, mean_cells, reason_cells, task_cells
from tpgen.bench.tasks import TASKS
from tpgen.planner.problems import PROBLEMS

_DETAIL = tuple(name for name in COLUMNS if name != "error")

METHOD = """\
- All contenders of a problem and task run in one process and take turns, in another order each round, so that what
  else the machine does falls on all alike. A figure is the median over the rounds; *min* is the best round and
  *± spread* the distance between the quartiles relative to the median. Small products are called several times in a
  round.
- Before the clock starts, results and gradients are compared with the slow float64 definition. The largest error
  allowed is {bounds}, relative to the largest entry. A contender that fails is shown as WRONG and not timed.
- *build* constructs the product (couplings and graphs that another contender needed before it are reused), *first
  call* is the first call of a task and includes compilation{caches}.
- *peak memory* is the most that was held during one call above what was held before: intermediates and results, not
  operands, and not the workspace of a library.
- Ratios say how many times faster than e3nn's best (of those that took part) for the same problem and task; *×
  same* compares with e3nn under the same backend. Means are geometric.
"""


def markdown_report(report: Report, image: str | None = None, details: bool = True) -> str:
    """One report as a section of Markdown; ``image`` is the plot's address as seen from the page.

    Without ``details`` the tables of single problems are left out: `detail_cells` has them.
    """
    parts = [f"Measured: {environment_line(report)}."]
    if busy := busy_line(report):
        parts.append(f"Note: {busy}.")
    if image:
        parts.append(f"![times faster than e3nn, by problem and task]({image})")
    for title, cells in _summary(report):
        parts.append(f"{title}\n\n{cells.markdown()}")
    if details:
        parts += [_problem_section(report, problem) for problem in report.problems]
    reasons = reason_cells(report)
    if reasons:
        parts.append(f"### Not timed\n\n{reasons.markdown()}")
    return "\n\n".join(parts) + "\n"


def method_notes(report: Report) -> str:
    """Describe the method of measurement of a report, as a Markdown list."""
    bounds = f"{BOUNDS[_dtype(report)]:.0e} in {report.settings.dtype}"
    caches = ", which may find code of an earlier run on disk" if report.environment.compile_caches else ""
    tasks = "".join(f"- **{name}**: {TASKS[name].about}.\n" for name in report.tasks if name in TASKS)
    return tasks + METHOD.format(bounds=bounds, caches=caches)


def _dtype(report: Report) -> torch.dtype:
    return next(dtype for dtype in BOUNDS if str(dtype) == f"torch.{report.settings.dtype}")


def _summary(report: Report) -> list[tuple[str, Cells]]:
    found = [(task, mean_cells(report, task)) for task in report.tasks]
    return [(f"### {task}: geometric means", cells) for task, cells in found if cells]


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
