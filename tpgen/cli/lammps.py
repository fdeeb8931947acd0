"""``tpgen lammps``: a model file of MACE's, NequIP's or SevenNet's becomes one for LAMMPS's Python interface."""

from __future__ import annotations

from pathlib import Path

import click

from tpgen._version import __version__
from tpgen.cli.options import radial_option
from tpgen.cli.terminal import working
from tpgen.cli.types import OneOf, OutputFile
from tpgen.conversion.projects.lammps import PROJECTS, write_for_lammps
from tpgen.errors import TpgenError


@click.command("lammps")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=OutputFile())
@click.option("--project", type=OneOf("project", [*PROJECTS]), help="Whose model it is, where several are installed.")
@radial_option
@click.option("--force", is_flag=True, help="Replace TARGET where it is there.")
def lammps(source: Path, target: Path, project: str | None, radial: str, force: bool) -> None:
    """Write a converted model for LAMMPS.

    TARGET is for pair_style mliap unified.  SOURCE is a model of MACE's, a checkpoint or package of NequIP's, or a
    checkpoint of SevenNet's.  It is a pickle: give those of people you trust.
    """
    to_lammps(source, target, project, radial, force)


def to_lammps(source: Path, target: Path, project: str | None, radial: str, force: bool) -> None:
    """Write the file, where nothing is replaced unasked, and say for what it is."""
    if target.exists() and not force:
        raise TpgenError(f"{target} is there already: name another TARGET, or replace it by --force")
    with working("lammps: read the model, convert it, write the file"):
        write_for_lammps(source, target, project, radial=radial)
    click.echo(f"{target}: for pair_style mliap unified, where tpgen {__version__} is installed")
