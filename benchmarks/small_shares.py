"""Shares of the time of a step, stock, converted and as one program: the figures of docs/pictures/small_systems.png.

    .venv/bin/python -m benchmarks.small_shares --clients .clients

takes some minutes on a quiet machine, writes docs/pictures/small_systems.json and draws the picture.  A step's time is
that of calls that nothing watches.  torch's profiler says how much of it is in kernels, matrix products and a program's
fused loops; the rest is split between torch and Python as the profiler saw it, since watching makes both slower.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.network_picture import CONVERTED, PROGRAM, STOCK
from benchmarks.network_sizes import ALIKE, ATOMS, EXAMPLE, OUTPUTS, rows_in_projects, seconds_of
from benchmarks.network_table import about
from benchmarks.small_picture import FIGURES, KERNELS, LOOPS, PARTS, PRODUCTS, PYTHON, TORCH, draw_shares

SIZES_SHOWN = {"mace": "96x0e+96x1o", "nequip": "2 layers, l=3, 32 features"}
STEPS, LONG = 9, 0.5  # steps of a median; of a step of so many seconds there is one
_RUN = "run of a program"  # all that is in it and in no operation is torch's: what calls them, and memory
_PRODUCTS = re.compile(r"(aten::|aoti_torch_cpu_)(add|badd|b)?(mm|mv|dot)(_out)?")  # in Python, and in a program
_LOOPS = {"cpp.enable_kernel_profile": True}


def part_of(name: str) -> str:
    """The part that an event of the profiler belongs to, by its name."""
    if name.startswith(("tpgen::", "tpgen_native::")):
        return KERNELS
    if _PRODUCTS.fullmatch(name):
        return PRODUCTS
    return LOOPS if "cpp_fused" in name else TORCH


def shares(whole: float, watched: float, events: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds of each part of a step of so many seconds, from names and own seconds of events while it was watched."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, seconds in events:
        found[part_of(name)] += seconds
    found[PYTHON] = max(watched - sum(found.values()), 0.0)
    rest = max(whole - found[KERNELS] - found[PRODUCTS] - found[LOOPS], 0.0)  # of two measurements
    seen = found[TORCH] + found[PYTHON]
    return {part: rest * s / seen if part in (TORCH, PYTHON) else s for part, s in found.items()}


def measure_project(project: str, atoms: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of atoms and each way to compute; runs in the environment of the project."""
    import torch

    from benchmarks.network_modes import converted
    from benchmarks.networks import SIZES
    from tpgen.networks import libraries
    from tpgen.networks.step import compile_step

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    build = SIZES[project][SIZES_SHOWN[project]]
    case = build(EXAMPLE, torch.float32)
    ours = converted(case).eval()
    libraries._OPTIONS.update(_LOOPS)
    networks: dict[str, Any] = {
        STOCK: case.model,
        CONVERTED: ours,
        PROGRAM: compile_step(ours, outputs=OUTPUTS[project]),
    }
    case.run(networks[PROGRAM], False)
    program = networks[PROGRAM]._program
    object.__setattr__(program, "function", partial(_named, program.function))
    rows = []
    for number in atoms:
        case = build(number, torch.float32)
        for mode, network in networks.items():
            parts = parts_of(partial(case.run, network, False))
            rows.append({"project": project, "atoms": number, "edges": case.edges, "mode": mode, "parts": parts})
            said = ", ".join(f"{part} {1e3 * s:.2f}" for part, s in parts.items())
            print(f"{project:8}{number:6} atoms  {mode:12}{1e3 * sum(parts.values()):9.2f} ms: {said}", file=sys.stderr)
    return rows


def _named(function: Callable[..., Any], *given: Any) -> Any:
    from torch.profiler import record_function

    with record_function(_RUN):
        return function(*given)


def parts_of(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds of each part of a call."""
    from torch.profiler import ProfilerActivity, profile

    call()  # a first call of a size may compile a kernel
    first = seconds_of(call)
    steps = 1 if first > LONG else STEPS
    whole = first if steps == 1 else statistics.median(seconds_of(call) for _ in range(steps))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        watched = sum(seconds_of(call) for _ in range(steps)) / steps
    return shares(whole, watched, [(e.key, e.self_cpu_time_total / 1e6 / steps) for e in seen.key_averages()])


def measure(clients: Path, atoms: Sequence[int]) -> dict[str, Any] | None:
    """The figures of the picture; None where a project's environment is not there."""
    rows = rows_in_projects(clients, SIZES_SHOWN, __spec__.name, ["--atoms", *map(str, atoms)])
    return None if rows is None else {**about(clients), **ALIKE, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.small_shares")
    parser.add_argument("--clients", type=Path, default=Path(".clients"), help="where the projects' environments are")
    parser.add_argument("--atoms", type=int, nargs="+", default=ATOMS)
    parser.add_argument("--project", choices=SIZES_SHOWN, help=argparse.SUPPRESS)  # in its own environment
    asked = parser.parse_args()
    if asked.project:
        print(json.dumps(measure_project(asked.project, asked.atoms)))
        return 0
    found = measure(asked.clients, asked.atoms)
    if found is None:
        return 1
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    draw_shares(FIGURES.with_suffix(".png"))
    print(FIGURES.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
