"""The whole table of networks, by one command: times beside stock and its own modes, and the memory of training.

    python -m benchmarks.network_table --clients .clients

It takes some twenty minutes on a quiet machine of two cores, writes its rows to out/networks/ and the page
docs/networks.md.  ``--compiled`` measures stock compiled too, which takes minutes for each network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.network_modes import MODES, OURS_COMPILED

ROWS_DIR, PAGE = Path("out/networks"), Path("docs/networks.md")
THREADS = (1, 2)
NAMES = {"mace": "MACE", "nequip": "NequIP, 3 layers,", "sevenn": ""}


@dataclass(frozen=True)
class Unit:
    """One call of `benchmarks.networks`: what is measured, and what is to be reached."""

    project: str
    size: str
    atoms: int
    goal: float | None = None  # how many times as fast as stock; of memory, the part of stock's
    memory: bool = False

    def file(self, threads: int) -> Path:
        size = self.size.replace(" ", "").replace(",", "-").replace("=", "")
        return ROWS_DIR / f"{self.project}-{size}-{self.atoms}{'-memory' * self.memory}-{threads}t.json"


UNITS = (
    Unit("mace", "128x0e+128x1o", 64, 12),
    Unit("mace", "128x0e+128x1o", 512, 20),
    Unit("mace", "128x0e", 64, 8),
    Unit("mace", "64x0e+64x1o+64x2e", 64, 8),
    Unit("nequip", "l=2, 64 features", 64, 7),
    Unit("nequip", "l=2, 64 features", 512, 12),
    Unit("nequip", "l=3, 32 features", 64, 8),
    Unit("sevenn", "SevenNet-0", 64, 8),
    Unit("sevenn", "SevenNet-0", 512),
    Unit("mace", "128x0e+128x1o", 512, 0.3, memory=True),
    Unit("mace", "128x0e+128x1o", 2000, 0.5, memory=True),
    Unit("nequip", "l=2, 64 features", 512, 0.3, memory=True),
    Unit("nequip", "l=2, 64 features", 2000, 0.5, memory=True),
    Unit("sevenn", "SevenNet-0", 512, 0.3, memory=True),
    Unit("sevenn", "SevenNet-0", 2000, 0.5, memory=True),
)


def measure(unit: Unit, threads: int, asked: Any) -> None:
    python = asked.clients / unit.project / "bin" / "python"
    if not python.exists():
        print(f"*** {unit.project} IS NOT MEASURED: there is no {python} (make clients)")
        return
    arguments = [unit.project, "--size", unit.size, "--atoms", unit.atoms, "--threads", threads]
    arguments += ["--seconds", asked.seconds, "--json", unit.file(threads)]
    if unit.memory:
        arguments += ["--memory"]
    elif modes := _modes(unit, asked.compiled):
        arguments += ["--modes", *modes]
    start = time.perf_counter()
    subprocess.run(
        [str(python), "-W", "ignore", "-m", "benchmarks.networks", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
    )
    print(f"-- {time.perf_counter() - start:.0f} s\n", flush=True)


def _modes(unit: Unit, compiled: bool) -> list[str]:
    """Of the other modes those that are to be had; compiling is left out where a small structure says as much."""
    return [mode for mode in MODES[unit.project] if mode == "scripted" or (compiled and unit.atoms <= 64)]


# --- the page ---------------------------------------------------------------------------------------------------------


def page() -> str:
    files = [(unit, unit.file(threads)) for threads in THREADS for unit in UNITS]
    found = [(unit, json.loads(file.read_text())) for unit, file in files if file.exists()]
    times = [line for unit, rows in found if not unit.memory for line in _times(unit, rows)]
    memory = [_memory(unit, rows) for unit, rows in found if unit.memory]
    modes = [line for unit, rows in found if not unit.memory for line in _other_modes(unit, rows)]
    tables = ((_TIMES, times), (_OTHER_MODES, modes), (_MEMORY, memory))
    measured = [line for head, lines in tables if lines for line in (*head, *lines, "")]
    return "\n".join([_HEAD, *measured])


_HEAD = """# Whole networks, measured

Written by `python -m benchmarks.network_table`: float32, medians. Each network is measured in one process: stock, its
own modes, and converted, in turn, so ratios are those of one moment. In its turn a network makes three steps, of which
the median counts, or one step where stock takes a second. Structures are perturbed lattices of four
elements, some 28 neighbours an atom. *Best of stock* is the fastest of stock's modes that were measured, and the
ratio is to that one; the second table has all of them. A target in brackets is not reached.

## Times
"""
_TIMES = ["| network | atoms | threads | task | stock, eager | best of stock | converted | times as fast | target |",
          "|---|---:|---:|---|---:|---:|---:|---:|---:|"]  # fmt: skip
_OTHER_MODES = ["## Other modes\n", "What the projects offer beside their eager code. *Converted, compiled* is the "
              "converted model after it. *Ready* is the time until a mode was made and called once; Inductor "
              "may have found code of an earlier run on disk.\n",
              "| network | atoms | threads | task | mode | time | times as fast as eager | ready |",
              "|---|---:|---:|---|---|---:|---:|---:|"]  # fmt: skip
_MEMORY = ["## Peak memory of a training step\n", "| network | atoms | stock | converted | part | target |",
           "|---|---:|---:|---:|---:|---:|"]  # fmt: skip


def _times(unit: Unit, rows: list[dict[str, Any]]) -> Iterable[str]:
    for task in dict.fromkeys(row["task"] for row in rows if row["seconds"]):
        by_mode = {row["mode"]: row for row in rows if row["task"] == task}
        rivals = {mode: row for mode, row in by_mode.items() if mode not in ("converted", OURS_COMPILED)}
        best = max(rivals, key=lambda mode: rivals[mode]["ratio"])
        ours = by_mode.get("converted")
        if ours is None:
            continue
        ratio = ours["ratio"] / rivals[best]["ratio"]
        cells = (
            _name(unit), f"{unit.atoms:,}", f"{ours['threads']}", task, _seconds(by_mode["stock"]["seconds"]),
            "eager" if best == "stock" else f"{best} {_seconds(rivals[best]['seconds'])}",
            _seconds(ours["seconds"]), f"{ratio:.1f}×", _goal(unit.goal, ratio),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _other_modes(unit: Unit, rows: list[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        if row["mode"] not in ("stock", "converted"):
            ready = _seconds(row["ready"]) if row["ready"] else "–"
            found = (_seconds(row["seconds"]), f"{row['ratio']:.2f}×") if row["seconds"] else (row["why"], "–")
            cells = (_name(unit), f"{unit.atoms:,}", f"{row['threads']}", row["task"], row["mode"], *found, ready)
            yield f"| {' | '.join(cells)} |"


def _goal(goal: float | None, ratio: float) -> str:
    if goal is None:
        return ""
    return f"≥ {goal:g}×" if ratio >= goal else f"(≥ {goal:g}×)"


def _memory(unit: Unit, rows: list[dict[str, Any]]) -> str:
    stock, ours = ({row["mode"]: row["megabytes"] for row in rows}[mode] for mode in ("stock", "converted"))
    part = ours / stock if stock and ours else None
    goal = "" if unit.goal is None else f"≤ {unit.goal:g}" if part and part <= unit.goal else f"(≤ {unit.goal:g})"
    cells = (_name(unit), f"{unit.atoms:,}", *map(_megabytes, (stock, ours)), f"{part:.2f}" if part else "–", goal)
    return f"| {' | '.join(cells)} |"


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
    PAGE.write_text(page())
    print(PAGE)


if __name__ == "__main__":
    main()
