"""``tpgen lammps``, ``mace-convert`` and ``mace-run-train``: model files of projects, and the training of MACE."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from tpgen._version import __version__
from tpgen.cli.options import backend_option, json_option, radial_option, strategy_option
from tpgen.cli.terminal import working
from tpgen.cli.types import OneOf, OutputFile
from tpgen.conversion.convert import convert, restore
from tpgen.conversion.projects.lammps import PROJECTS, write_for_lammps
from tpgen.conversion.projects.mace_files import change_file
from tpgen.conversion.projects.mace_training import run_training
from tpgen.errors import TpgenError


@click.command("lammps")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=OutputFile())
@click.option("--project", type=OneOf("project", [*PROJECTS]), help="Whose model it is, where several are installed.")
@radial_option
@click.option("--force", is_flag=True, help="Replace TARGET where it is there.")
def lammps_command(source: Path, target: Path, project: str | None, radial: str, force: bool) -> None:
    """Write a converted model for LAMMPS.

    TARGET is for pair_style mliap unified.  SOURCE is a model of MACE's, a checkpoint or package of NequIP's, or a
    checkpoint of SevenNet's.  It is a pickle: give those of people you trust.
    """
    to_lammps(source, target, project, radial, force)


def _check_new(target: Path, force: bool) -> None:
    if target.exists() and not force:
        raise TpgenError(f"{target} is there already: name another TARGET, or replace it by --force")


def to_lammps(source: Path, target: Path, project: str | None, radial: str, force: bool) -> None:
    """Write the file, and say for what it is."""
    _check_new(target, force)
    with working("lammps: read the model, convert it, write the file"):
        write_for_lammps(source, target, project, radial=radial)
    click.echo(f"{target}: for pair_style mliap unified, where tpgen {__version__} is installed")


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
def mace_convert_command(
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
    _check_new(target, force)
    change = restore if back else partial(convert, radial=radial, strategy=strategy, backend=backend)
    with working("mace-convert: read the model, change it, write the file"):
        report = change_file(source, target, change)
    click.echo(report.to_json() if as_json else str(report))


@click.command("mace-run-train", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def mace_run_train_command(arguments: tuple[str, ...]) -> None:
    """Train a converted MACE with its own program.

    ARGUMENTS are those of mace_run_train.  What it saves is stock: checkpoints and models need no tpgen.
    """
    run_training(arguments)
