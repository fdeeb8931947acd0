"""Benchmark reports as tables and plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tpgen.base.drawing.colors import path_color
from tpgen.base.text import duration, plural, quantity, ratio
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.bench.records import Environment, Record, Report
from tpgen.tools.bench.tasks import TASKS
from tpgen.tools.inspection.figures import new_figure, save_figure

# Columns of the table of one problem and task: heading, cell.
_COLUMNS: dict[str, Callable[[Report, Record], str]] = {
    "contender": lambda report, r: r.contender,
    "median": lambda report, r: "WRONG" if r.status == "wrong" else duration(r.median),
    "min": lambda report, r: duration(r.min),
    "± spread": lambda report, r: "" if r.spread is None else f"{100 * r.spread:.0f} %",
    "× best e3nn": lambda report, r: ratio(report.speedup(r)),
    "× same backend": lambda report, r: ratio(report.speedup(r, same_backend=True)),
    "build": lambda report, r: duration(r.build),
    "first call": lambda report, r: duration(r.first),
    "peak memory": lambda report, r: quantity(r.peak_bytes, "B"),
    "error": lambda report, r: "" if r.error is None else f"{r.error:.0e}",
}
_SHOWN = ("ok", "wrong")  # others have a reason instead of figures


@dataclass(frozen=True)
class TextTable:
    """A table's title, headings and cells; ``marks`` are row styles."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()

    def make_rich_table(self) -> Table:
        """Table for a terminal."""
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
        for n, heading in enumerate(self.headings):
            justify: Literal["left", "right"] = "left" if n == 0 or heading in _WORDS else "right"
            table.add_column(heading, justify=justify, no_wrap=n == 0)
        for row, mark in zip(self.rows, self.marks or ("",) * len(self.rows), strict=True):
            table.add_row(*map(escape, row), style=_STYLES[mark])
        return table

    def record(self) -> dict[str, Any]:
        """Title, and rows as dicts, for JSON."""
        return {"title": self.title, "rows": [dict(zip(self.headings, row, strict=True)) for row in self.rows]}

    def write_markdown(self) -> str:
        lines = [self.headings, tuple("---" if h in _WORDS or not n else "---:" for n, h in enumerate(self.headings))]
        bold = [mark == "best" for mark in self.marks] or [False] * len(self.rows)
        for row, stressed in zip(self.rows, bold, strict=True):
            lines.append(tuple(f"**{cell}**" if stressed and cell else cell.replace("|", "\\|") for cell in row))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_WORDS = ("contender", "status", "where", "reason", "least at", "worst at", "what", "part", "met", "how")
_STYLES = {"": "", "best": "bold green", "wrong": "bold red"}


def _make_table_of_task(
    report: Report, problem: str, task: str, columns: Sequence[str] = tuple(_COLUMNS)
) -> TextTable | None:
    shown = [r for r in report.records_of(problem, task) if r.status in _SHOWN]
    records = sorted(shown, key=lambda r: r.median or float("inf"))
    if not records:
        return None
    rows = tuple(tuple(_COLUMNS[c](report, r) for c in columns) for r in records)
    marks = tuple("wrong" if r.status == "wrong" else "best" if r is records[0] else "" for r in records)
    return TextTable(f"{problem}, {_task_label(task)} ({records[0].rows} rows)", tuple(columns), rows, marks)


def _task_label(task: str) -> str:
    return TASKS[task].label if task in TASKS else task


_MEAN_HEADINGS = (
    "contender", "× best e3nn", "least", "least at", "× same backend", "least, same", "problems"
)  # fmt: skip


def _make_table_of_mean_speedups(report: Report, task: str) -> TextTable | None:
    found = []
    for contender in report.contenders:
        best, same = (report.geometric_mean_speedup(contender, task, same_backend) for same_backend in (False, True))
        if best:
            found.append((best, same, contender))
    if not found:
        return None
    rows = tuple(
        (
            contender,
            ratio(best.mean),
            ratio(best.least),
            best.least_problem,
            ratio(same.mean) if same else "",
            ratio(same.least) if same else "",
            str(best.problems),
        )
        for best, same, contender in sorted(found, key=lambda row: -row[0].mean)
    )
    return TextTable(f"{_task_label(task)}: geometric means over the problems", _MEAN_HEADINGS, rows)


def _make_table_of_untimed_contenders(report: Report) -> TextTable | None:
    reasons: dict[tuple[str, str, str], list[Record]] = {}
    for r in report.records:
        if r.status != "ok":
            reasons.setdefault((r.contender, r.status, r.reason), []).append(r)
    if not reasons:
        return None
    rows = tuple(
        (name, status, _join_problem_and_task_names(report, rs), reason)
        for (name, status, reason), rs in reasons.items()
    )
    marks = tuple("wrong" if status == "wrong" else "" for _, status, _ in reasons)
    return TextTable("not timed", ("contender", "status", "where", "reason"), rows, marks)


def _join_problem_and_task_names(report: Report, records: Sequence[Record]) -> str:
    problems = list(dict.fromkeys(r.problem for r in records))
    tasks = list(dict.fromkeys(r.task for r in records))
    names = "all problems" if len(problems) == len(report.problems) else ", ".join(problems)
    return names if len(tasks) == len(report.tasks) else f"{names}: {', '.join(tasks)}"


