"""Whole networks of other projects, stock against converted: energy, forces and stress, and a training step.

    .clients/mace/bin/python -m benchmarks.network_measures mace --atoms 64 --threads 1
    .clients/mace/bin/python -m benchmarks.network_measures mace --size small --modes scripted compiled
    .clients/mace/bin/python -m benchmarks.network_measures mace --size 128x0e --modes compiled program
    .clients/nequip/bin/python -m benchmarks.network_measures nequip --atoms 512 --memory
    .clients/sevenn/bin/python -m benchmarks.network_measures sevenn --agree

Each project has an environment of its own (``make clients``).  Stock, other modes of stock and converted are called in
turn, and medians of the ratios are shown.  ``--agree`` compares energies, forces, stress and the gradients of a force
loss in float64; ``--memory`` shows the peak memory of a training step.  `benchmarks.network_table` runs all of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.network_modes import MODES, Programs, converted
from benchmarks.networks import SIZES, Case
from tpgen.networks.conversion.convert import conversion_report

STOCK, CONVERTED = "stock", "converted"
STEPS = 3  # in a turn, as dynamics and training make one after the other; one, where stock's takes a second


@dataclass(frozen=True)
class Row:
    """One network in one mode at one task.  Ratios are stock's by it; what was not measured is None."""

    project: str
    size: str
    atoms: int
    edges: int
    threads: int
    task: str
    mode: str
    seconds: float | None = None
    ratio: float | None = None
    rounds: int = 0
    ready: float | None = None  # seconds until the mode had been made and called once
    megabytes: float | None = None
    why: str = ""  # it could not be measured


def evaluation(case: Case, network: nn.Module) -> None:
    case.run(network, False)


def training(case: Case, network: nn.Module) -> None:
    if isinstance(network, Programs):
        network.train_once(case)
        return
    found = case.run(network, True)
    loss = torch.stack([(x * torch.sin(x.detach())).sum() for x in found.values()]).sum()
    network.zero_grad()
    loss.backward()


EVALUATION, TRAINING = "energy, forces, stress", "training step"
TASKS = {EVALUATION: evaluation, TRAINING: training}


def in_turn(asked: Any, case: Case) -> list[Row]:
    """Each mode in turn with stock, some steps a turn, and the medians of the ratios of one round."""
    about = _about(asked, case)
    networks: dict[str, nn.Module] = {STOCK: case.model}
    modes = {mode: MODES[asked.project][mode] for mode in asked.modes} | {CONVERTED: (converted, True)}
    ready, why = {}, {}
    for mode, (make, _) in modes.items():
        start = time.perf_counter()
        try:
            networks[mode] = make(case)
            evaluation(case, networks[mode])
        except Exception as error:  # a rival may fail, and the others are measured all the same
            networks.pop(mode, None)
            why[mode] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        ready[mode] = time.perf_counter() - start
    rows = []
    for task in (EVALUATION,) if asked.inference else TASKS:
        able = {name: n for name, n in networks.items() if task == EVALUATION or name == STOCK or modes[name][1]}
        times = _timed(case, able, task, asked.seconds, why)
        for name, found in times.items():
            ratio = statistics.median(a / b for a, b in zip(times[STOCK], found, strict=True))
            rows.append(
                Row(**about, task=task, mode=name, seconds=statistics.median(found), ratio=ratio, rounds=len(found),
                    ready=ready.get(name))
            )  # fmt: skip
    return rows + [Row(**about, task="", mode=mode, why=said, ready=ready[mode]) for mode, said in why.items()]


def _timed(
    case: Case, networks: dict[str, nn.Module], task: str, seconds: float, why: dict[str, str]
) -> dict[str, list[float]]:
    step = TASKS[task]
    for name in list(networks):
        try:
            for _ in range(2):
                took = _once(step, case, networks[name])
        except Exception as error:
            why[name] = f"{task}: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            del networks[name]
        if name == STOCK:
            steps = STEPS if took < 1 else 1
    times: dict[str, list[float]] = {name: [] for name in networks}
    until = time.perf_counter() + seconds
    while len(times[STOCK]) < 2 or time.perf_counter() < until:
        for name, network in networks.items():
            times[name].append(statistics.median(_once(step, case, network) for _ in range(steps)))
    return times


def _once(step: Callable[[Case, nn.Module], None], case: Case, network: nn.Module) -> float:
    start = time.perf_counter()
    step(case, network)
    return time.perf_counter() - start


def _about(asked: Any, case: Case) -> dict[str, Any]:
    return {
        "project": asked.project, "size": asked.size, "atoms": asked.atoms, "edges": case.edges,
        "threads": asked.threads,
    }  # fmt: skip


# --- memory -----------------------------------------------------------------------------------------------------------


