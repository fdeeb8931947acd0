"""Measure layers and shapes and write docs/benchmarks_layers.md: `python -m benchmarks.layers`, or `make layers`.

Some five minutes on two cores that do nothing else.  Each row is saved when it is measured; a second run measures only
what is missing, `--fresh` measures again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from benchmarks.goals import Goal, Outcome, load_outcomes, measure_goals, select_goals
from benchmarks.layer_goals import ROOT, layer_goals
from benchmarks.page import detail_parts, goal_cells, write_details
from tpgen.base.errors import TpgenError
from tpgen.tools.bench.tables import describe_machine

INTRODUCTION = """\
# Benchmarks: layers and shapes

Linear layers, symmetric contractions, multiplicities that fill no whole vectors, and high degrees.
`make layers` (`python -m benchmarks.layers`) writes this page, in some five minutes. mace-torch
needs an environment of its own: `make clients`. [Benchmarks](benchmarks.md) has products of known networks, and
[a file of JSON](records/benchmarks_layers.json) every figure.
"""

METHOD = """\
## How it is measured

- Contenders take turns in one process; a figure is the ratio of medians. Results are compared before anything is timed.
- *narrow*: against the fastest of e3nn's forms that took part; each note names it.
- *degrees*: the kernel alone, all threads. A copy moves as many bytes as the kernel reads and writes; a multiply and an
  add are counted for each non-zero coupling entry and copy and for each weight, three times that for a backward kernel,
  at the rate that independent sums in registers reach.
- *degrees-build*: one kernel in a fresh process with an empty cache, on all cores.
- *linear*, *contraction*: float32, one thread. *mm* multiplies contiguous matrices of the same sizes into
  allocated results. Where e3nn is one bare matrix product, nothing can be 1.5 times as fast.
- *backward* is forward and backward; *force* a step of force training: energies, forces as their gradient, and the
  gradient of a loss on the forces.
"""


def write_layers(outcomes: Sequence[Outcome], goals: Mapping[str, Goal], page: Path) -> None:
    if not outcomes:
        raise TpgenError("nothing was measured: run without --write-only")
    machines = dict.fromkeys(describe_machine(outcome.environment) for outcome in outcomes)
    parts = [
        INTRODUCTION,
        "\n".join(f"Measured: {line}." for line in machines),
        goal_cells(outcomes, goals).write_markdown(),
    ]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join([*(part.strip() for part in parts), METHOD]))
    write_details(detail_parts(outcomes, goals), page.parent / "records" / page.with_suffix(".json").name)


@click.command(help=__doc__)
@click.option("--only", "names", multiple=True, help="Measure this row only; may be repeated.")
@click.option("--seconds", default=1.0, show_default=True, help="Measuring time of one task of one subject.")
@click.option("--inductor/--no-inductor", default=True, help="Whether e3nn compiled by Inductor is among the rivals.")
@click.option("--clients", type=click.Path(path_type=Path), default=ROOT / ".clients", help="What `make clients` made.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "out" / "layers", help="Where records are.")
@click.option("--page", type=click.Path(path_type=Path), default=ROOT / "docs" / "benchmarks_layers.md")
@click.option("--fresh", is_flag=True, help="Forget what was measured of the rows that are asked for.")
@click.option("--write-only", is_flag=True, help="Measure nothing: write the page from the records there are.")
def main(
    names: tuple[str, ...],
    seconds: float,
    inductor: bool,
    clients: Path,
    folder: Path,
    page: Path,
    fresh: bool,
    write_only: bool,
) -> None:
    goals, console, start = layer_goals(clients), Console(), time.monotonic()
    try:
        chosen = select_goals(goals, names)
        for old in [file for goal in chosen for file in folder.glob(f"{goal.name}--*.json")] if fresh else []:
            old.unlink()
        if not write_only:
            measure_goals(chosen, folder, seconds, inductor, progress=True)
        outcomes = load_outcomes(folder)
        write_layers(outcomes, goals, page)
    except TpgenError as error:
        raise click.ClickException(str(error)) from None
    console.print(goal_cells(outcomes, goals).make_rich_table())
    console.print(f"wrote {page} from {len(outcomes)} records in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
