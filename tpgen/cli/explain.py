"""``tpgen explain``: what every path costs, and what the machine allows; of a network, what every product does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.cli.networks import find_network, refuse_options
from tpgen.cli.options import RUN_NAMES, inspected, json_option, run_options, subject_options
from tpgen.cli.terminal import working
from tpgen.cli.types import OneOf, PictureFile
from tpgen.inspection.costs.explain import explain as explain_plan
from tpgen.inspection.costs.explain_network import explain_network
from tpgen.kernels.cuda.chips import NAMED
from tpgen.planner.problems import Problem


@click.command("explain")
@partial(subject_options, polynomials=True, linears=True)
@run_options
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone; or the network.")
@click.option("--gpu", type=OneOf("GPU", NAMED), help="Predict its kernels too; it need not be there.")
@click.option("--plot", type=PictureFile(), help="Draw it into this file: .png, .pdf or .svg.")
@json_option
def explain_command(
    problem: Problem | None,
    network: str | None,
    rows: int | None,
    measure: bool,
    gpu: str | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what each path costs, and what the machine allows.

    Coefficients come factor by factor, costs path by path, and time against the machine's roofline.  NAME is a
    problem, a polynomial, a linear layer or a network.  Of a network, a table of its products, as they are called.
    """
    found: Any
    if problem is None:
        refuse_options(
            (*RUN_NAMES, "rows", "plot"),
            "a network says itself how its products are written and how many rows they have, and has no picture",
        )
        made = find_network(str(network))
        with working("explain: run the network"):
            found = explain_network(made.module, made.inputs, measure=measure, gpu=gpu)
    else:
        asked = inspected(problem, options)
        with working("explain: time the product" if measure else "explain: ask the machine"):
            found = explain_plan(problem.plan, rows=rows or problem.rows, measure=measure, gpu=gpu, **asked)
        if plot is not None:
            found.plot(plot)
            click.echo(str(plot), err=True)
    click.echo(found.to_json() if as_json else str(found))
