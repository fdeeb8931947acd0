"""``tpgen convert``: what of a network computes with tpgen once it is converted."""

from __future__ import annotations

import click

from tpgen.cli.networks import find_network, network_option
from tpgen.cli.options import json_option
from tpgen.compiler.backends import BACKENDS
from tpgen.conversion import convert as conversion
from tpgen.conversion.report import Conversion
from tpgen.emitter.strategies import STRATEGIES


@click.command()
@network_option
@click.option("--prove", is_flag=True, help="Compare outputs, gradients and second derivatives in float64.")
@click.option("--measure", is_flag=True, help="Time a call, with gradients and without, stock and converted.")
@click.option("--strategy", type=click.Choice([*STRATEGIES, "auto"]), default="auto", show_default=True)
@click.option("--backend", type=click.Choice(list(BACKENDS)), default="eager", show_default=True)
@json_option
def convert(network: str | None, prove: bool, measure: bool, strategy: str, backend: str, as_json: bool) -> None:
    """Convert a network in memory and report what was replaced, what was kept and why."""
    if network is None:
        raise click.UsageError("name a network: --network package.module:function")
    found = find_network(network)
    reports: list[Conversion] = []
    conversion.convert(
        found.module,
        prove=found.inputs if prove else None,
        measure=found.inputs if measure else None,
        report=reports.append,
        strategy=strategy,
        backend=backend,
    )
    click.echo(reports[0].to_json() if as_json else str(reports[0]))
