"""``tpgen flat``: what inlining the products of a network into one graph brings."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from tpgen.cli.networks import Network, network_argument
from tpgen.cli.options import backend_option, json_option
from tpgen.cli.terminal import working
from tpgen.cli.types import OneOf
from tpgen.emitter.strategies import STRATEGIES
from tpgen.inspection.costs.flat_times import time_flat


@click.command("flat")
@network_argument
@click.option("--strategy", type=OneOf("strategy", STRATEGIES), default="einsum", show_default=True)
@backend_option
@click.option(
    "--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Calls of each for each task."
)
@json_option
def flat_command(network: Network, as_json: bool, **options: Any) -> None:
    """Time a network as it is, inlined, and flat.

    Inlined, its products stand in one graph; flat, what they have in common is computed once.
    """
    with working("flat: write the graphs, time each"):
        times = time_flat(network.module, network.inputs, functions=network.functions, **options)
    click.echo(json.dumps(asdict(times)) if as_json else str(times))
