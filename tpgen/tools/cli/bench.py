"""``tpgen bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

from tpgen.base.errors import TpgenError
from tpgen.planner.plan import Plan
from tpgen.planner.problems import PROBLEMS, SUITES
from tpgen.tools.bench.contenders import DEFAULT_CONTENDERS, select_contenders
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.bench.tables import ReportTables, plot_report
from tpgen.tools.bench.tasks import TASKS
from tpgen.tools.cli import types
from tpgen.tools.cli.options import DTYPE_OPTIONS, ProblemName, add_plan_options, json_option, make_problem_of_plan
from tpgen.tools.cli.terminal import make_console
from tpgen.tools.cli.types import PICTURE, OneOf, OutputFile


@click.command("bench")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=ProblemName(PROBLEMS))
@click.option(
    "--suite", "suites", multiple=True, type=OneOf("suite", SUITES), help="All problems of a suite; repeatable."
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="NAME",
    type=ProblemName(PROBLEMS),
    help=f"NAME: {', '.join(PROBLEMS)}; repeatable.",
)
@add_plan_options
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    metavar="PATTERN",
    help=f"Like 'e3nn/*'; repeatable. Default: {', '.join(DEFAULT_CONTENDERS)}. A name that is not known lists all.",
)
@click.option("--task", "tasks", multiple=True, type=OneOf("task", TASKS), help="Repeatable.")
@click.option("--dtype", type=OneOf("dtype", DTYPE_OPTIONS), default="float32", show_default=True)
@click.option("--device", type=types.device, default="cpu", show_default=True)
@click.option("--rows", type=click.IntRange(min=1), help="Batch; by default that of the problem.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch.")
@click.option("--seconds", type=click.FloatRange(min=0), default=2.0, show_default=True, help="For each task.")
@click.option("--records", "records_file", type=OutputFile(".json"), help="Keep the records in this file.")
@click.option("--plot", "plot_file", type=PICTURE, help="Draw them here: .png, .pdf or .svg.")
@json_option
def bench_command(
    names: tuple[str, ...],
    suites: tuple[str, ...],
    problems: tuple[str, ...],
    described_plan: Plan | None,
    contenders: tuple[str, ...],
    tasks: tuple[str, ...],
    dtype: str,
    device: str,
    records_file: Path | None,
    plot_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure contenders on problems, once they are right.

    Wrong contenders are not timed.  Default: all named problems.  The JSON is the records.
    """
    problems = (*names, *problems)
    described = [make_problem_of_plan(described_plan)] if described_plan is not None else []
    named = select_problems(problems, suites) if problems or suites or not described else ()
    report = run_benchmarks(
        [*named, *described],
        select_contenders(contenders),
        tasks,
        dtype=DTYPE_OPTIONS[dtype],
        device=torch.device(device),
        progress=True,
        **options,
    )
    if as_json:
        click.echo(report.to_json())
    else:
        make_console().print(ReportTables(report))
    if records_file:
        report.save_json(records_file)
        click.echo(f"records: {records_file}", err=True)
    if plot_file:
        plot_report(report, plot_file)
        click.echo(f"plot: {plot_file}", err=True)
    if not any(record.status == "ok" for record in report.records):
        raise TpgenError("no contender was timed: the table says why of each")
