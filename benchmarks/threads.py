"""How a step of a network scales with threads, on this machine's processor, beside a product and a copy of memory.

    .clients/mace/bin/python -m benchmarks.threads mace --atoms 512

Stock, converted and as one program, energy, forces and stress in float32, by 1, 2, 4 ... threads.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import torch

from benchmarks.gpu_times import convolution, gradients, product_of_edges
from benchmarks.network_modes import by_itself, converted
from benchmarks.networks import SIZES, Case
from tpgen.base.text import duration, table
from tpgen.planner.problems import PROBLEMS

Row = dict[str, Any]
Call = Callable[[], object]
_CALLS, _COPIED = 5, 2**27
_WAYS: dict[str, Callable[[Case], torch.nn.Module]] = {
    "stock": lambda case: case.model,
    "converted": converted,
    "program": by_itself,
}


def numbers() -> tuple[int, ...]:
    """1, 2, 4 ... threads, up to the cores of this machine."""
    return tuple(2**power for power in range(len(os.sched_getaffinity(0)).bit_length()))


def thread_rows(project: str, atoms: int) -> Iterator[Row]:
    """A row for each call and number of threads: the median of a few calls on the wall's clock."""
    before = torch.get_num_threads()
    for name, call in _calls(project, atoms):
        for _ in range(2):  # builds, and lets a program see the sizes
            call()
        for threads in numbers():
            torch.set_num_threads(threads)
            row: Row = {"call": name, "threads": threads, "seconds": statistics.median(map(_once, [call] * _CALLS))}
            click.echo(f"{name}, {threads} threads: {duration(row['seconds'])}", err=True)
            yield row
        torch.set_num_threads(before)


def _calls(project: str, atoms: int) -> Iterator[tuple[str, Call]]:
    source = torch.rand(_COPIED)
    target = torch.empty_like(source)
    yield "copy", lambda: target.copy_(source)
    given, graph = convolution(PROBLEMS["mace-medium"].plan, 40_000, "cpu")
    inputs = [x.requires_grad_() for x in given]
    yield "convolution", partial(product_of_edges, *given, **graph)
    yield "its gradients", gradients(product_of_edges(*inputs, **graph), inputs)
    case = next(iter(SIZES[project].values()))(atoms, torch.float32)
    for way, make in _WAYS.items():
        yield f"{project}, {way}", partial(case.run, make(case), False)


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def thread_table(rows: list[Row]) -> str:
    """Times by number of threads, and how many times faster the most are than one."""
    counts = sorted({row["threads"] for row in rows})
    found = {(row["call"], row["threads"]): row["seconds"] for row in rows}
    body = [
        (name, *(duration(found[name, n]) for n in counts), f"{found[name, 1] / found[name, counts[-1]]:.1f}x")
        for name in dict.fromkeys(row["call"] for row in rows)
    ]
    return table([("threads", *map(str, counts), "gain"), *body], left=(0,))


@click.command(help=__doc__)
@click.argument("project", type=click.Choice(list(SIZES)))
@click.option("--atoms", default=512, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(project: str, atoms: int, as_json: bool) -> None:
    rows = list(thread_rows(project, atoms))
    click.echo(json.dumps(rows, indent=1) if as_json else thread_table(rows))


if __name__ == "__main__":
    main()
