"""``tpgen bench``: contenders on problems, measured in turn."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from tpgen.benchmarking.contenders import CONTENDERS, DEFAULT_CONTENDERS, select_contenders
from tpgen.benchmarking.plots import plot_report
from tpgen.benchmarking.run import run_benchmarks, select_problems
from tpgen.benchmarking.tasks import TASKS
from tpgen.cli.options import DTYPES, DeviceType, PictureFile, free_options, free_problem, screen
from tpgen.planner.plan import Plan
from tpgen.planner.problems import PROBLEMS, SUITES

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--suite", "suites", multiple=True, metavar="SUITE", help=f"One of {', '.join(SUITES)}; repeatable.")
@click.option("--problem", "problems", multiple=True, metavar="NAME", help=f"One of {', '.join(PROBLEMS)}; repeatable.")
@free_options
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    metavar="PATTERN",
    help=f"Like 'e3nn/*'; repeatable. Default: {', '.join(DEFAULT_CONTENDERS)}. Known: {', '.join(CONTENDERS)}.",
)
@click.option("--task", "tasks", multiple=True, metavar="TASK", help=f"One of {', '.join(TASKS)}; repeatable.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--device", type=DeviceType(), default="cpu", show_default=True)
@click.option("--rows", type=click.IntRange(min=1), help="Batch; by default that of the problem.")
@click.option("--seconds", type=click.FloatRange(min=0), default=2.0, show_default=True, help="For each task.")
@click.option("--json", "json_file", type=_FILE, help="Write the records here.")
@click.option("--plot", "plot_file", type=PictureFile(), help="Draw them here: .png, .pdf or .svg.")
def bench(
    suites: tuple[str, ...],
    problems: tuple[str, ...],
    free: Plan | None,
    contenders: tuple[str, ...],
    tasks: tuple[str, ...],
    dtype: str,
    device: str,
    rows: int | None,
    seconds: float,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Measure contenders on problems, after checking that their results are right.

    Without a product, on all named problems.
    """
    for file in filter(None, (json_file, plot_file)):  # before the measurement, which may take long
        if not file.parent.is_dir():
            raise click.UsageError(f"cannot write {file}: there is no folder {file.parent}")
    described = [free_problem(free)] if free is not None else []
    named = select_problems(problems, suites) if problems or suites or not described else ()
    report = run_benchmarks(
        [*named, *described],
        select_contenders(contenders),
        tasks,
        dtype=DTYPES[dtype],
        device=torch.device(device),
        seconds=seconds,
        rows=rows,
        progress=True,
    )
    screen().print(report.table())
    if json_file:
        report.save_json(json_file)
        click.echo(f"records: {json_file}", err=True)
    if plot_file:
        plot_report(report, plot_file)
        click.echo(f"plot: {plot_file}", err=True)
