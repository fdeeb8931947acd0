"""Measure all named problems and write docs/benchmarks.md: `python -m benchmarks.report`.

Each problem is saved when it is measured; a second run measures only what is missing, and `--write-only` measures
nothing.  Records of other machines (`tpgen bench --records`) are added by naming the files.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import torch
from rich.console import Console

from benchmarks.page import Places, write_page
from tpgen.base.errors import TpgenError
from tpgen.planner.problems import SUITES
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.bench.tasks import BOUNDS, TASKS

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in BOUNDS}
# Compiling costs many times what measuring does: a path by itself is measured without it.
FULL = ("e3nn/script", "e3nn/eager", "e3nn/inductor", "loop/eager", "tpgen-*/eager", "tpgen-auto/*", "cuequivariance/*")
WITHOUT_COMPILE = (
    "e3nn/script",
    "e3nn/eager",
    "loop/eager",
    "tpgen-auto/eager",
    "tpgen-auto/script",
    "cuequivariance/*",
)
PATTERNS = {"roofline": WITHOUT_COMPILE, "channelwise": (*FULL, "tpgen-unrolled/inductor")}


def measure(folder: Path, options: dict, problems: tuple, patterns: tuple[str, ...], minutes: float) -> None:
    """Measure what the folder does not hold yet, problem by problem, until the time is over."""
    console, start = Console(stderr=True), time.monotonic()
    stem = f"{options['device']}-{str(options['dtype']).removeprefix('torch.')}"
    for problem in problems:
        target = folder / f"{stem}-{problem.name}.json"
        if target.exists():
            console.print(f"{problem.name}: measured before, {target}")
            continue
        if time.monotonic() - start > 60 * minutes:
            console.print(f"{minutes:g} minutes are over: run again to go on with {problem.name}")
            return
        contenders = select_contenders(patterns or PATTERNS.get(problem.suite, FULL))
        run_benchmarks([problem], contenders, threads=None, progress=True, **options).save_json(target)


@click.command(help=__doc__)
@click.argument("records", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--problem", "names", multiple=True, help="Measure this problem only; may be repeated.")
@click.option("--suite", "suites", multiple=True, type=click.Choice(SUITES), help="Measure this suite only.")
@click.option("--contender", "patterns", multiple=True, help="Measure these only; * stands for anything.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), help="Measure this task only.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Measuring time of one task of one problem.")
@click.option("--minutes", default=15.0, show_default=True, help="Begin no further problem after this time.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=ROOT / "out" / "benchmarks", help="Where records go."
)
@click.option("--page", "page_to", type=click.Path(path_type=Path), default=ROOT / "docs" / "benchmarks.md")
@click.option("--fresh", is_flag=True, help="Forget the records of earlier runs.")
@click.option("--write-only", is_flag=True, help="Measure nothing: write the page from the records there are.")
def main(
    records: tuple[Path, ...],
    names: tuple[str, ...],
    suites: tuple[str, ...],
    patterns: tuple[str, ...],
    tasks: tuple[str, ...],
    dtype: str,
    device: str,
    seconds: float,
    minutes: float,
    folder: Path,
    page_to: Path,
    fresh: bool,
    write_only: bool,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for old in folder.glob("*.json"):
            old.unlink()
    try:
        if not write_only:
            options = {"tasks": tasks, "dtype": DTYPES[dtype], "device": device, "seconds": seconds}
            measure(folder, options, select_problems(names, suites), patterns, minutes)
        count = write_page(Places(folder, page_to), records)
    except TpgenError as error:
        raise click.ClickException(str(error)) from None
    Console().print(f"wrote {page_to} from {count} records")


if __name__ == "__main__":
    main()
