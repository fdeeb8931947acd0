"""Measured choices: time the strategies for one product on this machine, remember the fastest on disk.

A remembered choice takes precedence over the model of `tpgen.compiler.autotune`.  It is kept beside the compiled
kernels (``TPGEN_CACHE_DIR``), one small file for each product, layout, dtype, backend and processor, with a compiler
and without.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tpgen._version import __version__
from tpgen.compiler.config import Choice, Config
from tpgen.compiler.run import run_form
from tpgen.emitter.emit import emit_form
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.form import Slot, form_of, layouts_of
from tpgen.kernels.build import cache
from tpgen.kernels.build.compiler import cpu_features, find_compiler
from tpgen.kernels.build.trust import read_own
from tpgen.kernels.cuda.driver import gpu_name
from tpgen.kernels.runtime.targets import kernel_supported
from tpgen.planner.plan import Plan


@dataclass(frozen=True)
class Tuning:
    """Median times of one forward and backward pass, in milliseconds by strategy, and what was left out and why."""

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


def tune(
    plan: Plan,
    config: Config,
    rows: int,
    seconds: float = 3.0,
    progress: Callable[[str], None] = lambda strategy: None,
) -> Tuning:
    """Time every strategy for a product, in turn, and remember the fastest for products made from now on."""
    candidates, left_out = [], {}
    for strategy in STRATEGIES:
        reason = _unfit(plan, config, strategy)
        if reason:
            left_out[strategy] = reason
        else:
            progress(strategy)
            candidates.append((strategy, _step(plan, config, strategy, rows)))
    times: dict[str, list[float]] = {strategy: [] for strategy, _ in candidates}
    until = time.perf_counter() + seconds
    while not times[candidates[-1][0]] or time.perf_counter() < until:
        for strategy, step in candidates:
            start = time.perf_counter()
            step()
            times[strategy].append(time.perf_counter() - start)
    tuning = Tuning({s: 1e3 * statistics.median(t) for s, t in times.items()}, left_out, rows)
    _remember(plan, config, tuning)
    return tuning


def measured_choice(plan: Plan, config: Config) -> Choice | None:
    """The choice that was measured for a product, if one was."""
    try:
        fields = json.loads(read_own(_file(plan, config, cache.default_directory())))
        strategy, milliseconds = fields["strategy"], float(fields["milliseconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(strategy, str) or strategy not in STRATEGIES or _unfit(plan, config, strategy):
        return None
    return Choice(strategy, f"the fastest of those measured here, {milliseconds:.3g} ms for {fields.get('rows')} rows")


def _remember(plan: Plan, config: Config, tuning: Tuning) -> None:
    fastest = tuning.fastest
    fields = {"strategy": fastest, "milliseconds": tuning.milliseconds[fastest], "rows": tuning.rows}
    cache.write_whole(_file(plan, config, cache.current_directory()), json.dumps(fields))


def _file(plan: Plan, config: Config, directory: Path) -> Path:
    parts = (
        plan.digest, *layouts_of(plan, config.layout), str(config.dtype), config.backend, _processor(config),
        cpu_features(), find_compiler() is not None, __version__,
    )  # fmt: skip
    return directory / (hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32] + ".choice.json")


def _processor(config: Config) -> str:
    """Name of the processor that a program runs on: one machine may have GPUs of several kinds."""
    device = torch.device(config.device)
    return gpu_name(device) if device.type == "cuda" else device.type


def _unfit(plan: Plan, config: Config, strategy: str) -> str | None:
    if strategy == "kernel":
        return kernel_supported(plan, config.layout, config.dtype, config.device)
    return None


def _step(plan: Plan, config: Config, strategy: str, rows: int) -> Callable[[], None]:
    """One forward and backward pass on random operands, called once so that everything is compiled."""
    like = torch.empty(0, device=config.device, dtype=config.dtype)
    form = form_of(plan, config.layout)
    program = emit_form(form, strategy).module().to(like)
    run = run_form(form, program, replace(config, strategy=strategy), like)

    def random(slot: Slot, **options: Any) -> Tensor:
        shape = ((rows,) if form.row(slot) else ()) + form.shape(slot)
        return torch.randn(shape, device=config.device, dtype=config.dtype, **options)

    operands = [random(slot, requires_grad=True) for slot in form.given]
    wanted = [x for x in operands if x.numel()]
    cotangent = random(form.opened)

    def step() -> None:
        out: Tensor = run(*operands)
        torch.autograd.grad(out, wanted, cotangent, allow_unused=True)
        if out.is_cuda:
            torch.cuda.synchronize()

    step()
    return step
