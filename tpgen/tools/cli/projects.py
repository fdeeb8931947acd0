"""``tpgen convert``, ``lammps``, ``mace-convert`` and ``mace-run-train``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen._version import __version__
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import convert, restore
from tpgen.networks.conversion.projects.lammps import PROJECTS, write_for_lammps
from tpgen.networks.conversion.projects.mace_files import change_file
from tpgen.networks.conversion.projects.mace_training import run_training
from tpgen.networks.conversion.report import Conversion
from tpgen.tools.cli.networks import Network, add_network_argument
from tpgen.tools.cli.options import backend_option, json_option, radial_option, strategy_option
from tpgen.tools.cli.terminal import show_progress
from tpgen.tools.cli.types import OneOf, OutputFile


@click.command("convert")
@add_network_argument
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
    only: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a network in memory and report what changed."""
    reports: list[Conversion] = []
    steps = {"convert": True, "prove": prove, "measure": measure}
    with show_progress(", ".join(step for step, asked in steps.items() if asked)):
        convert(
            network.module,
            only=only or None,
            prove=network.inputs if prove else None,
            measure=network.inputs if measure else None,
            report=reports.append,
            **options,
        )
    click.echo(reports[0].to_json() if as_json else str(reports[0]))


@click.command("lammps")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=OutputFile())
@click.option("--project", type=OneOf("project", [*PROJECTS]), help="Whose model it is, where several are installed.")
@radial_option
@click.option("--force", is_flag=True, help="Replace TARGET where it is there.")
def lammps_command(source: Path, target: Path, project: str | None, radial: str, force: bool) -> None:
    """Write a converted model for LAMMPS.

    TARGET is for pair_style mliap unified.  SOURCE, a MACE model, a NequIP checkpoint or package, or a SevenNet
    checkpoint, is a pickle: give files of people you trust.
    """
    _write_lammps_model_with_progress(source, target, project, radial, force)


def _refuse_existing_target(target: Path, force: bool) -> None:
    if target.exists() and not force:
        raise TpgenError(f"{target} is there already: name another TARGET, or replace it by --force")


def _write_lammps_model_with_progress(
    source: Path, target: Path, project: str | None, radial: str, force: bool
) -> None:
    _refuse_existing_target(target, force)
    with show_progress("lammps: read the model, convert it, write the file"):
        write_for_lammps(source, target, project, radial=radial)
    click.echo(f"{target}: for pair_style mliap unified, where tpgen {__version__} is installed")


@click.command("mace-convert")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=OutputFile())
@click.option("--restore", "to_stock", is_flag=True, help="Make a converted model stock again.")
@click.option("--lammps", is_flag=True, help="Write a file for LAMMPS's Python interface (mliap unified).")
@radial_option
@click.option("--force", is_flag=True, help="Replace TARGET where it is there, even if it is SOURCE.")
@strategy_option
@backend_option
@json_option
def mace_convert_command(
    source: Path,
    target: Path,
    to_stock: bool,
    lammps: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a model file of MACE's, or restore it.

    TARGET must not exist yet.  SOURCE is a pickle: give files of people you trust.
    """
    if lammps:
        _write_lammps_model_with_progress(source, target, "mace", options["radial"], force)
        return
    _refuse_existing_target(target, force)
    change = restore if to_stock else partial(convert, **options)
    with show_progress("mace-convert: read the model, change it, write the file"):
        report = change_file(source, target, change)
    click.echo(report.to_json() if as_json else str(report))


@click.command("mace-run-train", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def mace_run_train_command(arguments: tuple[str, ...]) -> None:
    """Train a converted MACE with its own program.

    ARGUMENTS are those of mace_run_train.  Saved checkpoints and models need no tpgen.
    """
    run_training(arguments)