def describe_environment(report: Report) -> str:
    """A line on dtype, machine and versions."""
    return f"{report.settings.dtype} on {describe_machine(report.environment, report.settings.device)}"


def describe_doubtful_times(report: Report) -> str:
    """Text that warns of doubtful times, or empty."""
    doubted = [r for r in report.records if r.doubt]
    if not doubted:
        return ""
    first, more = doubted[0], len(doubted) - 1
    others = f", and {more} more" if more else ""
    return (
        f"no ratios are made of {first.contender} at {first.problem} ({first.doubt}){others}: "
        "the machine did something else meanwhile; measure again when it is quiet, for longer, or with one thread"
    )


def describe_machine(machine: Environment, device: str = "cpu") -> str:
    """A line on a machine and its versions."""
    where = (
        machine.gpu
        if device == "cuda"
        else f"{machine.cpu} ({plural(machine.cores, 'core')}, {plural(machine.threads, 'thread')}, "
        f"{machine.cpu_capability})"
    )
    others = f", cuEquivariance {machine.cuequivariance}" if machine.cuequivariance else ""
    return (
        f"{where}; torch {machine.torch}, e3nn {machine.e3nn}, tpgen {machine.tpgen}{others}, Python {machine.python}"
    )


@dataclass(frozen=True)
class ReportTables:
    """All tables of a benchmark report, for rich."""

    report: Report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report = self.report
        columns = tuple(_COLUMNS) if options.max_width >= _FULL_WIDTH else _NARROW
        if busy := describe_doubtful_times(report):
            yield Text(f"{busy}\n", style="yellow")
        cells = [
            _make_table_of_task(report, problem, task, columns) for problem in report.problems for task in report.tasks
        ]
        if len(report.problems) > 1:
            cells += [_make_table_of_mean_speedups(report, task) for task in report.tasks]
        cells.append(_make_table_of_untimed_contenders(report))
        yield from (c.make_rich_table() for c in cells if c)
        yield describe_environment(report)


_FULL_WIDTH = 140
_NARROW = ("contender", "median", "× best e3nn", "× same backend", "first call", "peak memory")


_DETAIL = tuple(name for name in _COLUMNS if name != "error")


def markdown_report(report: Report, image: str | None = None, details: bool = True) -> str:
    """Benchmark report in Markdown; ``image`` is the plot's address, ``details`` adds `make_task_tables`."""
    parts = [f"Measured: {describe_environment(report)}."]
    if busy := describe_doubtful_times(report):
        parts.append(f"Note: {busy}.")
    if image:
        parts.append(f"![times faster than e3nn, by problem and task]({image})")
    found = [(task, _make_table_of_mean_speedups(report, task)) for task in report.tasks]
    parts += [f"### {task}: geometric means\n\n{cells.write_markdown()}" for task, cells in found if cells]
    if details:
        parts += [_write_problem_markdown(report, problem) for problem in report.problems]
    reasons = _make_table_of_untimed_contenders(report)
    if reasons:
        parts.append(f"### Not timed\n\n{reasons.write_markdown()}")
    return "\n\n".join(parts) + "\n"


def make_task_tables(report: Report) -> list[TextTable]:
    """A table of records per problem and task."""
    found = (
        _make_table_of_task(report, problem, task, _DETAIL) for problem in report.problems for task in report.tasks
    )
    return [cells for cells in found if cells]


def _write_problem_markdown(report: Report, problem: str) -> str:
    known = PROBLEMS.get(problem)
    parts = [f"### {problem}"]
    if known:
        parts.append(f"{known.about[0].upper()}{known.about[1:]}.")
    for task in report.tasks:
        cells = _make_table_of_task(report, problem, task, _DETAIL)
        if cells:
            parts.append(f"{cells.title}:\n\n{cells.write_markdown()}")
    return "\n\n".join(parts)


# A colour says the family, a marker the backend; e3nn is grey.
_MARKERS = {"eager": "o", "script": "s", "inductor": "^", "cudagraphs": "D"}


def plot_report(report: Report, path: str | Path) -> None:
    """Plot speed-ups over e3nn into a file: a panel per task, a row per problem."""
    names = [name for name in report.contenders if any(r.contender == name and r.median for r in report.records)]
    figure = new_figure(4.2 * len(report.tasks) + 2.5, 0.34 * len(report.problems) + 2.0)
    panels = figure.subplots(1, len(report.tasks), sharey=True, squeeze=False)[0] if report.tasks else []
    for panel, task in zip(panels, report.tasks, strict=True):
        _plot_task_panel(panel, report, task, names)
    if len(panels):
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    machine = report.environment.gpu if report.settings.device == "cuda" else report.environment.cpu
    figure.suptitle(f"{report.settings.dtype} on {machine}", fontsize=10)
    save_figure(figure, path)


def _plot_task_panel(panel: Any, report: Report, task: str, contender_names: list[str]) -> None:
    families = [family for family in dict.fromkeys(name.split("/")[0] for name in contender_names) if family != "e3nn"]
    for name in contender_names:
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
