"""``tpgen deploy``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tpgen.networks.conversion.convert import convert
from tpgen.networks.deployment.deploy import deploy as deployed
from tpgen.networks.deployment.models import read_model_file
from tpgen.networks.deployment.portable import portable as without_operators
from tpgen.tools.cli import types
from tpgen.tools.cli.networks import NETWORKS, find_network, network_name, network_option
from tpgen.tools.cli.terminal import show_progress

_FILE = click.Path(exists=True, path_type=Path)


@click.command("deploy")
@network_name
@network_option
@click.option("--mace", type=_FILE, help="The file of a model of MACE's.")
@click.option("--nequip", type=_FILE, help="A checkpoint or package of NequIP's.")
@click.option("--sevenn", type=_FILE, help="A checkpoint of SevenNet's.")
@click.option("--out", type=types.folder, required=True, help="A folder that does not exist yet.")
@click.option("--ghosts", "ghost_atoms", is_flag=True, help="Of an Allegro: for pair_allegro of LAMMPS.")
@click.option("--portable", is_flag=True, help="Of torch's operators alone, without kernels: slower.")
def deploy_command(
    name: str | None, network: str | None, out: Path, ghost_atoms: bool, portable: bool, **files: Path | None
) -> None:
    """Write a network and its kernels for other programs.

    The folder needs no tpgen: an AOTInductor package, operators, kernels, a Python loader and a C++ example.  A model
    file is converted, and is a pickle: give files of people you trust.
    """
    given = [(project, file) for project, file in files.items() if file is not None]
    if (name is not None) + (network is not None) + len(given) != 1:
        raise click.UsageError(
            f"name one network: {', '.join(NETWORKS)}, package.module:function, or a file by --mace, --nequip, --sevenn"
        )
    module: Any
    inputs: Any = None
    with show_progress("deploy") as say:
        say("make the network")
        if given:
            module = convert(read_model_file(*given[0]))
        else:
            found = find_network(str(name or network))
            module, inputs = found.module, found.inputs
        folder = deployed(
            without_operators(module) if portable else module, inputs, out, ghosts=ghost_atoms, progress=say
        )
    click.echo(f"{folder}: see README.md there")
