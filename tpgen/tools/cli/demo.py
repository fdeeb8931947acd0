"""``tpgen demo``."""

from __future__ import annotations

from pathlib import Path

import click

from tpgen.tools.cli import types
from tpgen.tools.cli.terminal import make_console
from tpgen.tools.demo.tour import QUICK, SHORT, WHOLE, run_tour

TOURS = {"quick": QUICK, "all": WHOLE, "short": SHORT}


@click.command("demo")
@click.option(
    "--out",
    "folder",
    type=types.folder,
    default=Path("out/demo"),
    show_default=True,
    help="Where everything is written.",
)
@click.option("--quick", "tour", flag_value="quick", default=True, help="The main work, in two minutes: the default.")
@click.option("--all", "tour", flag_value="all", help="Training, laws, benchmarks and a program in C++ too: minutes.")
@click.option("--short", "tour", flag_value="short", help="A little of all: a small product, and no compiler.")
def demo_command(folder: Path, tour: str) -> None:
    """Convert, check and time a network; --all adds the rest.

    Writes a folder; read index.md first.
    """
    run_tour(folder, TOURS[tour], make_console())
