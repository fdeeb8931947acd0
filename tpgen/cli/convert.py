"""``tpgen convert``: what of a network computes with tpgen once it is converted."""

from __future__ import annotations

from typing import Literal

import click

from tpgen.cli.networks import Network, network_argument
from tpgen.cli.options import backend_option, json_option, radial_option, strategy_option
from tpgen.cli.terminal import working
from tpgen.conversion import convert as conversion
from tpgen.conversion.report import Conversion


@click.command("convert")
@network_argument
@click.option("--prove", is_flag=True, help="Compare outputs, gradients and second derivatives in float64.")
@click.option("--measure", is_flag=True, help="Time a call, with gradients and without, stock and converted.")
@click.option("--keep", multiple=True, metavar="NAME", help="Leave a module as it is, or a class: `e3nn.Linear`.")
@click.option("--only", multiple=True, metavar="NAME", help="Convert this module or class alone; repeat it for more.")
@radial_option
@strategy_option
@backend_option
@json_option
def convert_command(
    network: Network,
    prove: bool,
    measure: bool,
    keep: tuple[str, ...],
    only: tuple[str, ...],
    radial: Literal["net", "spline"],
    strategy: str,
    backend: str,
    as_json: bool,
) -> None:
    """Convert a network in memory and report what changed.

    What was replaced is listed, what was kept, and why.
    """
    reports: list[Conversion] = []
    steps = {"convert": True, "prove": prove, "measure": measure}
    with working(", ".join(step for step, asked in steps.items() if asked)):
        conversion.convert(
            network.module,
            keep=keep,
            only=only or None,
            prove=network.inputs if prove else None,
            measure=network.inputs if measure else None,
            report=reports.append,
            radial=radial,
            strategy=strategy,
            backend=backend,
        )
    click.echo(reports[0].to_json() if as_json else str(reports[0]))
