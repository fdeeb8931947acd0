"""A report as Markdown: summary first, then every figure."""

from __future__ import annotations

import torch

from tpgen.benchmarking.contenders import CONTENDERS
from tpgen.benchmarking.gate import BOUNDS
from tpgen.benchmarking.records import Report
from tpgen.benchmarking.tables import COLUMNS, Cells, busy_line, environment_line, mean_cells, reason_cells, task_cells
from tpgen.benchmarking.tasks import TASKS
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
- *peak memory* is the most that torch's allocator held during one call above what it held before: intermediates and
  results, not operands, and not memory that is not torch's.
- Ratios say how many times faster than e3nn's best (of those that took part) for the same problem and task; *×
  same* compares with e3nn under the same backend. Means are geometric.
"""


def markdown_report(report: Report, image: str | None = None) -> str:
    """One report as a section of Markdown; ``image`` is the plot's address as seen from the page."""
    parts = [f"Measured: {environment_line(report)}."]
    if busy := busy_line(report):
        parts.append(f"Note: {busy}.")
    if image:
        parts.append(f"![times faster than e3nn, by problem and task]({image})")
    for title, cells in _summary(report):
        parts.append(f"{title}\n\n{cells.markdown()}")
    for problem in report.problems:
        parts.append(_problem_section(report, problem))
    reasons = reason_cells(report)
    if reasons:
        parts.append(f"### Not timed\n\n{reasons.markdown()}")
    return "\n\n".join(parts) + "\n"


def method_notes(report: Report) -> str:
    """How the figures of a report came to be, as a Markdown list."""
    bounds = f"{BOUNDS[_dtype(report)]:.0e} in {report.settings.dtype}"
    caches = ", which may find code of an earlier run on disk" if report.environment.compile_caches else ""
    tasks = "".join(f"- **{name}**: {TASKS[name].about}.\n" for name in report.tasks if name in TASKS)
    return tasks + METHOD.format(bounds=bounds, caches=caches)


def _dtype(report: Report) -> torch.dtype:
    return next(dtype for dtype in BOUNDS if str(dtype) == f"torch.{report.settings.dtype}")


def _summary(report: Report) -> list[tuple[str, Cells]]:
    found = [(task, mean_cells(report, task)) for task in report.tasks]
    return [(f"### {task}: geometric means", cells) for task, cells in found if cells]


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


def contender_list() -> str:
    """Every known contender, for the page on benchmarks."""
    families: dict[str, list[str]] = {}
    for contender in CONTENDERS.values():
        families.setdefault(contender.family, []).append(contender.backend)
    return "\n".join(f"- `{family}` under {', '.join(backends)}" for family, backends in families.items())
