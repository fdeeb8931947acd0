"""``tpgen tune``: measure the strategies for a plan and remember the fastest."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from tpgen.cli.options import inspected, json_option, product_options, run_options
from tpgen.cli.terminal import working
from tpgen.inspection.costs.measured import tune as tune_plan
from tpgen.inspection.stages.calls import request_for
from tpgen.kernels.build.cache import check_lasting
from tpgen.planner.problems import Problem


@click.command("tune")
@partial(product_options, polynomials=True, linears=True)
@run_options
@click.option("--rows", type=click.IntRange(min=1), help="Rows of the batch; those of the problem by default.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="How long to measure.",
)
@json_option
def tune_command(problem: Problem, rows: int | None, seconds: float, as_json: bool, **options: Any) -> None:
    """Time every strategy; "auto" then takes the fastest.

    NAME is a problem, a polynomial or a linear layer.  What was found holds for it on this machine.
    `tpgen cache clear` forgets.
    """
    check_lasting()
    request = request_for(problem.plan, rows=rows or problem.rows, **inspected(problem, options))
    with working("tune") as say:
        tuning = tune_plan(request, seconds, say)
    click.echo(json.dumps(asdict(tuning)) if as_json else f"{tuning}\nauto takes {tuning.fastest} from now on")
