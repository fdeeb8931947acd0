"""The whole table of networks, by one command: times beside stock and its own modes, and the memory of training.

    python -m benchmarks.network_table --clients .clients

It takes some twenty minutes on a quiet machine of two cores, writes its rows to docs/records/networks/ and the page
docs/networks.md; `make pictures` draws them.  ``--compiled`` measures stock compiled too, which takes minutes for each
network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.network_modes import MODES, OURS_COMPILED
from tpgen.tools.bench.records import read_environment

ABOUT, ABOUT_ENGINES = "about.json", "about-engines.json"  # beside the rows: the machine and the versions
ROWS_DIR, PAGE = Path("docs/records/networks"), Path("docs/networks.md")
THREADS = (1, 2)
TASKS = {"energy, forces, stress": "step", "training step": "training"}
NAMES = {"mace": "MACE", "nequip": "NequIP,", "sevenn": ""}


@dataclass(frozen=True)
class Unit:
    """One call of `benchmarks.network_measures`, and what is measured there."""

    project: str
    size: str
    atoms: int
    memory: bool = False
    engines: bool = False  # inference beside engines that others wrote by hand
    double: bool = False
    kept: bool = False  # in a process that keeps the memory it has had

    def file(self, threads: int) -> Path:
        size = re.sub("[ =']", "", self.size).replace(",", "-")
        what = "-memory" * self.memory + "-double" * self.double + "-kept" * self.kept
        return ROWS_DIR / f"{self.project}-{size}-{self.atoms}{what}-{threads}t.json"


UNITS = (
    Unit("mace", "128x0e+128x1o", 64),
    Unit("mace", "128x0e+128x1o", 512),
    Unit("mace", "128x0e", 64),
    Unit("mace", "64x0e+64x1o+64x2e", 64),
    Unit("nequip", "l=2, 64 features", 64),
    Unit("nequip", "l=2, 64 features", 512),
    Unit("nequip", "l=3, 32 features", 64),
    Unit("sevenn", "SevenNet-0", 64),
    Unit("sevenn", "SevenNet-0", 512),
    Unit("mace", "128x0e+128x1o", 512, memory=True),
    Unit("mace", "128x0e+128x1o", 2000, memory=True),
    Unit("nequip", "l=2, 64 features", 512, memory=True),
    Unit("nequip", "l=2, 64 features", 2000, memory=True),
    Unit("sevenn", "SevenNet-0", 512, memory=True),
    Unit("sevenn", "SevenNet-0", 2000, memory=True),
    Unit("mace", "128x0e+128x1o", 64, kept=True),
    Unit("mace", "128x0e+128x1o", 512, kept=True),
    Unit("nequip", "l=2, 64 features", 512, kept=True),
    Unit("sevenn", "SevenNet-0", 512, kept=True),
    *(
        Unit("mace", f"{hidden}, MACE-OFF's blocks", atoms, engines=True, double=double)
        for hidden in ("128x0e+128x1o", "128x0e")
        for atoms in (64, 512, 2000)
        for double in (False, True)
    ),
)
ENGINES = ("spline", "symmetrix")
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}  # the C library of Linux reads them


def measure(unit: Unit, threads: int, asked: Any) -> None:
    python = asked.clients / unit.project / "bin" / "python"
    if not python.exists():
        print(f"*** {unit.project} IS NOT MEASURED: there is no {python} (make clients)")
        return
    arguments = [unit.project, "--size", unit.size, "--atoms", unit.atoms, "--threads", threads]
    arguments += ["--seconds", asked.seconds, "--json", unit.file(threads)]
    arguments += ["--double"] * unit.double + ["--inference"] * unit.engines
    if unit.memory:
        arguments += ["--memory"]
    elif modes := _modes(unit, asked.compiled):
        arguments += ["--modes", *modes]
    start = time.perf_counter()
    subprocess.run(
        [str(python), "-W", "ignore", "-m", "benchmarks.network_measures", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.getcwd(), **(KEEPING if unit.kept else {})},
        check=False,
    )
    print(f"-- {time.perf_counter() - start:.0f} s\n", flush=True)


def _modes(unit: Unit, compiled: bool) -> list[str]:
    """Of the other modes those that are to be had; compiling is left out where a small structure says as much."""
    if unit.engines:
        return list(ENGINES)
    return [
        mode
        for mode in (() if unit.kept else MODES[unit.project])
        if mode == "scripted" or (mode in ("compiled", OURS_COMPILED) and compiled and unit.atoms <= 64)
    ]


# --- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    found, on_two = (_found(threads) for threads in THREADS)
    steps = [(unit, rows) for unit, rows in found if not (unit.memory or unit.engines)]
    times = [line for unit, rows in steps if not unit.kept for line in _times(unit, rows)]
    kept = [line.replace(" eager |", "", 1) for unit, rows in steps if unit.kept for line in _times(unit, rows)]
    memory = [_memory(unit, rows) for unit, rows in found if unit.memory]
    modes = [line for unit, rows in steps for line in _other_modes(unit, rows)]
    engines = [_engines(unit, rows) for unit, rows in found if unit.engines]
    beside = [line.format(**_said(ABOUT_ENGINES)) for line in _ENGINES]
    two = [line for unit, rows in on_two for line in _on_two(unit, rows)]
    tables = (
        (_TIMES, times),
        (_ON_TWO, two),
        (_KEPT, kept),
        (_OTHER_MODES, modes),
        (beside, engines),
        (_MEMORY, memory),
    )
    measured = [line for head, lines in tables if lines for line in (*head, *lines, "")]
    return "\n".join([_HEAD.format(**_said(ABOUT)), *measured])


def _found(threads: int) -> list[tuple[Unit, list[dict[str, Any]]]]:
    files = [(unit, unit.file(threads)) for unit in UNITS]
    return [(unit, json.loads(file.read_text())) for unit, file in files if file.exists()]


def _said(file: str) -> dict[str, str]:
    """The machine and the versions of measured rows."""
    about = ROWS_DIR / file
    return json.loads(about.read_text()) if about.exists() else {"machine": "?", "versions": "?"}


def about(clients: Path) -> dict[str, str]:
    """The machine, and the versions in the environments that were measured."""
    here = read_environment()
    found = [f"torch {here.torch}"]
    for project, package in (("mace", "mace-torch"), ("nequip", "nequip"), ("sevenn", "sevenn")):
        asked = (
            f"from importlib.metadata import version as v; print('{package}', v('{package}'), 'with e3nn', v('e3nn'))"
        )
        answer = subprocess.run(
            [clients / project / "bin/python", "-c", asked], capture_output=True, text=True, check=False
        )
        found += [answer.stdout.strip()] if answer.returncode == 0 else []
    return {"machine": f"{here.cpu}, {here.cores} cores, {here.system}", "versions": ", ".join(found)}


_HEAD = """# Whole networks

