"""``tpgen explore``: a page that shows every stage of a product, and what of it belongs to which path."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.cli.options import NamedFirst, product_options, run_options
from tpgen.inspection.explorer.page import write_explorer
from tpgen.planner.problems import Problem


@click.command(cls=NamedFirst)
@partial(product_options, out_is_folder=True)
@run_options
@click.option(
    "--out",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("explorer.html"),
    show_default=True,
    help="The page.",
)
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone.")
@click.option("--inductor", is_flag=True, help="Show what Inductor generates too; it compiles for seconds.")
def explore(problem: Problem, file: Path, rows: int | None, measure: bool, inductor: bool, **options: Any) -> None:
    """Write one HTML file: paths, and every stage from the plan to C++.

    Choose a path, or a line, and see what belongs to it everywhere.  The file needs no network.  `tpgen explore NAME`
    takes the name of a problem.
    """
    write_explorer(problem.plan, file, rows=rows or problem.rows, measure=measure, inductor=inductor, **options)
    click.echo(str(file))
