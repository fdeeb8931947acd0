"""NVIDIA's tools on a small problem, where they are installed: a step of `make gpu`.

`compute-sanitizer` finds accesses outside of memory and races, `ncu` says what bounds a kernel.  Each is a process of
its own, `python -m benchmarks.gpu_tools`, which runs every kind of kernel once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu_checks import of_polynomial, polynomial_of_rows, random_polynomial_operands, second_order
from benchmarks.gpu_times import convolution, product_of_edges
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.problems import POLYNOMIALS

_FOUND = 9  # the exit code of a sanitizer that has found something
_METRICS = ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__time_duration.sum")  # fmt: skip
_NCU = "--clock-control none --kernel-name regex:tpgen --launch-count 6 --csv --metrics"


class Tool(NamedTuple):
    """A tool and its options."""

    program: str
    options: tuple[str, ...]


TOOLS = {
    "memcheck": Tool("compute-sanitizer", ("--tool", "memcheck", "--error-exitcode", str(_FOUND))),
    "racecheck": Tool("compute-sanitizer", ("--tool", "racecheck", "--error-exitcode", str(_FOUND))),
    "ncu": Tool("ncu", (*_NCU.split(), ",".join(_METRICS))),
}


class Said(NamedTuple):
    """What a tool found: whether all is well, None where it could not say, and its last words."""

    passed: bool | None
    words: str


def ask(name: str, device: str, seconds: float) -> Said:
    """Run a tool over the small problems, for so long at most."""
    program, options = TOOLS[name]
    if not (path := shutil.which(program)):
        return Said(None, f"{program} is not on PATH")
    command = [path, *options, sys.executable, "-m", "benchmarks.gpu_tools", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Said(None, "time is up")
    words = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    if done.returncode not in (0, _FOUND):  # as where a driver lets no user profile
        return Said(None, words)
    return Said(done.returncode == 0, words)


def small_problems(device: str) -> None:
    """Kernels of every kind, with gradients of both orders."""
    plans = (
        channelwise("40x0e+40x1o", "0e+1o", "0e+1o", shared_weights=False),
        channelwise("40x0e+40x1o", "0e+1o", "0e+1o", shared_weights=True),
        fully_connected("6x0e+6x1o", "0e+1o", "6x0e+6x1o", shared_weights=False),
    )
    for plan in plans:
        given, graph = convolution(plan, 60, device)
        inputs = [x.requires_grad_() for x in given]
        first = torch.autograd.grad(product_of_edges(*inputs, **graph).square().sum(), inputs, create_graph=True)
        second_order(first, inputs)
    problem = POLYNOMIALS["mace-contraction"]
    made = random_polynomial_operands(problem.plan, 20, problem.channels, problem.elements)
    index = (torch.arange(20) % problem.elements).to(device)
    call = problem.plan.to_json(), str(forward_call(problem.plan))
    of_polynomial(lambda xs, rows: polynomial_of_rows(xs, rows, *call), [x.to(device).float() for x in made], index)


def main(arguments: Sequence[str]) -> None:
    small_problems(*arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
