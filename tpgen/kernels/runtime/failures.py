"""Failures to build kernels; `auto` then chooses graphs."""

from __future__ import annotations

from typing import Any

import torch

from tpgen.base.errors import KernelError, warn_caller
from tpgen.base.remember import RegisteredCache, register_cache
from tpgen.kernels.arguments import KernelSpec
from tpgen.planner.plan import Plan

_Key = tuple[Plan, tuple[str, ...], torch.dtype, str]
_reasons: dict[_Key, str] = {}  # no shelf: a reason that is forgotten would be met again, and again
register_cache(RegisteredCache("forms whose kernels cannot be built", _reasons.__len__, None, None))
_seen: list[str] = []  # by name, as often as any was noted


def failures_seen() -> int:
    """Count this process's build failures."""
    return len(_seen)


def find_build_failure(description: Any, dtype: torch.dtype, device: str) -> str | None:
    """Reason of a kernel's failed build in this process, or None."""
    dtypes = (dtype, torch.float32) if dtype == torch.bfloat16 else (dtype,)
    found = (_reasons.get(_failure_key(description, one, device)) for one in dtypes)
    return next((reason for reason in found if reason), None)


def record_build_failure(spec: KernelSpec, device: str, error: KernelError) -> None:
    """Record a failed build of a kernel; warn at a product's first."""
    key = _failure_key(spec.description, spec.dtype, device)
    if key in _reasons:
        return
    name = summarize_plan(spec.description.plan)
    _reasons[key] = f"it cannot be built: {error.reason}"
    _seen.append(name)
    dtype = str(spec.dtype).removeprefix("torch.")
    warn_caller(
        f"the kernel of {name} ({spec.call}, {dtype}) cannot be built: {error.reason}\n"
        "graphs compute this product from here on, which is right and slower; TPGEN_CXX names another compiler, "
        "strategy='grouped' chooses graphs without this message, and `tpgen cache clear` forgets what was refused"
    )


def _failure_key(description: Any, dtype: torch.dtype, device: str) -> _Key:
    return description.plan, getattr(description, "layout", ()), dtype, device


def summarize_plan(plan: Plan) -> str:
    """Summarize a plan in one line: irreps, number of paths, digest."""
    ends = " x ".join(str(o.irreps.simplify()) for o in plan.inputs)
    text = f"{ends} -> {plan.out.irreps.simplify()}"
    return f"{text if len(text) <= 100 else text[:97] + '...'} ({len(plan.paths)} paths, {plan.digest})"
