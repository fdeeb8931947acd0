"""Measured strategies, on disk (``TPGEN_CACHE_DIR``) per plan, layout, dtype, backend and processor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch

from tpgen._version import __version__
from tpgen.compiler.config import Choice, Config
from tpgen.emitter.polynomial import POLYNOMIAL_STRATEGIES
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.form import expand_layout
from tpgen.kernels.build import cache
from tpgen.kernels.build.compiler import find_compiler
from tpgen.kernels.build.processor import cpu_features, instruction_set
from tpgen.kernels.build.trust import read_private_file
from tpgen.kernels.cuda.driver import gpu_name
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS, Plan

_STRATEGIES: dict[str, Iterable[str]] = {OF_PATHS: STRATEGIES, OF_MONOMIALS: POLYNOMIAL_STRATEGIES}


def list_strategies(plan: Plan) -> tuple[str, ...]:
    """Strategies that can write a plan."""
    return tuple(_STRATEGIES[plan.maker.form])


def read_measured_choice(plan: Plan, config: Config) -> Choice | None:
    """A plan's fastest measured strategy on disk, or None."""
    try:
        fields = json.loads(
            read_private_file(_find_file_of_measured_choice(plan, config, cache.default_cache_directory()))
        )
        strategy, milliseconds = fields["strategy"], float(fields["milliseconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if (
        not isinstance(strategy, str)
        or strategy not in list_strategies(plan)
        or why_strategy_cannot_run(plan, config, strategy)
    ):
        return None
    return Choice(strategy, f"the fastest of those measured here, {milliseconds:.3g} ms for {fields.get('rows')} rows")


def save_measured_choice(plan: Plan, config: Config, strategy: str, milliseconds: float, rows: int) -> None:
    """Save a plan's fastest strategy on disk."""
    fields = {"strategy": strategy, "milliseconds": milliseconds, "rows": rows}
    cache.write_atomically(
        _find_file_of_measured_choice(plan, config, cache.open_cache_directory()), json.dumps(fields)
    )


def why_strategy_cannot_run(plan: Plan, config: Config, strategy: str) -> str | None:
    """Why a strategy cannot run here, or None."""
    if strategy == "kernel":
        return why_kernel_unsupported(plan, config.layout, config.dtype, config.device)
    return None


def _find_file_of_measured_choice(plan: Plan, config: Config, directory: Path) -> Path:
    parts = (
        plan.digest, *expand_layout(plan, config.layout), str(config.dtype), config.backend,
        _find_processor_name(config), cpu_features(), instruction_set().name, find_compiler() is not None, __version__,
    )  # fmt: skip
    return directory / (hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32] + ".choice.json")


def _find_processor_name(config: Config) -> str:
    # one machine may have GPUs of several kinds
    device = torch.device(config.device)
    return gpu_name(device) if device.type == "cuda" else device.type