The time of a step, stock and [converted](convert.md), in float32 on {machine}.
Versions: {versions}.

![time of a step of stock and converted networks, by number of atoms](pictures/networks.png)

The picture has stock eager and compiled, called from Python; above 512 atoms once. The picture is another run than the
table, with other ratios. `python -m benchmarks.network_sizes` measures it.

Each timing is the median of three steps (one if a step takes over 1 s). Stock, its own modes and converted take turns
in one process; a ratio is the median over rounds. Structures are perturbed lattices of four elements, 29 neighbours an
atom. NequIP has 3 layers. *Stock* is the project's own code; *best of stock* is the fastest of its modes; with 512
atoms none was compiled. A *step* is energy, forces and stress; *training* a step of training. One thread, but for the
second table. `python -m benchmarks.network_table` measures anew; [remarks](benchmarks_remarks.md) has other networks.

## Times
"""
_TIMES = ["| network | task | times as fast | converted | best of stock | stock, eager |",
          "|---|---|---:|---:|---:|---:|"]  # fmt: skip
_ON_TWO = ["## On two threads\n", "Stock is eager; both run on two threads.\n",
           "| network | step | converted | training | converted |", "|---|---:|---:|---:|---:|"]  # fmt: skip
_KEPT = ["## Where memory is kept\n",
         "Eager stock gives memory back between operations, and takes fresh pages for the next: with hundreds of "
         f"atoms, this is half of its time. With `{' '.join(f'{name}={value}' for name, value in KEEPING.items())}`, a "
         "process on Linux keeps what it has had, and stock is much faster.\n",
         "| network | task | times as fast | converted | stock |", "|---|---|---:|---:|---:|"]  # fmt: skip
_OTHER_MODES = ["## Other modes\n", "A step by the projects' own compilers. *Converted, compiled* is the "
              "converted model by them. *Ready* is the time to compile and call once; Inductor may have found code of "
              "an earlier run on disk. Scripted models run about as fast as eager ones.\n",
              "| network | task | mode | times as fast as eager | time | ready |",
              "|---|---|---|---:|---:|---:|"]  # fmt: skip
_ENGINES = ["## Beside symmetrix\n", "[symmetrix](https://github.com/wcwitt/symmetrix) is a MACE written by hand in "
            "C++ with Kokkos, for inference, with splines in the place of radial networks. It runs MACE-OFF's blocks. "
            "Energy, forces and stress in turn, one thread, µs an atom, on {machine}; *with splines* is "
            "[`radial=\"spline\"`](convert.md#weights-of-edges-by-splines). The last two columns have symmetrix's "
            "time divided by ours. symmetrix was built by clang 19 with Kokkos 4.6.01 and "
            "`Kokkos_ENABLE_ATOMICS_BYPASS`, without which it takes several times as long. With 2,000 atoms in "
            "float64, stock ran short of memory.\n",
            "| features | atoms | numbers | stock | symmetrix | converted | with splines | times as fast | "
            "with splines |",
            "|---|---:|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
_MEMORY = ["## Peak memory of a training step\n", "| network | atoms | stock | converted | part |",
           "|---|---:|---:|---:|---:|"]  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """A task converted, beside the best of stock's modes."""

    task: str
    ours: dict[str, Any]
    best: dict[str, Any]
    eager: dict[str, Any]

    @property
    def ratio(self) -> str:
        return f"{self.ours['ratio'] / self.best['ratio']:.1f}×"


