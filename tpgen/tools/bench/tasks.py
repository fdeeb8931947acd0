"""Timed tasks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.base.errors import BackendError, check_known
from tpgen.form.form import Layout, expand_layout
from tpgen.form.reference import reference_product
from tpgen.form.sampling import random_operands
from tpgen.planner.plan import Plan
from tpgen.tools.verification.subject import change_layout

TimedProduct = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Operands:
    """Inputs, weights and cotangents of a product."""

    x1: Tensor
    x2: Tensor
    w: Tensor  # without entries where the product has no weights
    out_cotangent: Tensor
    force_cotangent: Tensor  # of dE/dx2

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """Operands that require gradients."""
        return (self.x1, self.x2, self.w) if self.w.numel() else (self.x1, self.x2)

    def map_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Operands:
        """Operands changed by ``change(name, tensor)``; x1, x2, w require gradients."""
        changed = {name: change(name, tensor.detach()) for name, tensor in vars(self).items()}
        return Operands(**{name: t.requires_grad_(name in _LEAVES and t.numel() > 0) for name, t in changed.items()})


_LEAVES = ("x1", "x2", "w")
# The leg of the product whose components an operand or a result has; weights have none.
_LEG = {"x1": 0, "x2": 1, "force": 1, "force_cotangent": 1, "out": 2, "out_cotangent": 2}


def make_operands(plan: Plan, rows: int, dtype: torch.dtype, device: torch.device | str, seed: str = "") -> Operands:
    """Draw random operands in layout ``mul_ir``, reproducibly.

    >>> from tpgen.planner.problems import find_problem
    >>> make_operands(find_problem("article").plan, 32, torch.float32, "cpu").w.shape
    torch.Size([103])
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{plan.digest} {rows} {seed}".encode()))

    def draw(*names: str) -> list[Tensor]:
        return list(random_operands(plan, rows, names, generator=generator, dtype=dtype, device=device).values())

    x1, x2, w, cotangent = draw("x1", "x2", "w", "out")
    operands = Operands(x1, x2, w if plan.weight_numel else w.flatten(), cotangent, *draw("x2"))
    return operands.map_tensors(lambda name, tensor: tensor)


@dataclass(frozen=True)
class Task:
    """A timed pass, such as backward; ``run`` returns tensors named in ``results``."""

    name: str
    about: str
    results: tuple[str, ...]
    run: Callable[[TimedProduct, Operands], tuple[Tensor, ...]]
    label: str = ""  # as tables and pictures name it


def _run_forward(product: TimedProduct, operands: Operands) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (product(operands.x1, operands.x2, operands.w),)


def _run_forward_and_backward(product: TimedProduct, operands: Operands) -> tuple[Tensor, ...]:
    out = product(operands.x1, operands.x2, operands.w)
    return out.detach(), *torch.autograd.grad(out, operands.leaves, operands.out_cotangent)


def _run_double_backward(product: TimedProduct, operands: Operands) -> tuple[Tensor, ...]:
    # In a network the cotangent of the product depends on everything, so it gets a gradient as well.
    cotangent = operands.out_cotangent.detach().requires_grad_()
    out = product(operands.x1, operands.x2, operands.w)
    (force,) = torch.autograd.grad(out, operands.x2, cotangent, create_graph=True)
    cotangents = (operands.out_cotangent, operands.force_cotangent)
    return force.detach(), *torch.autograd.grad((out, force), (cotangent, *operands.leaves), cotangents)


TASKS: dict[str, Task] = {
    "forward": Task("forward", "the product, without gradients", ("out",), _run_forward, "forward"),
    "backward": Task(
        "backward",
        "forward, and gradients of x, y and w",
        ("out", "x1", "x2", "w"),
        _run_forward_and_backward,
        "forward+backward",
    ),
    "double": Task(
        "double",
        "forward, gradient of y, and gradients of both (x, y, w, cotangent), as training on forces takes them",
        ("force", "out_cotangent", "x1", "x2", "w"),
        _run_double_backward,
        "training on forces",
    ),
}


def select_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """Select tasks by name; default: all.

    >>> [task.name for task in select_tasks(["double", "forward"])]
    ['forward', 'double']
    """
    wanted = tuple(names) or tuple(TASKS)
    check_known("task", wanted, TASKS)
    return tuple(task for task in TASKS.values() if task.name in wanted)


def convert_operands_to_layout(plan: Plan, layout: Layout, operands: Operands) -> Operands:
    """Convert ``mul_ir`` operands to another layout."""
    if layout == "mul_ir":
        return operands
    return operands.map_tensors(lambda name, tensor: convert_tensor_to_layout(plan, layout, name, tensor))


def convert_tensor_to_layout(plan: Plan, layout: Layout, name: str, tensor: Tensor) -> Tensor:
    """Convert one ``mul_ir`` operand or result to another layout."""
    leg = _LEG.get(name)
    if leg is None or expand_layout(plan, layout)[leg] == "mul_ir":
        return tensor
    return change_layout(tensor, (plan.irreps_in1, plan.irreps_in2, plan.irreps_out)[leg], "mul_ir", "ir_mul")


def select_operand_rows(operands: Operands, plan: Plan, start: int, stop: int) -> Operands:
    """Operands' rows ``start`` to ``stop``; shared weights stay whole."""
    whole = ("w",) if plan.shared_weights or not plan.weight_numel else ()
    return operands.map_tensors(lambda name, tensor: tensor if name in whole else tensor[start:stop])


# Largest error allowed, relative to the largest entry of the right result.
BOUNDS: dict[torch.dtype, float] = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
_CHUNK = 256  # rows; the definition builds dense intermediates


def error_bound(dtype: torch.dtype) -> float:
    """A dtype's allowed relative error."""
    if dtype not in BOUNDS:
        known = ", ".join(str(d).removeprefix("torch.") for d in BOUNDS)
        raise BackendError(f"benchmarks run in {known}, not in {str(dtype).removeprefix('torch.')}")
    return BOUNDS[dtype]


def compute_expected_results(plan: Plan, task: Task, operands: Operands) -> tuple[Tensor, ...]:
    """Compute a task's results by the slow definition, in float64 and ``mul_ir``."""
    exact = operands.map_tensors(lambda name, tensor: tensor.to(torch.float64, copy=True))
    parts = []
    for start in range(0, len(exact.x1), _CHUNK):
        chunk = select_operand_rows(exact, plan, start, start + _CHUNK)
        parts.append(task.run(lambda x1, x2, w: reference_product(plan, x1, x2, w), chunk))
    by_result = zip(task.results, zip(*parts, strict=True), strict=False)
    return tuple(sum(p[1:], p[0]) if name == "w" and plan.shared_weights else torch.cat(p) for name, p in by_result)


def find_largest_error(
    plan: Plan, task: Task, layout: Layout, results: Sequence[Tensor], expected: Sequence[Tensor]
) -> tuple[float, str]:
    """Largest relative error and its result's name; infinite for wrong shapes and NaN."""
    triples = zip(task.results, results, expected, strict=False)
    errors = [
        (_max_relative_error(result, convert_tensor_to_layout(plan, layout, name, right)), name)
        for name, result, right in triples
    ]
    if len(results) != len(expected):
        errors.append((math.inf, "number of results"))
    return max(errors)


def _max_relative_error(result: Tensor, expected: Tensor) -> float:
    if result.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    error = (result.to(expected.dtype) - expected).abs().max() / expected.abs().max().clamp_min(1e-300)
    return float(error) if torch.isfinite(error) else math.inf
