"""``tpgen tune``: measure the strategies for a product and remember the fastest."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from tpgen.cli.options import json_option, product_options, run_options
from tpgen.cli.terminal import working
from tpgen.compiler.config import Config
from tpgen.compiler.tuning import tune as tune_product
from tpgen.kernels.build.cache import check_lasting
from tpgen.planner.problems import Problem


@click.command()
@product_options
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
def tune(problem: Problem, rows: int | None, seconds: float, as_json: bool, **options: Any) -> None:
    """Time every strategy; "auto" then takes the fastest.

    What was found holds for this product on this machine.  `tpgen cache clear` forgets.
    """
    check_lasting()
    with working("tune") as say:
        tuning = tune_product(problem.plan, Config(**options), rows or problem.rows, seconds, say)
    click.echo(json.dumps(asdict(tuning)) if as_json else f"{tuning}\nauto takes {tuning.fastest} from now on")
