"""Resolve ``strategy="auto"``: measured choices first, then rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from tpgen.base.errors import EmitError, unknown, warn_caller
from tpgen.compiler.config import Choice, Config
from tpgen.compiler.tuning import list_strategies, read_measured_choice
from tpgen.kernels.runtime import targets
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.kernels.runtime.failures import find_build_failure
from tpgen.kernels.runtime.targets import target_of
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS, Plan


def choose_strategy(plan: Plan, config: Config) -> Choice:
    """Resolve ``auto`` to a strategy and a reason; keep other names.

    A failed kernel becomes a graph strategy.  Raises `EmitError` for an unknown name.

    >>> from tpgen.planner.presets import channelwise
    >>> str(choose_strategy(channelwise("8x1o", "1o", "1o+1e"), Config(backend="inductor", device="cuda")))
    'unrolled (inductor fuses unrolled couplings into one loop)'
    >>> from tpgen.planner.harmonics import make_harmonics_plan
    >>> str(choose_strategy(make_harmonics_plan("1o", [1], "norm"), Config(dtype=torch.float16)))
    'einsum (kernels compute in float32, float64 or bfloat16, not in float16)'
    """
    if config.strategy == "auto":
        return next(choice for rule in _RULES[plan.maker.form] if (choice := rule(plan, config)))
    known = list_strategies(plan)
    if not isinstance(config.strategy, str) or config.strategy not in known:
        raise EmitError(unknown("strategy", config.strategy, (*known, "auto")))
    if config.strategy == "kernel":
        failed = find_build_failure(description_of_plan(plan, config.layout), config.dtype, config.device_type)
        if failed:
            return Choice(_GRAPH_STRATEGIES[plan.maker.form], f"a kernel was asked for, and {failed}")
    return Choice(config.strategy, "asked for")


def _choose_grouped_if_streams(plan: Plan, config: Config) -> Choice | None:
    if config.streams:
        return Choice("grouped", "streams carry the paths of a graph side by side")
    return None


def _choose_kernel_if_possible(plan: Plan, config: Config) -> Choice | None:
    target = target_of(config.device_type)
    if target is None:
        return None
    if (missing := target.missing(torch.device(config.device))) and target.remedy:
        warn_once_of_missing_kernels(missing, target.remedy)
    if missing or _why_no_kernel(plan, config) is not None:
        return None
    return Choice("kernel", f"a generated {target.language} kernel, compiled at the first call")


def _choose_graph_for_inductor(plan: Plan, config: Config) -> Choice | None:
    # inductor turns scalar multiply-adds into one loop; eager execution pays for each
    if config.backend != "inductor":
        return None
    if any(path.mode.mixing for path in plan.paths):
        return Choice("grouped", "weights mix copies, which is matrix products")
    return Choice("unrolled", "inductor fuses unrolled couplings into one loop")


def _choose_grouped_without_kernel(plan: Plan, config: Config) -> Choice:
    reason = _why_no_kernel(plan, config)
    if reason == targets.NO_PATHS:
        return Choice("grouped", reason)
    return Choice("grouped", f"few large operations, as {config.backend} runs them one by one; no kernel: {reason}")


def _why_no_kernel(plan: Plan, config: Config) -> str | None:
    return targets.why_auto_takes_no_kernel(plan, config.layout, config.dtype, config.device)


def _choose_einsum_without_kernel(plan: Plan, config: Config) -> Choice:
    return Choice("einsum", _why_no_kernel(plan, config) or "")


_GRAPH_STRATEGIES = {OF_PATHS: "grouped", OF_MONOMIALS: "einsum"}  # in the place of kernels

_RULES: dict[str, tuple[Callable[[Plan, Config], Choice | None], ...]] = {
    OF_PATHS: (
        _choose_grouped_if_streams,
        read_measured_choice,
        _choose_kernel_if_possible,
        _choose_graph_for_inductor,
        _choose_grouped_without_kernel,
    ),
    OF_MONOMIALS: (read_measured_choice, _choose_kernel_if_possible, _choose_einsum_without_kernel),
}


@cache
def warn_once_of_missing_kernels(missing: str, remedy: str) -> None:
    """Warn once that graphs replace kernels."""
    warn_caller(
        f"{missing}: products run as fx graphs, which is slower. {remedy}; strategy='grouped' chooses graphs without "
        "this message"
    )
