"""``tpgen explain`` and ``tpgen tune``."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.kernels.build.cache import check_cache_is_lasting
from tpgen.planner.problems import Problem
from tpgen.tools.cli.networks import find_network, refuse_options
from tpgen.tools.cli.options import (
    RUN_NAMES,
    add_run_options,
    add_subject_options,
    collect_inspection_options,
    json_option,
    product_options,
)
from tpgen.tools.cli.terminal import show_progress
from tpgen.tools.cli.types import PICTURE
from tpgen.tools.inspection.costs.explain import explain as explain_plan
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.measured import tune as tune_plan
from tpgen.tools.inspection.stages.calls import make_request


@click.command("explain")
@partial(add_subject_options, polynomials=True, linears=True)
@add_run_options
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone; or the network.")
@click.option("--plot", type=PICTURE, help="Draw it into this file: .png, .pdf or .svg.")
@json_option
def explain_command(
    problem: Problem | None,
    network: str | None,
    rows: int | None,
    measure: bool,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what each path costs, and what the machine allows.

    NAME is a problem, polynomial, linear layer or network (a table of products as called).
    """
    found: Any
    if problem is None:
        refuse_options(
            (*RUN_NAMES, "rows", "plot"),
            "a network says itself how its products are written and how many rows they have, and has no picture",
        )
        made = find_network(str(network))
        with show_progress("explain: run the network"):
            found = explain_network(made.module, made.inputs, measure=measure)
    else:
        asked = collect_inspection_options(problem, options)
        with show_progress("explain: time the product" if measure else "explain: ask the machine"):
            found = explain_plan(problem.plan, rows=rows or problem.rows, measure=measure, **asked)
        if plot is not None:
            found.plot(plot)
            click.echo(str(plot), err=True)
    click.echo(found.to_json() if as_json else str(found))


@click.command("tune")
@partial(product_options, polynomials=True, linears=True)
@add_run_options
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

    NAME is a problem, polynomial or linear layer.  The choice holds on this machine until `tpgen cache clear`.
    """
    check_cache_is_lasting()
    request = make_request(problem.plan, rows=rows or problem.rows, **collect_inspection_options(problem, options))
    with show_progress("tune") as say:
        tuning = tune_plan(request, seconds, say)
    click.echo(json.dumps(asdict(tuning)) if as_json else f"{tuning}\nauto takes {tuning.fastest} from now on")
