"""``tpgen dump``: the text of stages, to the screen or into files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from tpgen.cli.options import json_option, product_options, run_options
from tpgen.inspection.stages.dump import STAGES, dump_files
from tpgen.planner.problems import Problem


@click.command()
@partial(product_options, out_is_folder=True)
@run_options
@click.option("--stage", "stages", multiple=True, required=True, metavar="STAGE", help=f"One of {', '.join(STAGES)}.")
@click.option(
    "--direction",
    "directions",
    multiple=True,
    default=("forward",),
    metavar="DIRECTION",
    help="forward (default), right, grad_x1, grad_x2, grad_w, or all; repeat for more.",
)
@click.option("--rows", type=click.IntRange(min=1), default=32, show_default=True, help="Batch Inductor compiles for.")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write files into this folder.")
@json_option
def dump(
    problem: Problem,
    stages: tuple[str, ...],
    directions: tuple[str, ...],
    folder: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what is generated at each stage, from the plan to Inductor's output.

    The JSON is an object of texts by file name.
    """
    files = dump_files(problem.plan, stages, directions, **options)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n", encoding="utf-8")
            click.echo(str(folder / name), err=as_json)
    if as_json:
        click.echo(json.dumps(files))
    elif folder is None:
        for name, text in files.items():
            click.echo(f"--- {name}\n{text}\n" if len(files) > 1 else text)
