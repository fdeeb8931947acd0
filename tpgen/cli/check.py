"""``tpgen check``: does a product obey its laws?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tpgen.cli.networks import refuse_options
from tpgen.cli.options import OF_POLYNOMIALS, json_option, product_options, run_options
from tpgen.compiler.autotune import choose_polynomial_strategy
from tpgen.inspection.laws.check import CheckReport, check_product
from tpgen.inspection.laws.polynomial import check_polynomial
from tpgen.planner.polynomial_problems import PolynomialProblem
from tpgen.planner.problems import Problem


@click.command()
@partial(product_options, polynomials=True)
@run_options
@click.option("--rows", type=click.IntRange(min=1), default=8, show_default=True, help="Rows of the random batch.")
@json_option
@click.pass_context
def check(ctx: click.Context, problem: Problem | PolynomialProblem, as_json: bool, **options: Any) -> None:
    """Check results, equivariance and gradients of a product.

    Results are those of e3nn and of the slow definition, and linear.  Gradients are those of first and second
    order.  Exit code 1 where a comparison fails.
    """
    with Console(stderr=True).status("check") as status:
        report = _report(problem, progress=lambda law: status.update(f"check: {law}"), **options)
    if as_json:
        click.echo(report.to_json())
    else:
        text = Text(str(report))
        text.highlight_words(["passed"], "green")
        text.highlight_words(["failed"], "bold red")
        text.highlight_words(["not compared"], "yellow")
        Console().print(text, soft_wrap=True)
    ctx.exit(0 if report.passed else 1)


def _report(problem: Problem | PolynomialProblem, **options: Any) -> CheckReport:
    if isinstance(problem, Problem):
        return check_product(problem.plan, **options)
    refuse_options(("layout", "backend", "device"), OF_POLYNOMIALS)
    strategy = choose_polynomial_strategy(problem.plan, options["strategy"], options["dtype"], "cpu").strategy
    own = {name: options[name] for name in ("dtype", "rows", "progress")}
    return check_polynomial(problem.plan, strategy, **own, elements=problem.elements)
