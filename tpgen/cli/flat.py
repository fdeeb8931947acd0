"""``tpgen flat``: what inlining the products of a network into one graph brings."""

from __future__ import annotations

import click

from tpgen.cli.networks import NETWORKS, find_network
from tpgen.compiler.backends import BACKENDS
from tpgen.emitter.strategies import STRATEGIES
from tpgen.inspection.costs.flat_times import time_flat


@click.command()
@click.argument("network")
@click.option("--strategy", type=click.Choice(list(STRATEGIES)), default="einsum", show_default=True)
@click.option("--backend", type=click.Choice(list(BACKENDS)), default="eager", show_default=True)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=30, show_default=True, help="Calls of each for each task."
)
def flat(network: str, strategy: str, backend: str, rounds: int) -> None:
    """Time a network as it is, with its products inlined, and flat: what they have in common computed once."""
    found = find_network(network)
    times = time_flat(
        found.module, found.inputs, strategy=strategy, backend=backend, functions=found.functions, rounds=rounds
    )
    click.echo(str(times))


flat.epilog = (
    f"NETWORK is {' or '.join(NETWORKS)}, or package.module:function: a module, a list of its arguments and, maybe, "
    "a list of functions that stay single nodes, such as a search for neighbours."
)
