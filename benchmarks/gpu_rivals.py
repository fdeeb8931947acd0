"""Other libraries' products on this machine's GPU, timed as ours are: step four of `make gpu`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_clock import Clock, copies_beyond_cache, device_seconds, seconds_of
from tpgen.base import clock
from tpgen.base.errors import BackendError, EmitError
from tpgen.planner.problems import Problem
from tpgen.tools.bench.contenders import Contender, select_contenders
from tpgen.tools.bench.records import Record
from tpgen.tools.bench.tasks import (
    TASKS,
    Operands,
    Task,
    TimedProduct,
    compute_expected_results,
    convert_operands_to_layout,
    error_bound,
    find_largest_error,
    make_operands,
)

# Where a library has two layouts, the faster one counts.
RIVALS = ("e3nn/script", "cuequivariance*/eager", "openequivariance/*", "tpgen-auto/eager", "tpgen-auto-ir_mul/eager")
Row = dict[str, Any]


def rival_rows(problem: Problem, rows: int, device: str, seconds: float, clock: Clock) -> Iterator[tuple[Record, Row]]:
    """A record for each library and task, and what belongs to it; those that there is time for."""
    operands = make_operands(problem.plan, rows, torch.float32, torch.device(device))
    expected = {}
    for contender in select_contenders(RIVALS):
        blank = partial(Record, problem.name, contender=contender.name, rows=rows, layout=str(contender.layout))
        if not clock.left:
            yield blank("all", status="unavailable", reason="time is up"), {}
            continue
        try:
            if reason := contender.why_task_cannot_run("forward", torch.device(device)):
                raise BackendError(reason)
            product = contender.build(problem.plan, torch.float32, torch.device(device))
            for task in TASKS.values():
                if not clock.left:
                    yield blank(task.name, status="unavailable", reason="time is up"), {}
                    continue
                if task.name not in expected:
                    expected[task.name] = compute_expected_results(problem.plan, task, operands)
                yield _timed(problem, contender, product, task, operands, expected[task.name], seconds)
        except Exception as error:
            status = "unavailable" if isinstance(error, BackendError | EmitError) else "failed"
            yield blank("all", status=status, reason=f"{type(error).__name__}: {error}"[:200]), {}


def _timed(
    problem: Problem,
    contender: Contender,
    product: TimedProduct,
    task: Task,
    operands: Operands,
    expected: Sequence[torch.Tensor],
    seconds: float,
) -> tuple[Record, Row]:
    """One task: its first call, whether it is right, and its time."""
    device = operands.x1.device.type
    size = sum(x.numel() * x.element_size() for x in (operands.x1, operands.x2, operands.w, expected[0]))
    copies = [operands.map_tensors(lambda name, x: x.clone()) for _ in range(copies_beyond_cache(size, device))]
    calls = [
        partial(task.run, product, convert_operands_to_layout(problem.plan, contender.layout, one)) for one in copies
    ]
    first = clock.time_calls(calls[0], device)
    calls[0]()  # TorchScript rewrites its graph at the second call
    error, where = find_largest_error(problem.plan, task, contender.layout, calls[0](), expected)
    layout = str(contender.layout)
    record = Record(problem.name, task.name, contender.name, "ok", len(operands.x2), layout, error=error, first=first)
    if not error <= error_bound(torch.float32):
        return Record(**vars(record) | {"status": "wrong", "reason": f"{where} is off by {error:.1e}"}), {}
    eager = seconds_of(calls[0], device, seconds)
    median, held = device_seconds(calls, device, eager)
    return Record(**vars(record) | {"median": median, "min": median}), {"eager": eager, "held": held}
