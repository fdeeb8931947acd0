"""The page on benchmarks, as a whole from the records there are: products, kernels, method, contenders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.goals import Figure, Goal, Outcome, Target, load_outcomes
from benchmarks.kernel_goals import GOALS
from benchmarks.roofline import plot_roofline
from tpgen.base.errors import TpgenError
from tpgen.base.text import duration, ratio
from tpgen.tools.bench.records import Environment, Record, Report, Settings, load_report
from tpgen.tools.bench.run import select_problems
from tpgen.tools.bench.tables import TextTable, describe_machine, make_task_tables, markdown_report, plot_report
from tpgen.tools.bench.tasks import BOUNDS, TASKS

INTRODUCTION = """\
# Benchmarks

Times of tpgen's products, beside e3nn's, a plain loop over instructions, and cuEquivariance
where it is installed. A *contender* is one way to compute a product: a library, its
[strategy](glossary.md#strategy), and what runs it. A *problem* is a product with a
[name](cli.md#naming-a-product), mostly of a known network. Where tpgen is behind: [remarks](benchmarks_remarks.md).

[A file of JSON](records/benchmarks.json) has every figure: times, spread, set-up, peak memory of each contender.
`tpgen bench mace-large` measures one problem on your machine. `python -m
benchmarks.report` measures all and writes this page, and `python -m benchmarks.kernels` adds the generated CPU
kernels.
"""

KERNEL_METHOD = """\
- A ratio to e3nn is a ratio of medians, to the fastest form of e3nn that took part. All were timed in turn in the
  same run. Each call makes a fresh result, on [reused pages](memory.md#pages-that-are-used-again) where there are any.
- *bandwidth* compares the kernel alone, which writes into a fresh result, with a `copy_` into memory that is there.
  Both read and write as many bytes. *threads* times the kernels alone.
- Nothing is timed before it has agreed with float64. Where e3nn takes part, this is the whole problem; where a
  kernel is timed alone, its first rows; for convolutions a small graph, and the full graph with e3nn's result.
- *conv-memory* is the highest resident memory of a process during a call, less what it held before and the results.
  *cold* and *warm* are measured in fresh processes.
- The roofline counts a multiply and an add for each non-zero coupling entry and copy, and for each weight, and
  three times that for a backward kernel. It counts the bytes of every input and result once.
"""

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


@dataclass(frozen=True)
class Places:
    """Where records are and where the page goes."""

    records: Path  # a folder; rows of the kernels are in `kernels` below it
    page: Path

    @property
    def kernels(self) -> Path:
        return self.records / "kernels"

    @property
    def details(self) -> Path:
        """Every figure, as JSON; the page has the summaries."""
        return self.page.parent / "records" / self.page.with_suffix(".json").name

    @property
    def images(self) -> Path:
        return self.page.parent / "images"


def write_page(places: Places, others: Sequence[Path] = ()) -> int:
    """Write the page and its plots from all records, ``others`` among them; returns how many files there were.

    A `TpgenError` where there is none.
    """
    files = sorted((*places.records.glob("*.json"), *others), key=_position)
    reports = merge_reports(load_report(path) for path in files)
    outcomes = load_outcomes(places.kernels)
    if not reports and not outcomes:
        raise TpgenError(f"no records in {places.records}: run without --write-only, or name files")
    parts = [INTRODUCTION, *_products(reports, places)]
    if outcomes:
        parts.append(kernel_section(outcomes, places.images))
    if reports:
        parts.append(f"## How it is measured\n\n{method_notes(reports[0])}")
    places.page.parent.mkdir(parents=True, exist_ok=True)
    places.page.write_text("\n".join(parts))
    write_details([*(c for r in reports for c in make_task_tables(r)), *detail_parts(outcomes, GOALS)], places.details)
    return len(files) + len(outcomes)


def method_notes(report: Report) -> str:
    """Describe the method of measurement of a report, as a Markdown list."""
    bounds = f"{BOUNDS[_dtype(report)]:.0e} in {report.settings.dtype}"
    caches = ", which may find code of an earlier run on disk" if report.environment.compile_caches else ""
    tasks = "".join(f"- **{name}**: {TASKS[name].about}.\n" for name in report.tasks if name in TASKS)
    return tasks + METHOD.format(bounds=bounds, caches=caches)


def _dtype(report: Report) -> torch.dtype:
    return next(dtype for dtype in BOUNDS if str(dtype) == f"torch.{report.settings.dtype}")


def write_details(details: Sequence[TextTable], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([cells.record() for cells in details], indent=0, ensure_ascii=False) + "\n")


def _position(path: Path) -> int:
    """Problems appear in the order in which they are declared."""
    order = [problem.name for problem in select_problems()]
    return next((n for n, name in enumerate(order) if path.stem.endswith(name)), len(order))


def _products(reports: Sequence[Report], places: Places) -> list[str]:
    parts = []
    for n, report in enumerate(reports):
        name = f"benchmarks-{report.settings.device}-{report.settings.dtype}{f'-{n}' if n else ''}.png"
        plot_report(report, places.images / name)
        title = f"## {report.settings.device.upper()}, {report.settings.dtype}"
        parts.append(f"{title}\n\n{markdown_report(report, f'{places.images.name}/{name}', details=False)}")
    return parts


# --- generated kernels ------------------------------------------------------------------------------------------------


def kernel_section(outcomes: Sequence[Outcome], images: Path) -> str:
    """What was to be reached and what was measured, and the roofline."""
    parts = ["## Generated CPU kernels"]
    machines = dict.fromkeys(describe_machine(outcome.environment) for outcome in outcomes)
    parts.append("\n".join(f"Measured: {line}." for line in machines))
    parts.append(goal_cells(outcomes).write_markdown())
    found = [outcome.findings for outcome in outcomes if outcome.findings.points]
    if found:
        plot_roofline(found, images / "roofline.png")
        parts.append(f"![kernels against copy bandwidth and multiply-add rate]({images.name}/roofline.png)")
    parts.append(f"### How kernels are measured\n\n{KERNEL_METHOD}")
    return "\n\n".join(parts)


def detail_parts(outcomes: Sequence[Outcome], goals: Mapping[str, Goal]) -> list[TextTable]:
    """A table for each goal that was measured, with every figure."""
    return [
        _detail_cells(goal, outcomes)
        for goal in goals.values()
        if goal.targets and any(outcome.goal == goal.name for outcome in outcomes)
    ]


def goal_cells(outcomes: Sequence[Outcome], goals: Mapping[str, Goal] = GOALS) -> TextTable:
    """A row for each target: the worst figure counts."""
    rows, marks = [], []
    for goal in goals.values():
        for part, target in goal.targets.items():
            figures = _figures(goal, part, outcomes)
            valued = {figure.value: figure.what for figure in figures if figure.value is not None}
            worst = target.worst(valued) if valued else None
            where = "" if worst is None else valued[worst]
            met = _verdict(target, figures, len(goal.subjects), {o.subject for o in outcomes if o.goal == goal.name})
            rows.append((goal.name, goal.about, part, str(target), _shown(target, worst), where, met))
            marks.append("wrong" if met.startswith("no") else "")
    headings = ("row", "what", "part", "target", "worst measured", "worst at", "met")
    return TextTable("generated CPU kernels", headings, tuple(rows), tuple(marks))


def _figures(goal: Goal, part: str, outcomes: Sequence[Outcome]) -> list[Figure]:
    """The figures of one part, in the order of the goal's subjects."""
    by_subject = {outcome.subject: outcome.findings.figures for outcome in outcomes if outcome.goal == goal.name}
    return [figure for subject in goal.subjects for figure in by_subject.get(subject, ()) if figure.part == part]


def _verdict(target: Target, figures: Sequence[Figure], subjects: int, measured: set[str]) -> str:
    """Whether a target is met everywhere, and where not all of it is measured that it is not."""
    if not figures:
        return "not measured"
    met = sum(figure.value is not None and target.met(figure.value) for figure in figures)
    answer = "yes" if met == len(figures) else f"no ({met} of {len(figures)})"
    return answer if len(measured) >= subjects else f"{answer}, {len(measured)} of {subjects} measured"


def _shown(target: Target, value: float | None) -> str:
    return duration(value) if target.unit == "s" else ratio(value)


def _detail_cells(goal: Goal, outcomes: Sequence[Outcome]) -> TextTable:
    rows = []
    for part, target in goal.targets.items():
        for figure in _figures(goal, part, outcomes):
            met = "" if figure.value is None else "yes" if target.met(figure.value) else "no"
            value = _shown(target, figure.value) or "–"
            rows.append((figure.what, part, str(target), value, met, figure.note))
    return TextTable(f"{goal.name}: {goal.about}", ("problem", "part", "target", "measured", "met", "how"), tuple(rows))


def merge_reports(reports: Iterable[Report]) -> tuple[Report, ...]:
    """Put reports that were measured alike on one machine together; one for each machine and setting is left.

    Where two hold the same contender at the same task of the same problem, the later one counts.
    """
    groups: dict[tuple[Environment, Settings], dict[tuple[str, str, str], Record]] = {}
    for report in reports:
        groups.setdefault((report.environment, report.settings), {}).update(report._by_key)
    return tuple(Report(*alike, tuple(_ordered(list(records.values())))) for alike, records in groups.items())


def _ordered(records: Sequence[Record]) -> list[Record]:
    """Records of one problem, then of one task, next to each other."""
    problems = list(dict.fromkeys(r.problem for r in records))
    tasks = list(dict.fromkeys(r.task for r in records))
    return sorted(records, key=lambda r: (problems.index(r.problem), tasks.index(r.task)))
