"""``tpgen plan``."""

from __future__ import annotations

from functools import partial

import click

from tpgen.planner.problems import Problem
from tpgen.tools.cli.options import json_option, product_options


@click.command("plan")
@partial(product_options, polynomials=True)
@json_option
def plan_command(problem: Problem, as_json: bool) -> None:
    """Show what a product computes: paths, weights, costs.

    The JSON is a plan that --plan reads back.
    """
    click.echo(problem.plan.to_json() if as_json else str(problem.plan))
