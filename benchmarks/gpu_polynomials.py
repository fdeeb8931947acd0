"""Named polynomials on this machine's GPU, forward, backward and second derivatives: a step of `make gpu`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_checks import polynomial_of_rows, random_polynomial_operands
from benchmarks.gpu_clock import copies_beyond_cache, device_seconds, seconds_of
from benchmarks.gpu_times import gradients, second_gradients, without_gradients
from tpgen.base.text import duration, table
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS, forward_call
from tpgen.planner.problems import POLYNOMIALS, Problem

TASKS = POLYNOMIAL_CALLS
Row = dict[str, Any]


def polynomial_row(name: str, task: str, rows: int, device: str, seconds: float) -> Row:
    """One call of a polynomial: seconds from Python and on the device."""
    problem = POLYNOMIALS[name]
    first = _call(problem, task, rows, device)
    size = sum(x.numel() * x.element_size() for x in _operands(problem, rows, device))
    copies = range(copies_beyond_cache(size, device) - 1)
    eager = seconds_of(first, device, seconds)
    found, held = device_seconds([first, *(_call(problem, task, rows, device) for _ in copies)], device, eager)
    return {"problem": name, "rows": rows, "task": task, "seconds": found, "held": held, "eager": eager}


def _operands(problem: Problem, rows: int, device: str) -> list[Tensor]:
    made = random_polynomial_operands(problem.plan, rows, problem.channels, problem.elements)
    return [x.to(device, torch.float32).requires_grad_() for x in made]


def _call(problem: Problem, task: str, rows: int, device: str) -> Callable[[], object]:
    given = _operands(problem, rows, device)
    index = (torch.arange(rows) % problem.elements).to(device) if problem.elements > 1 else None
    run = partial(polynomial_of_rows, given, index, problem.plan.to_json(), str(forward_call(problem.plan)))
    return _MADE[task](run, given)


def _backward(run: Callable[[], Tensor], given: list[Tensor]) -> Callable[[], object]:
    return gradients(run(), given)


_MADE: dict[str, Callable[[Callable[[], Tensor], list[Tensor]], Callable[[], object]]] = {
    "forward": without_gradients,
    "backward": _backward,
    "second": second_gradients,
}


def polynomial_table(rows: list[Row]) -> str:
    heads = ("problem", "rows", "task", "on the device", "from Python")
    times = ("seconds", "eager")
    return table([heads, *((*(r[k] for k in heads[:3]), *(duration(r[k]) for k in times)) for r in rows)], left=(0, 2))