def peak(asked: Any, case: Case) -> list[Row]:
    """Peak memory of a training step above what the process held before, of stock and of converted.

    Each has a process of its own; there a step of a few atoms comes first, which builds kernels and loads libraries.
    """
    about = _about(asked, case)
    found = {mode: _in_child(asked, mode) for mode in (STOCK, CONVERTED)}
    base = found[STOCK]
    return [
        Row(**about, task=TRAINING, mode=mode, megabytes=m, ratio=base / m if base and m else None,
            why="" if m else "there was not enough memory")
        for mode, m in found.items()
    ]  # fmt: skip


def _in_child(asked: Any, mode: str) -> float | None:
    code = (
        "from benchmarks.network_measures import show_peak; "
        f"show_peak({asked.project!r}, {asked.size!r}, {asked.atoms}, {asked.threads}, {mode!r})"
    )
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    return float(process.stdout.splitlines()[-1]) if process.returncode == 0 else None


def show_peak(project: str, size: str, atoms: int, threads: int, mode: str) -> None:
    """Print the megabytes that a training step takes at its peak; Linux alone says so."""
    import resource

    torch.set_num_threads(threads)
    small, case = (SIZES[project][size](n, torch.float32) for n in (64, atoms))
    network = small.model if mode == STOCK else converted(small)
    training(small, network)
    network.zero_grad(set_to_none=False)
    available = int(_lines("/proc/meminfo")["MemAvailable"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (available, available))  # an error here, not the end of other programs
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident("VmRSS")
    training(case, network)
    print((_resident("VmHWM") - before) / 1024)


def _resident(name: str) -> int:
    return int(_lines("/proc/self/status")[name].split()[0])


def _lines(file: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(file).read_text().splitlines() if ":" in line)


# --- agreement --------------------------------------------------------------------------------------------------------


def agreement(case: Case) -> None:
    found, gradients = {}, {}
    for name, network in ((STOCK, case.model), (CONVERTED, converted(case))):
        found[name] = case.run(network, True)
        network.zero_grad()
        found[name]["forces"].square().sum().backward()
        gradients[name] = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    for key in found[STOCK]:
        print(f"{key:22} relative difference {_relative(found[STOCK][key], found[CONVERTED][key]):.1e}")
    worst = max(_relative(g, gradients[CONVERTED][n]) for n, g in gradients[STOCK].items())
    print(f"{'gradients (forces²)':22} relative difference {worst:.1e}")


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-300))


def profile(case: Case, rows: int = 25) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    network = converted(case)
    for task, step in TASKS.items():
        step(case, network)
        with profiler(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(3):
                step(case, network)
        print(task, found.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=60))


# --- the command ------------------------------------------------------------------------------------------------------


def line(row: Row) -> str:
    times = f"{1e3 * row.seconds:10.1f} ms" if row.seconds else ""
    memory = f"{row.megabytes:10.0f} MB" if row.megabytes else ""
    ratio = f"{row.ratio:6.2f}×" if row.ratio else ""
    ready = f"   ready after {row.ready:.0f} s" if row.ready else ""
    return f"{row.task:24}{row.mode:10}{times}{memory}{ratio}{ready}{row.why}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_measures")
    parser.add_argument("project", choices=SIZES)
    parser.add_argument("--size", help=f"of MACE: {', '.join(SIZES['mace'])}; of NequIP: {', '.join(SIZES['nequip'])}")
    parser.add_argument("--atoms", type=int, default=64, help="of a lattice: 64, 216, 512, 2000, ...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--inference", action="store_true", help="leave out training")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task")
    parser.add_argument("--modes", nargs="*", default=[], help="stock's own to measure as well: scripted, compiled")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows there too")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--memory", action="store_true", help="the peak memory of a training step instead of times")
    what.add_argument("--agree", action="store_true", help="compare in float64 instead of measuring")
    what.add_argument("--profile", action="store_true", help="show the operators of the converted network instead")
    what.add_argument("--report", action="store_true", help="show what is converted instead")
    asked: Any = parser.parse_args()
    asked.size = asked.size or next(iter(SIZES[asked.project]))
    for name, known in (("size", [asked.size]), ("modes", asked.modes)):
        table = SIZES if name == "size" else MODES
        if unknown := set(known) - set(table[asked.project]):
            parser.error(
                f"{asked.project} has no {name} {', '.join(unknown)}; it has {', '.join(table[asked.project])}"
            )
    torch.set_num_threads(asked.threads)
    dtype = torch.float64 if asked.agree or asked.double else torch.float32
    torch.set_default_dtype(dtype)
    case = SIZES[asked.project][asked.size](asked.atoms, dtype)
    print(f"{asked.project} {asked.size}, {asked.atoms} atoms, {case.edges} edges, {dtype}, {asked.threads} threads")
    if asked.agree:
        agreement(case)
    elif asked.profile:
        profile(case)
    elif asked.report:
        print(conversion_report(converted(case)))
    else:
        rows = (peak if asked.memory else in_turn)(asked, case)
        print("\n".join(map(line, rows)))
        if asked.json:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
