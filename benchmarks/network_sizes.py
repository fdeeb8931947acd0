"""Stock, converted, one program and symmetrix over the number of atoms: the figures of docs/pictures/networks.png.

    .venv/bin/python -m benchmarks.network_sizes --clients .clients

takes ten minutes on a quiet machine, writes docs/pictures/networks.json and draws the picture from it;
``--draw`` and `make pictures` draw it again and measure nothing.  Each project is measured in its own environment
(``make clients``), and symmetrix, a MACE in C++ by hand, where it is installed in MACE's.  All of them are called in
turn, in float32 on one thread, and medians count.  Above `ONCE` atoms stock is called a single time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.network_picture import COMPILED, CONVERTED, FIGURES, PROGRAM, STOCK, SYMMETRIX, draw_networks
from benchmarks.network_table import about
from benchmarks.networks import Case

ATOMS = (8, 21, 40, 64, 128, 256, 512, 1000, 2000)
ONCE = 512
STEPS = 3  # in a turn, as dynamics makes one after the other; one, where a step takes a second
ALIKE = {"task": "energy, forces, stress", "dtype": "float32", "threads": 1}
EXAMPLE, SECOND = 40, 64  # atoms of the calls that programs are built from
SIZES_SHOWN = {"mace": "128x0e+128x1o, MACE-OFF's blocks", "nequip": "l=2, 64 features"}
OUTPUTS = {"mace": ("energy", "forces", "stress"), "nequip": ("total_energy", "forces", "stress")}


def measure_project(project: str, seconds: float, atoms: tuple[int, ...] = ATOMS) -> list[dict[str, Any]]:
    """A row for each number of atoms and each way to compute; runs in the environment of the project."""
    import torch

    from benchmarks.network_modes import converted, mace_compiled, nequip_compiled
    from benchmarks.networks import SIZES
    from tpgen.networks.step import compile_step

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    build = SIZES[project][SIZES_SHOWN[project]]
    case = build(EXAMPLE, torch.float32)
    ours = converted(case)
    networks: dict[str, Any] = {
        STOCK: case.model,
        COMPILED: {"mace": mace_compiled, "nequip": nequip_compiled}[project](case),
        CONVERTED: ours,
        PROGRAM: compile_step(ours, outputs=OUTPUTS[project]),
    }
    for atoms_of_example in (EXAMPLE, SECOND):  # torch.compile takes all sizes from the second on
        example = build(atoms_of_example, torch.float32)
        for mode in (COMPILED, PROGRAM):
            example.run(networks[mode], False)
    rows = []
    for number in atoms:
        case = build(number, torch.float32)
        calls = {
            mode: partial(case.run, network, False) for mode, network in (networks | by_hand(project, case)).items()
        }
        for mode, times in in_turn(calls, seconds, once=number > ONCE).items():
            row = {"project": project, "atoms": number, "edges": case.edges, "mode": mode}
            found = statistics.median(times)
            rows.append({**row, "seconds": found, "calls": len(times)})
            print(f"{project:8}{number:6} atoms  {mode:12}{1e3 * found:10.2f} ms", file=sys.stderr)
    return rows


def by_hand(project: str, case: Case) -> dict[str, Any]:
    """symmetrix, for the structure of a case of MACE, where it is installed."""
    if project != "mace" or importlib.util.find_spec("symmetrix") is None:
        return {}
    from benchmarks.network_symmetrix import Symmetrix

    return {SYMMETRIX: Symmetrix(case)}


def in_turn(calls: Mapping[str, Callable[[], Any]], seconds: float, once: bool) -> dict[str, list[float]]:
    """Seconds of calls in turns until the time is over; where ``once``, stock has one call a mode, and no turns."""
    for mode, call in calls.items():
        if not (once and mode == STOCK):
            call()  # the first calls of a network are slow
    first = {mode: seconds_of(call) for mode, call in calls.items()}
    alone = {mode: [first[mode]] for mode in (STOCK, COMPILED) if once and mode in first}
    turns: dict[str, list[float]] = {mode: [] for mode in calls if mode not in alone}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or min(map(len, turns.values())) < 2:
        for mode, found in turns.items():
            found.append(statistics.median(seconds_of(calls[mode]) for _ in range(1 if first[mode] > 1 else STEPS)))
    return alone | turns


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(clients: Path, seconds: float) -> dict[str, Any] | None:
    """The figures of the picture; None where a project's environment is not there."""
    rows = rows_in_projects(clients, SIZES_SHOWN, __spec__.name, ["--seconds", str(seconds)])
    return None if rows is None else {**about(clients), **ALIKE, "once above": ONCE, "rows": rows}


def rows_in_projects(
    clients: Path, projects: Iterable[str], module: str, arguments: Sequence[str]
) -> list[dict[str, Any]] | None:
    """Rows that a benchmark prints in the environment of each project; None where one is not there."""
    rows = []
    for project in projects:
        python = clients / project / "bin" / "python"
        if not python.exists():
            print(f"*** {project} IS NOT MEASURED: there is no {python} (make clients)", file=sys.stderr)
            return None
        command = [str(python), "-W", "ignore", "-m", module, "--project", project, *arguments]
        environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(found.stdout.splitlines()[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.network_sizes")
    parser.add_argument("--clients", type=Path, default=Path(".clients"), help="where the projects' environments are")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of atoms")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    parser.add_argument("--project", choices=SIZES_SHOWN, help=argparse.SUPPRESS)  # in its own environment
    asked = parser.parse_args()
    if asked.project:
        print(json.dumps(measure_project(asked.project, asked.seconds)))
        return 0
    if not asked.draw:
        found = measure(asked.clients, asked.seconds)
        if found is None:
            return 1
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    draw_networks(FIGURES.with_suffix(".png"))
    print(FIGURES.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
