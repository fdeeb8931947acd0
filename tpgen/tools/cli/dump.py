"""``tpgen dump``."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import pygments
from pygments.formatters import TerminalFormatter
from pygments.lexers import get_lexer_for_filename

from tpgen.emitter.emit import DIRECTIONS
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS
from tpgen.planner.problems import Problem
from tpgen.tools.cli import types
from tpgen.tools.cli.options import add_run_options, collect_inspection_options, json_option, product_options
from tpgen.tools.cli.types import OneOf, names_file
from tpgen.tools.inspection.stages.dump import STAGES, choose_default_stage, dump_files
from tpgen.tools.inspection.stages.request import JOINT


@click.command("dump")
@partial(product_options, polynomials=True)
@add_run_options
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=OneOf("stage", STAGES),
    help="Repeat for more.  [default: cpp of a kernel, code of a graph]",
)
@click.option(
    "--direction",
    "directions",
    multiple=True,
    default=("forward",),
    type=OneOf("direction", dict.fromkeys([*DIRECTIONS, *JOINT, *POLYNOMIAL_CALLS, "all"])),
    help="Repeat for more; backward and conv_backward are those of kernels, second is of polynomials.  "
    "[default: forward]",
)
@click.option("--rows", type=click.IntRange(min=1), default=32, show_default=True, help="Batch Inductor compiles for.")
@click.option(
    "--whole",
    "with_prelude",
    is_flag=True,
    help="On a terminal: with the prelude of C++, which is the same for all kernels.",
)
@click.option(
    "--out", "out_path", type=types.path, help="Write into this folder; or one text into a file, like kernel.cpp."
)
@json_option
def dump_command(
    problem: Problem,
    stages: tuple[str, ...],
    directions: tuple[str, ...],
    with_prelude: bool,
    out_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print what is generated at a stage, from plan to C++.

    The JSON has texts by file name.
    """
    if (
        out_path is not None
        and names_file(out_path)
        and (len(stages) > 1 or len(directions) > 1 or "all" in directions)
    ):
        raise click.UsageError(f"{str(out_path)!r} is one file, and these are several texts: name a folder")
    asked = collect_inspection_options(problem, options)
    chosen = stages or (choose_default_stage(problem.plan, directions[0], **asked),)
    files = dump_files(problem.plan, chosen, directions, **asked)
    if out_path is not None:
        for name, text in files.items():
            file = out_path if names_file(out_path) else out_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n", encoding="utf-8")
            click.echo(str(file), err=as_json)
    if as_json:
        click.echo(json.dumps(files))
    elif out_path is None:
        for name, text in files.items():
            shown = _fold_and_colour_for_terminal(name, text, with_prelude)
            click.echo(f"--- {name}\n{shown}\n" if len(files) > 1 else shown)


# from the first line of code to the first function that is generated: see tpgen.kernels.cpp.prelude
_PRELUDE = re.compile(
    r'^typedef .*?(?=^(?:// path |static void (?:tabulate|row|tile|finish|path_)|extern "C" __attr))', re.M | re.S
)


def _fold_and_colour_for_terminal(name: str, text: str, with_prelude: bool) -> str:
    if not sys.stdout.isatty():
        return text
    shown = text if with_prelude or not name.endswith(".cpp") else fold_prelude(text)
    if os.environ.get("NO_COLOR"):
        return shown
    return pygments.highlight(shown, get_lexer_for_filename(name), TerminalFormatter()).rstrip("\n")


def fold_prelude(text: str) -> str:
    """Replace the prelude of generated C++ by a note.

    >>> print(fold_prelude("// channel schedule\\ntypedef float real;\\nint a;\\n// path 0\\nb();"))
    // channel schedule
    // ... 2 lines of prelude, the same for every kernel: --whole shows them
    // path 0
    b();
    """
    found = _PRELUDE.search(text)
    if found is None:
        return text
    count = found[0].count("\n")
    note = f"// ... {count} lines of prelude, the same for every kernel: --whole shows them\n"
    return text[: found.start()] + note + text[found.end() :]
