"""``tpgen mace-convert``: a model file of MACE's, converted or restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from tpgen.cli.lammps import to_lammps
from tpgen.cli.options import backend_option, json_option, radial_option, strategy_option
from tpgen.cli.terminal import working
from tpgen.cli.types import OutputFile
from tpgen.conversion.convert import convert, restore
from tpgen.conversion.projects.mace_files import change_file
from tpgen.errors import TpgenError


@click.command("mace-convert")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=OutputFile())
@click.option("--restore", "back", is_flag=True, help="Make a converted model stock again.")
@click.option("--lammps", is_flag=True, help="Write a file for LAMMPS's Python interface (mliap unified).")
@radial_option
@click.option("--force", is_flag=True, help="Replace TARGET where it is there, even if it is SOURCE.")
@strategy_option
@backend_option
@json_option
def mace_convert(
    source: Path,
    target: Path,
    back: bool,
    lammps: bool,
    radial: Literal["net", "spline"],
    force: bool,
    strategy: str,
    backend: str,
    as_json: bool,
) -> None:
    """Convert a model file of MACE's, or restore it.

    SOURCE is read and TARGET written, which must not be there yet.  A model file is a pickle: give those of people
    you trust.
    """
    if lammps:
        to_lammps(source, target, "mace", radial, force)
        return
    if target.exists() and not force:
        raise TpgenError(f"{target} is there already: name another TARGET, or replace it by --force")
    change = restore if back else partial(convert, radial=radial, strategy=strategy, backend=backend)
    with working("mace-convert: read the model, change it, write the file"):
        report = change_file(source, target, change)
    click.echo(report.to_json() if as_json else str(report))
