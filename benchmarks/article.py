"""The comparison that tpgen grew out of, in one command: `python -m benchmarks.article`.

The product of 1x0e+2x1o+3x2e with itself to itself, fully connected, 32 rows, 1,000 calls: e3nn's scripted module, a
hand-written fx graph scripted and not, an eager module that loops over instructions, and that loop on CUDA streams.
Columns are the CPU, the CPU compiled by torch.compile, and the same for a GPU, where there is one; behind a time stands
how many times as fast as e3nn's scripted module on the same device that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from rich.console import Console

from tpgen.base.text import duration, ratio
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.records import Record, Report
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.bench.tables import TextTable, describe_doubtful_times, describe_environment
from tpgen.tools.bench.tasks import TASKS
from tpgen.tools.inspection.figures import new_figure, save_figure

_NO_SCRIPT = "scripted"  # torch.compile does not look into TorchScript


@dataclass(frozen=True)
class Column:
    """A device and what the products run with: the products' own form, or a torch.compile backend."""

    title: str
    device: str
    backend: str = ""


COLUMNS = (
    Column("CPU", "cpu"),
    Column("CPU, compiled", "cpu", "inductor"),
    Column("GPU", "cuda"),
    Column("GPU, compiled", "cuda", "inductor"),
    Column("GPU, cudagraphs", "cuda", "cudagraphs"),
)
# Row -> family, and the backend where the column has none. A scripted row has no compiled column of its own: e3nn's is
# its eager module compiled, which is what there is to compile.
ROWS = {
    "e3nn": ("e3nn", "script"),
    "fx graph, scripted": ("tpgen-einsum", "script"),
    "fx graph": ("tpgen-einsum", "eager"),
    "eager module, a loop": ("loop", "eager"),
    "eager module, CUDA streams": ("loop-streams", "eager"),
    "tpgen by itself": ("tpgen-auto", "eager"),
}
_E3NN = "e3nn/script"
_UNCOMPILED = {"fx graph, scripted": _NO_SCRIPT, "eager module, CUDA streams": "eager only"}


def contender_name(row: str, column: Column) -> str | None:
    """The contender of a cell; None where there is none."""
    family, own = ROWS[row]
    if column.backend and row in _UNCOMPILED:
        return None
    return f"{family}/{column.backend or own}"


def measure(task: str, calls: int, progress: bool, columns: Sequence[Column] | None = None) -> dict[str, Report]:
    """One run on each device that is there, all contenders in turn."""
    columns = COLUMNS if columns is None else columns
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    reports = {}
    for device in devices:
        cells = (contender_name(row, column) for row in ROWS for column in columns if column.device == device)
        names = [name for name in dict.fromkeys(cells) if name]
        if not names:  # no column is of this device
            continue
        contenders = select_contenders(names)
        reports[device] = run_benchmarks(
            select_problems(["article"]), contenders, [task], device=device, repeats=calls, progress=progress
        )
    return reports


def find(reports: dict[str, Report], task: str, row: str, column: Column) -> Record | None:
    """The record of a cell; None where nothing was to be measured."""
    name = contender_name(row, column)
    return reports[column.device].find("article", task, name) if name and column.device in reports else None


def cell(reports: dict[str, Report], task: str, row: str, column: Column) -> str:
    """A time, or the reason that there is none."""
    record = find(reports, task, row, column)
    if record is not None:
        reason = "WRONG" if record.status == "wrong" else record.reason
        return reason if record.median is None else f"{duration(record.median)}{_gain(reports[column.device], record)}"
    return _UNCOMPILED.get(row, "not measured")


def _gain(report: Report, record: Record) -> str:
    """How many times as fast as e3nn's scripted module; empty for that itself, and where a time is in doubt."""
    e3nn = report.find(record.problem, record.task, _E3NN)
    if e3nn is None or e3nn is record or not (e3nn.median and record.median) or e3nn.doubt or record.doubt:
        return ""
    return f", {ratio(e3nn.median / record.median)}"


def table(reports: dict[str, Report], task: str, calls: int) -> TextTable:
    """Rows × columns, the median seconds of one call."""
    columns = [column for column in COLUMNS if column.device in reports]
    rows = tuple((row, *(cell(reports, task, row, column) for column in columns)) for row in ROWS)
    title = f"1x0e+2x1o+3x2e three times, 32 rows, {task}, median of {calls:,} calls"
    return TextTable(title, ("product", *(column.title for column in columns)), rows)


def plot(reports: dict[str, Report], task: str, path: Path) -> None:
    """A group of bars for each column that was measured."""
    columns = [column for column in COLUMNS if column.device in reports]
    figure = new_figure(3.2 * len(columns) + 2.5, 4.2)
    axes = figure.subplots()
    width = 0.8 / len(ROWS)
    for n, row in enumerate(ROWS):
        found = [(x, find(reports, task, row, column)) for x, column in enumerate(columns)]
        bars = [(x + n * width - 0.4, r.median * 1e3) for x, r in found if r is not None and r.median]
        if bars:
            drawn = axes.bar([x for x, _ in bars], [y for _, y in bars], width, align="edge", label=row, color=f"C{n}")
            axes.bar_label(drawn, fmt="%.2g", fontsize=7)
    axes.set_xticks(range(len(columns)), [column.title for column in columns])
    axes.set_ylabel(f"ms per call ({task})")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


@click.command(help=__doc__)
@click.option("--calls", default=1000, show_default=True, help="Timed calls of each contender.")
@click.option("--task", type=click.Choice(list(TASKS)), default="forward", show_default=True)
@click.option("--plot", "plot_to", type=click.Path(path_type=Path), default=Path("out/article.png"), show_default=True)
@click.option(
    "--json", "json_to", type=click.Path(path_type=Path), help="Also write the records, a file for each device."
)
def main(calls: int, task: str, plot_to: Path, json_to: Path | None) -> None:
    reports = measure(task, calls, progress=True)
    console = Console()
    for report in reports.values():
        if busy := describe_doubtful_times(report):
            console.print(busy, style="yellow")
    console.print(table(reports, task, calls).make_rich_table())
    if "cuda" not in reports:
        console.print("no GPU here: its columns are left out", style="dim")
    for device, report in reports.items():
        console.print(describe_environment(report), style="dim")
        if json_to:
            target = json_to if len(reports) == 1 else json_to.with_stem(f"{json_to.stem}-{device}")
            report.save_json(target)
            console.print(f"records: {target}")
    plot(reports, task, plot_to)
    console.print(f"plot: {plot_to}")


if __name__ == "__main__":
    main()
