"""A cost that a plan does not tell: the time of each path alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from tpgen.inspection.clock import time_in_turns
from tpgen.inspection.costs.measured import runnable
from tpgen.inspection.stages.request import Request
from tpgen.planner.plan import Path, Plan


def seconds_of_paths(request: Request, seconds: float) -> dict[int, float]:
    """The time of every path as a product of its own, in the strategy of the whole.

    Their sum is more than the whole: what paths share is done anew for each.  All paths are timed in turn, and again:
    what else the machine does for a while then falls on no path alone.
    """
    calls = {n: _call_of(request, paths[0]) for n, paths in request.plan.by_instruction.items()}
    return seconds_in_turn(calls, request.device, seconds)


def seconds_in_turn(calls: Mapping[int, Callable[[], object]], device: str, seconds: float) -> dict[int, float]:
    """The median time of each call, without gradients; all take turns."""
    with torch.no_grad():
        found = time_in_turns({str(index): call for index, call in calls.items()}, device, len(calls) * seconds)
    return {index: found[str(index)].median for index in calls}


def _call_of(request: Request, path: Path) -> Callable[[], object]:
    # graphs run eagerly: compiling each path alone would take minutes
    run, _ = runnable(replace(request, plan=path_alone(request.plan, path), backend="eager"))
    return run


def path_alone(plan: Plan, path: Path) -> Plan:
    """The plan of one path on its segments alone, or of one term.

    >>> from tpgen.planner.presets import channelwise
    >>> plan = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    >>> print(*path_alone(plan, plan.paths[1]).paths[0].ls)
    1 1 0
    """
    return plan.maker.alone(plan, path)


_WRITTEN = {"channel": "C++ loop over channels", "batch": "C++ loop over rows", "matrix": "C++ matrix product"}


def written_as(request: Request) -> dict[int, str]:
    """Say in a few words how each path is written."""
    if request.strategy == "kernel":
        return {index: _WRITTEN[name] for index, name in request.scheduled.items()}
    own: dict[int, int] = {}
    shared: dict[int, int] = {}
    for node in request.emission().graph.nodes:
        served = node.meta["tpgen"].instructions
        for index in served:
            counts = own if len(served) == 1 else shared
            counts[index] = counts.get(index, 0) + 1
    return {
        index: f"{own.get(index, 0)} nodes of its own, {shared.get(index, 0)} shared" for index in {**own, **shared}
    }
