"""``tpgen check``: does a product obey its laws?"""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tpgen.cli.options import json_option, product_options, run_options
from tpgen.inspection.laws.check import check_product
from tpgen.planner.problems import Problem


@click.command()
@product_options
@run_options
@click.option("--rows", type=click.IntRange(min=1), default=8, show_default=True, help="Rows of the random batch.")
@json_option
@click.pass_context
def check(ctx: click.Context, problem: Problem, as_json: bool, **options: Any) -> None:
    """Check results, equivariance and gradients of a product.

    Results are those of e3nn and of the slow definition, and linear.  Gradients are those of first and second
    order.  Exit code 1 where a comparison fails.
    """
    with Console(stderr=True).status("check") as status:
        report = check_product(problem.plan, **options, progress=lambda law: status.update(f"check: {law}"))
    if as_json:
        click.echo(report.to_json())
    else:
        text = Text(str(report))
        text.highlight_words(["passed"], "green")
        text.highlight_words(["failed"], "bold red")
        text.highlight_words(["not compared"], "yellow")
        Console().print(text, soft_wrap=True)
    ctx.exit(0 if report.passed else 1)
