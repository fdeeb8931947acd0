"""``tpgen explain``: what every path costs, and what the machine allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tpgen.cli.options import NamedFirst, json_option, product_options, run_options
from tpgen.inspection.explain import explain as explain_product
from tpgen.planner.problems import Problem


@click.command(cls=NamedFirst)
@product_options
@run_options
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this file.")
@json_option
def explain(
    problem: Problem, rows: int | None, measure: bool, plot: Path | None, as_json: bool, **options: Any
) -> None:
    """Explain a product: coefficients factor by factor, costs, strategy, and time against the machine's ceilings.

    `tpgen explain NAME` takes the name of a problem.
    """
    found = explain_product(problem.plan, rows=rows or problem.rows, measure=measure, **options)
    if plot is not None:
        found.plot(plot)
        click.echo(str(plot), err=True)
    click.echo(found.to_json() if as_json else str(found))
