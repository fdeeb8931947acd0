"""``tpgen report``."""

from __future__ import annotations

from typing import Any

import click
from torch import nn

from tpgen.compiler.autotune import choose_strategy
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.problems import Problem
from tpgen.tools.cli.networks import find_network, refuse_options
from tpgen.tools.cli.options import RUN_NAMES, add_run_options, add_subject_options, json_option
from tpgen.tools.cli.terminal import show_progress
from tpgen.tools.cli.types import OneOf
from tpgen.tools.inspection.report.compile_report import compile_report
from tpgen.tools.inspection.report.sections import SECTIONS
from tpgen.tools.inspection.stages.dump import draw_example_arguments
from tpgen.tools.inspection.stages.request import Request


@click.command("report")
@add_subject_options
@add_run_options
@click.option("--rows", type=click.IntRange(min=1), default=10, show_default=True, help="Rows of the example.")
@click.option(
    "--section",
    "sections",
    multiple=True,
    type=OneOf("section", SECTIONS),
    help="Make and show this part alone; repeat for more.",
)
@click.option("--inductor/--no-inductor", default=True, show_default=True, help="Compile with Inductor, which is slow.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch.")
@click.option("--full", is_flag=True, help="Below the verdict, the text of every part.")
@json_option
def report_command(
    problem: Problem | None,
    network: str | None,
    rows: int,
    sections: tuple[str, ...],
    inductor: bool,
    threads: int,
    full: bool,
    as_json: bool,
    **run: Any,
) -> None:
    """Show what torch.compile makes of a product or network.

    NAME is a problem or network.  Products are compiled from outside; --backend decides --strategy auto.
    """
    varied: list[tuple[Any, ...]] | None = None
    if problem is not None:
        module, inputs = _build_product_and_inputs(problem.plan, rows, **run)
    else:
        refuse_options((*RUN_NAMES, "rows"), "a network runs as it is, on the inputs that come with it")
        found = find_network(str(network))
        module, inputs, varied = found.module, list(found.inputs), list(found.varied) or None
    with show_progress("report") as say:
        made = compile_report(
            module, inputs, sections=sections or None, varied=varied, inductor=inductor, threads=threads, progress=say
        )
    click.echo(made.to_json() if as_json else made.full if full else str(made))


def _build_product_and_inputs(plan: Plan, rows: int, **run: Any) -> tuple[nn.Module, list[Any]]:
    request = Request(plan, rows=rows, **run)
    chosen = choose_strategy(plan, request).strategy
    product = TensorProduct.from_plan(plan, internal_weights=False, layout=request.layout, strategy=chosen)
    names = ("x1", "x2", "w") if plan.weight_numel else ("x1", "x2")
    inputs: list[Any] = draw_example_arguments(request, names)
    return product.to(device=request.device, dtype=request.dtype), inputs
