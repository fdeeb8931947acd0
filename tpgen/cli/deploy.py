"""``tpgen deploy``: a network and its kernels for programs without tpgen."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from tpgen.cli.networks import Network, network_argument
from tpgen.cli.types import OutputFolder
from tpgen.deployment.deploy import deploy as deployed
from tpgen.deployment.portable import portable as without_operators


@click.command()
@network_argument
@click.option("--out", type=OutputFolder(), required=True, help="A folder that does not exist yet.")
@click.option("--portable", is_flag=True, help="Of torch's operators alone, without kernels: slower.")
def deploy(network: Network, out: Path, portable: bool) -> None:
    """Write a network and its kernels for other programs.

    They need no tpgen.  The folder holds a package of AOTInductor, its operators, their kernels, a loader for Python
    and an example in C++.
    """
    module = without_operators(network.module) if portable else network.module
    with Console(stderr=True).status("deploy"):
        folder = deployed(module, network.inputs, out)
    click.echo(f"{folder}: see README.md there")
