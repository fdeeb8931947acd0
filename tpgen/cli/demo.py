"""``tpgen demo``: a tour in some minutes."""

from __future__ import annotations

from pathlib import Path

import click

from tpgen.cli.options import screen
from tpgen.cli.types import OutputFolder
from tpgen.demo.tour import SHORT, WHOLE, run_tour


@click.command()
@click.option(
    "--out",
    "folder",
    type=OutputFolder(),
    default=Path("out/demo"),
    show_default=True,
    help="Where everything is written.",
)
@click.option("--short", is_flag=True, help="A tour of seconds: a small product, and no compiler.")
def demo(folder: Path, short: bool) -> None:
    """Plan, train, measure, verify and deploy; write it all down.

    Start to read at index.md.
    """
    run_tour(folder, SHORT if short else WHOLE, screen())
