"""``tpgen explore``: a page that shows every stage of a product, and what of it belongs to which path."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from tpgen.cli.networks import find_network, refuse_options
from tpgen.cli.options import RUN_NAMES, run_options, subject_options
from tpgen.cli.types import OutputFile
from tpgen.inspection.costs.explain_network import explain_network
from tpgen.inspection.explorer.page import write_explorer
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.problems import Problem


@click.command()
@subject_options
@run_options
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
@click.option("--product", metavar="MODULE", help="Of a network: which product.  [default: the one with most FLOPs]")
def explore(
    problem: Problem | None,
    network: str | None,
    product: str | None,
    file: Path,
    rows: int | None,
    measure: bool,
    inductor: bool,
    **options: Any,
) -> None:
    """Write every stage of a product onto one HTML page.

    Choose a path, or a line, and see what belongs to it everywhere.  The file needs no internet.  NAME is a problem,
    or a network, of which --product says the product.
    """
    subject: TensorProduct | Plan
    if problem is None:
        refuse_options(RUN_NAMES, "a product of a network is written and run as the network has it")
        subject, usual, nodes = _product(str(network), product)
        options = {} if nodes is None else {"nodes": nodes}
    else:
        refuse_options(["product"], "--product is for a product of a network (--network)")
        subject, usual = problem.plan, problem.rows
    write_explorer(subject, file, rows=rows or usual, measure=measure, inductor=inductor, **options)
    click.echo(str(file))


def _product(network: str, name: str | None) -> tuple[TensorProduct, int, int | None]:
    """A product of a network, and the rows it is called with; of a convolution, with how many nodes."""
    made = find_network(network)
    found = explain_network(made.module, made.inputs)
    chosen = found.largest.module if name is None else name
    explained = found[chosen]
    return cast(TensorProduct, made.module.get_submodule(chosen)), explained.rows, explained.nodes
