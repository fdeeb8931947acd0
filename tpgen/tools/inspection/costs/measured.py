"""Measured times of products, paths and strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tpgen.base.clock import time_in_turns
from tpgen.compiler.tuning import list_strategies, save_measured_choice, why_strategy_cannot_run
from tpgen.nn.modules import build_module
from tpgen.nn.planned import PlannedModule
from tpgen.tools.inspection.stages.request import Request


def make_benchmark_calls(request: Request, nodes: int | None = None) -> dict[str, Callable[[], None]]:
    """Make calls on random operands: ``forward``, and ``backward`` with forward; with ``nodes``, of a convolution."""
    run, operands = _make_call_on_random_operands(request, nodes)
    for operand in operands:
        operand.requires_grad_()

    def run_forward() -> None:
        with torch.no_grad():
            run()

    def run_forward_and_backward() -> None:
        for x in operands:
            x.grad = None
        run().sum().backward()

    return {"forward": run_forward, "backward": run_forward_and_backward}


def time_paths(request: Request, seconds: float) -> dict[int, float]:
    """Time each path as a product of its own, for ``seconds`` each; return medians."""
    # in turn, so that other load falls on all paths; the sum exceeds the product's time, as paths share work
    plan, calls = request.plan, {}
    for n, paths in plan.by_instruction.items():
        # graphs run eagerly: compiling each path alone would take minutes
        calls[str(n)], _ = _make_call_on_random_operands(
            replace(request, plan=plan.maker.plan_of_path(plan, paths[0]), backend="eager")
        )
    with torch.no_grad():
        found = time_in_turns(calls, request.device, len(calls) * seconds)
    return {int(n): timing.median for n, timing in found.items()}


def _make_call_on_random_operands(
    request: Request, nodes: int | None = None
) -> tuple[Callable[[], Tensor], list[Tensor]]:
    module, generator = build_request_module(request, nodes is not None), torch.Generator().manual_seed(0)
    indexed = request.indexed if nodes is None else nodes

    def random_tensor_like(like: Tensor) -> Tensor:
        if not like.is_floating_point():
            return torch.randint(indexed, like.shape, generator=generator).to(request.device)
        x = torch.randn(like.shape, generator=generator, dtype=torch.float64)
        return x.to(device=request.device, dtype=request.dtype)

    operands = [random_tensor_like(x) for x in module.meta_operands(request.rows, nodes)]
    return lambda: module.call_on_operands(*operands), [x for x in operands if x.is_floating_point()]


def build_request_module(request: Request, convolution: bool = False) -> PlannedModule:
    """Build a request's module, without internal weights."""
    module = build_module(request.plan, edges=convolution, **request.module_options)
    return module.to(device=request.device, dtype=request.dtype)


@dataclass(frozen=True)
class Tuning:
    """Median milliseconds of forward and backward by strategy."""

    milliseconds: dict[str, float]
    left_out: dict[str, str]
    rows: int

    @property
    def fastest(self) -> str:
        return min(self.milliseconds, key=self.milliseconds.__getitem__)

    def __str__(self) -> str:
        times = sorted(self.milliseconds.items(), key=lambda item: item[1])
        lines = [f"{name:10s} {ms:9.3f} ms" for name, ms in times]
        lines += [f"{name:10s} left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join([f"forward+backward of {self.rows} rows", *lines])


def tune(request: Request, seconds: float = 3.0, progress: Callable[[str], None] = lambda strategy: None) -> Tuning:
    """Time every strategy, and remember the fastest for new modules."""
    plan, calls, left_out = request.computed, {}, {}
    for strategy in list_strategies(plan):
        if reason := why_strategy_cannot_run(plan, request, strategy):
            left_out[strategy] = reason
            continue
        progress(strategy)
        calls[strategy] = make_benchmark_calls(replace(request, strategy=strategy))["backward"]
        calls[strategy]()  # compiled before anything is timed
    timings = time_in_turns(calls, request.device, seconds)
    tuning = Tuning({name: 1e3 * found.median for name, found in timings.items()}, left_out, request.rows)
    # of a polynomial for any number of channels and elements
    save_measured_choice(plan, request, tuning.fastest, tuning.milliseconds[tuning.fastest], request.rows)
    return tuning