def _gains(rows: list[dict[str, Any]]) -> Iterable[Gain]:
    for task in dict.fromkeys(row["task"] for row in rows if row["seconds"]):
        by_mode = {row["mode"]: row for row in rows if row["task"] == task}
        rivals = [row for mode, row in by_mode.items() if mode not in ("converted", OURS_COMPILED)]
        if ours := by_mode.get("converted"):
            yield Gain(TASKS.get(task, task), ours, max(rivals, key=lambda row: row["ratio"]), by_mode["stock"])


def _times(unit: Unit, rows: list[dict[str, Any]]) -> Iterable[str]:
    for gain in _gains(rows):
        best = gain.best["mode"]
        cells = (
            _case(unit), gain.task, gain.ratio, _seconds(gain.ours["seconds"]),
            "eager" if best == "stock" else f"{best} {_seconds(gain.best['seconds'])}",
            _seconds(gain.eager["seconds"]),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _on_two(unit: Unit, rows: list[dict[str, Any]]) -> Iterable[str]:
    cells = [cell for gain in _gains(rows) for cell in (gain.ratio, _seconds(gain.ours["seconds"]))]
    yield f"| {' | '.join((_case(unit), *cells))} |"


def _other_modes(unit: Unit, rows: list[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        if row["mode"] not in ("stock", "converted", "scripted"):
            ready = _seconds(row["ready"]) if row["ready"] else "–"
            found = (f"{row['ratio']:.2f}×", _seconds(row["seconds"])) if row["seconds"] else ("–", row["why"])
            cells = (_case(unit), TASKS.get(row["task"], row["task"]), row["mode"], *found, ready)
            yield f"| {' | '.join(cells)} |"


def _engines(unit: Unit, rows: list[dict[str, Any]]) -> str:
    seconds = {row["mode"]: row["seconds"] for row in rows}
    shown = [f"{1e6 * seconds[mode] / unit.atoms:,.0f}" if seconds.get(mode) else "–" for mode in _ENGINE_COLUMNS]
    peer = {row["mode"]: row["ratio"] for row in rows}
    ratios = [
        f"{peer[ours] / peer['symmetrix']:.1f}×" if peer.get("symmetrix") and peer.get(ours) else "–"
        for ours in _ENGINE_COLUMNS[2:]
    ]
    size = unit.size.partition(",")[0]
    cells = (size, f"{unit.atoms:,}", "float64" if unit.double else "float32", *shown, *ratios)
    return f"| {' | '.join(cells)} |"


_ENGINE_COLUMNS = ("stock", "symmetrix", "converted", "spline")


def _memory(unit: Unit, rows: list[dict[str, Any]]) -> str:
    stock, ours = ({row["mode"]: row["megabytes"] for row in rows}[mode] for mode in ("stock", "converted"))
    part = ours / stock if stock and ours else None
    cells = (_name(unit), f"{unit.atoms:,}", *map(_megabytes, (stock, ours)), f"{part:.2f}" if part else "–")
    return f"| {' | '.join(cells)} |"


def _case(unit: Unit) -> str:
    return f"{_name(unit)}, {unit.atoms:,} atoms"


def _name(unit: Unit) -> str:
    return f"{NAMES[unit.project]} {unit.size}".strip()


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def _megabytes(megabytes: float | None) -> str:
    return f"{megabytes:,.0f} MB" if megabytes else "more than there was"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_table")
    parser.add_argument("--clients", type=Path, default=Path(".clients"), help="where the projects' environments are")
    parser.add_argument("--threads", type=int, nargs="+", choices=THREADS, default=[1], help="each in turn")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each task")
    parser.add_argument("--only", action="append", default=[], help="part of the name of a row's file; repeat it")
    parser.add_argument("--compiled", action="store_true", help="stock compiled as well")
    parser.add_argument("--write-only", action="store_true", help="write the page from the rows there are")
    asked: Any = parser.parse_args()
    for threads, unit in product(asked.threads, UNITS):
        name = unit.file(threads).name
        if not asked.write_only and (not asked.only or any(part in name for part in asked.only)):
            measure(unit, threads, asked)
            written = ROWS_DIR / (ABOUT_ENGINES if unit.engines else ABOUT)
            written.write_text(json.dumps(about(asked.clients), indent=1) + "\n")
    PAGE.write_text(page())
    print(PAGE)


if __name__ == "__main__":
    main()
