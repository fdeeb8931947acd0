"""Time the strategies for one plan on this machine, and remember the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpgen.compiler.tuning import remember_choice, strategies_of, why_unfit
from tpgen.inspection.clock import time_in_turns
from tpgen.inspection.costs.measured import passes
from tpgen.inspection.stages.request import Request


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


def tune(request: Request, seconds: float = 3.0, progress: Callable[[str], None] = lambda strategy: None) -> Tuning:
    """Time every strategy for a plan, in turn, and remember the fastest for modules made from now on.

    Of a polynomial the choice holds for any number of channels and elements.
    """
    plan, calls, left_out = request.computed, {}, {}
    for strategy in strategies_of(plan):
        if reason := why_unfit(plan, request, strategy):
            left_out[strategy] = reason
            continue
        progress(strategy)
        calls[strategy] = passes(replace(request, strategy=strategy))["backward"]
        calls[strategy]()  # compiled before anything is timed
    timings = time_in_turns(calls, request.device, seconds)
    tuning = Tuning({name: 1e3 * found.median for name, found in timings.items()}, left_out, request.rows)
    remember_choice(plan, request, tuning.fastest, tuning.milliseconds[tuning.fastest], request.rows)
    return tuning
