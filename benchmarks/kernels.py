"""Measure what the generated CPU kernels reach and write docs/benchmarks.md: `python -m benchmarks.kernels`.

Each row is saved when it is measured; a second run measures only what is missing, `--fresh` measures again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from benchmarks.goals import load_outcomes, measure_goals, select_goals
from benchmarks.kernel_goals import GOALS
from benchmarks.page import Places, goal_cells, write_page
from tpgen.base.errors import TpgenError

ROOT = Path(__file__).resolve().parent.parent


@click.command(help=__doc__)
@click.option("--only", "names", multiple=True, help=f"Measure this row only; may be repeated: {', '.join(GOALS)}.")
@click.option("--seconds", default=2.0, show_default=True, help="Measuring time of one task of one problem.")
@click.option("--inductor/--no-inductor", default=True, help="Whether e3nn compiled by Inductor is among the rivals.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), help="Also write all rows into one file.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=ROOT / "out" / "benchmarks", help="Where records are."
)
@click.option("--page", "page_to", type=click.Path(path_type=Path), default=ROOT / "docs" / "benchmarks.md")
@click.option("--fresh", is_flag=True, help="Forget what was measured of the rows that are asked for.")
@click.option("--write-only", is_flag=True, help="Measure nothing: write the page from the records there are.")
def main(
    names: tuple[str, ...],
    seconds: float,
    inductor: bool,
    json_to: Path | None,
    folder: Path,
    page_to: Path,
    fresh: bool,
    write_only: bool,
) -> None:
    places, console = Places(folder, page_to), Console()
    try:
        goals = select_goals(GOALS, names)
        if fresh:
            for goal in goals:
                for old in places.kernels.glob(f"{goal.name}--*.json"):
                    old.unlink()
        if not write_only:
            measure_goals(goals, places.kernels, seconds, inductor, progress=True)
        outcomes = load_outcomes(places.kernels)
        count = write_page(places)
    except TpgenError as error:
        raise click.ClickException(str(error)) from None
    console.print(goal_cells(outcomes).make_rich_table())
    if json_to:
        json_to.parent.mkdir(parents=True, exist_ok=True)
        json_to.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
        console.print(f"rows: {json_to}")
    console.print(f"wrote {page_to} from {count} records")


if __name__ == "__main__":
    main()
