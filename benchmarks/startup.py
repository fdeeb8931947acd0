"""What a fresh process pays: building kernels, starting with a filled cache, and the memory of a convolution.

Each is measured in a process of its own, which runs this module and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.graphs import GRAPH, Graph, conv_operands, conv_product
from benchmarks.problems import problem_named
from tpgen.base.errors import BackendError
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import OPENED_BY_DIRECTION, ProductDescription
from tpgen.kernels.runtime.warm import warm
from tpgen.nn.tensor_product import TensorProduct
from tpgen.tools.bench.run import measure_peak_bytes
from tpgen.tools.bench.tasks import TASKS, make_operands

_ROOT = Path(__file__).resolve().parents[1]


def in_fresh_process(job: str, *arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run one of `JOBS` in a new process and return what it found.  A `BackendError` tells what it said last."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "benchmarks.startup", job, *arguments]
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["(no output)"])[-1]
        raise BackendError(f"{job} in a fresh process failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def _build(name: str) -> dict[str, float]:
    """Seconds to build the forward and the backward kernel of a problem."""
    plan = problem_named(name).plan
    start = time.perf_counter()
    warm([plan])
    return {name: time.perf_counter() - start}


def _build_one(name: str, direction: str) -> dict[str, float]:
    """Seconds to build one of those."""
    description = ProductDescription(problem_named(name).plan, ("mul_ir",) * 3)
    start = time.perf_counter()
    load_kernel(description.source(make_product_call(OPENED_BY_DIRECTION[direction]), torch.float32).text)
    return {direction: time.perf_counter() - start}


def _start(*names: str) -> dict[str, float]:
    """Seconds to plan, construct and first call each product, without what a plain call takes."""
    found = {}
    for name in names:
        start = time.perf_counter()
        plan = problem_named(name).plan
        product = TensorProduct.from_plan(plan, internal_weights=False)
        constructed = time.perf_counter() - start
        operands = make_operands(plan, 32, torch.float32, "cpu")
        arguments = (operands.x1, operands.x2, operands.w)[: 3 if plan.weight_numel else 2]
        seconds = []
        with torch.no_grad():
            for _ in range(5):
                start = time.perf_counter()
                product(*arguments)
                seconds.append(time.perf_counter() - start)
        found[name] = constructed + max(0.0, seconds[0] - min(seconds[1:]))
    return found


def _memory(name: str, *edges: str) -> dict[str, list[int]]:
    """Bytes that a convolution takes above its operands and results, by task, for each number of edges."""
    plan = problem_named(name).plan
    found: dict[str, list[int]] = {task: [] for task in ("forward", "backward")}
    for number in edges:
        graph = Graph(GRAPH.nodes, int(number))
        operands, product = conv_operands(plan, graph, torch.float32), conv_product(plan, graph)
        for task, extra in found.items():
            call = partial(TASKS[task].run, product, operands)
            results = sum(result.nbytes for result in call())
            extra.append(max(0, _resident_growth(call) - results))
    return found


def _resident_growth(call: Callable[[], object]) -> int:
    """How many bytes of memory the process held at most during a call above what it held before.

    Off Linux, where the system does not say, what torch allocated.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is held now
        before = _status("VmRSS")
        kept = call()
        del kept
        return _status("VmHWM") - before
    except OSError:
        return measure_peak_bytes(call, torch.device("cpu"))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "build": _build,
    "build-one": _build_one,
    "start": _start,
    "memory": _memory,
}

# Memory shows only where nothing is kept for later: results on their own pages, freed blocks back to the system.
SHOW_MEMORY = {"TPGEN_REUSE_MB": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
