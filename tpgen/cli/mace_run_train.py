"""``tpgen mace-run-train``: MACE's training program with a converted model."""

from __future__ import annotations

import click

from tpgen.conversion.projects.mace_training import run_training


@click.command("mace-run-train", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def mace_run_train(arguments: tuple[str, ...]) -> None:
    """Train a converted MACE with its own program.

    ARGUMENTS are those of mace_run_train.  What it saves is stock: checkpoints and models need no tpgen.
    """
    run_training(arguments)
