"""``tpgen explore``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.planner.problems import Problem
from tpgen.tools.cli.networks import find_network, refuse_options
from tpgen.tools.cli.options import RUN_NAMES, add_run_options, add_subject_options, collect_inspection_options
from tpgen.tools.cli.terminal import show_progress
from tpgen.tools.cli.types import OutputFile
from tpgen.tools.inspection.explorer.page import write_explorer, write_network_explorer


@click.command("explore")
@partial(add_subject_options, polynomials=True)
@add_run_options
@click.option(
    "--out",
    "file",
    type=OutputFile(".html", ".htm", inside="explorer.html"),
    default=Path("explorer.html"),
    show_default=True,
    help="The page, or a folder for it.",
)
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone.")
@click.option("--inductor", is_flag=True, help="Show what Inductor generates too; it compiles for seconds.")
@click.option("--product", metavar="MODULE", help="Of a network: this product alone.  [default: all that it calls]")
def explore_command(
    problem: Problem | None,
    network: str | None,
    product: str | None,
    file: Path,
    rows: int | None,
    **options: Any,
) -> None:
    """Write every stage of a product onto one HTML page.

    Choose a path or line to see its lines in every stage.  The file needs no internet.  NAME is a problem, polynomial
    or network (all products called).
    """
    shown = {name: options.pop(name) for name in ("measure", "inductor")}
    if problem is None:
        refuse_options(RUN_NAMES, "a product of a network is written and run as the network has it")
        made = find_network(str(network))
        wanted = () if product is None else (product,)
        with show_progress("explore: write every stage of each product"):
            write_network_explorer(made.module, made.inputs, file, products=wanted, rows=rows, **shown)
    else:
        refuse_options(["product"], "--product is for a product of a network (--network)")
        asked = collect_inspection_options(problem, options)
        with show_progress("explore: write every stage"):
            write_explorer(problem.plan, file, rows=rows or problem.rows, **shown, **asked)
    click.echo(str(file))
