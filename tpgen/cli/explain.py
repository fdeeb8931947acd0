"""``tpgen explain``: what every path costs, and what the machine allows; of a network, what every product does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.cli.networks import find_network, network_option
from tpgen.cli.options import NamedFirst, json_option, product_options, run_options
from tpgen.inspection.explain import Explanation
from tpgen.inspection.explain import explain as explain_product
from tpgen.inspection.explain_network import NetworkExplanation, explain_network
from tpgen.planner.problems import Problem


@click.command(cls=NamedFirst)
@partial(product_options, instead="network")
@run_options
@network_option
@click.option("--rows", type=click.IntRange(min=1), help="The batch that totals are for.  [default: the problem's]")
@click.option("--measure", is_flag=True, help="Run the product, and every path alone; or the network.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this file.")
@json_option
def explain(
    problem: Problem | None,
    network: str | None,
    rows: int | None,
    measure: bool,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Explain a product: coefficients factor by factor, costs, strategy, and time against the machine's ceilings.

    `tpgen explain NAME` takes the name of a problem.  Of a network, a table of its products, as they are called.
    """
    found: Explanation | NetworkExplanation
    if problem is None:
        found = _network(str(network), measure, rows, plot)
    else:
        found = explain_product(problem.plan, rows=rows or problem.rows, measure=measure, **options)
        _draw(found, plot)
    click.echo(found.to_json() if as_json else str(found))


def _draw(found: Explanation, plot: Path | None) -> None:
    if plot is not None:
        found.plot(plot)
        click.echo(str(plot), err=True)


def _network(name: str, measure: bool, rows: int | None, plot: Path | None) -> NetworkExplanation:
    if rows is not None or plot is not None:
        raise click.UsageError(
            "a network says itself how many rows its products have, and has no picture: leave out --rows and --plot"
        )
    found = find_network(name)
    return explain_network(found.module, found.inputs, measure=measure)
