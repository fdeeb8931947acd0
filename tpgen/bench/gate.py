"""The gate before the clock: a contender whose results are wrong is not timed.

Results are compared with the slow definition in float64, gradients with autograd through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.bench.tasks import Operands, Task, reorder, rows_between
from tpgen.errors import BackendError
from tpgen.form.form import Layout
from tpgen.form.reference import reference_product
from tpgen.planner.plan import Plan

# Largest error allowed, relative to the largest entry of the right result.
BOUNDS: dict[torch.dtype, float] = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
_CHUNK = 256  # rows; the definition builds dense intermediates


def bound(dtype: torch.dtype) -> float:
    """The error that results of that dtype may have, or a `BackendError` that lists the dtypes."""
    if dtype not in BOUNDS:
        known = ", ".join(str(d).removeprefix("torch.") for d in BOUNDS)
        raise BackendError(f"benchmarks run in {known}, not in {str(dtype).removeprefix('torch.')}")
    return BOUNDS[dtype]


def expected_results(plan: Plan, task: Task, operands: Operands) -> tuple[Tensor, ...]:
    """The right results of a task in float64 and ``mul_ir``, computed from the operands as they were rounded.

    Rows are independent, so they are computed in chunks; gradients of shared weights are summed over them.
    """
    exact = operands.map(lambda name, tensor: tensor.to(torch.float64, copy=True))
    parts = []
    for start in range(0, len(exact.x1), _CHUNK):
        chunk = rows_between(exact, plan, start, start + _CHUNK)
        parts.append(task.run(lambda x1, x2, w: reference_product(plan, x1, x2, w), chunk))
    by_result = zip(task.results, zip(*parts, strict=True), strict=False)
    return tuple(sum(p[1:], p[0]) if name == "w" and plan.shared_weights else torch.cat(p) for name, p in by_result)


def largest_error(
    plan: Plan, task: Task, layout: Layout, results: Sequence[Tensor], expected: Sequence[Tensor]
) -> tuple[float, str]:
    """The largest error, relative to the largest right entry, and the name of the result that has it.

    Infinite where a shape is wrong or a number is not finite.
    """
    triples = zip(task.results, results, expected, strict=False)
    errors = [(_relative_error(result, reorder(plan, layout, name, right)), name) for name, result, right in triples]
    if len(results) != len(expected):
        errors.append((math.inf, "number of results"))
    return max(errors)


def _relative_error(result: Tensor, right: Tensor) -> float:
    if result.shape != right.shape:
        return math.inf
    if not right.numel():
        return 0.0
    error = (result.to(right.dtype) - right).abs().max() / right.abs().max().clamp_min(1e-300)
    return float(error) if torch.isfinite(error) else math.inf
