"""A cost that a plan does not tell: the time of each path alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tpgen.form.linear import layouts_of
from tpgen.inspection.clock import best_seconds
from tpgen.inspection.stages.dump import FormRequest, Request, example_arguments
from tpgen.kernels.operators.description import Description
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Path, Plan, make_plan

_ROUNDS = 4


def seconds_of_paths(request: Request, seconds: float) -> dict[int, float]:
    """The time of every path as a product of its own, in the strategy of the whole.

    Their sum is more than the whole: what paths share is done anew for each.  All paths are timed in turn, and again:
    what else the machine does for a while then falls on no path alone.
    """
    calls = {path.index: _call_of(request, path) for path in request.plan.paths}
    return seconds_in_turn(calls, request.device, seconds)


def seconds_in_turn(calls: Mapping[int, Callable[[], object]], device: str, seconds: float) -> dict[int, float]:
    """The shortest time of each call, without gradients; all take turns."""
    with torch.no_grad():
        rounds = [
            {index: best_seconds(call, device, seconds / _ROUNDS) for index, call in calls.items()}
            for _ in range(_ROUNDS)
        ]
    return {index: min(times[index] for times in rounds) for index in calls}


def _call_of(request: Request, path: Path) -> Callable[[], object]:
    alone = Request(
        path_alone(request.plan, path),
        layout=request.layout,
        dtype=request.dtype,
        device=request.device,
        rows=request.rows,
    )
    # graphs run eagerly: compiling each path alone would take minutes
    product = TensorProduct.from_plan(
        alone.plan, internal_weights=False, layout=alone.layout, strategy=request.strategy
    ).to(device=alone.device, dtype=alone.dtype)
    operands = example_arguments(alone, ("x1", "x2", "w"))
    return lambda: product(*operands)


def path_alone(plan: Plan, path: Path) -> Plan:
    """The product of one path, on its three segments alone.

    >>> from tpgen.planner.presets import channelwise
    >>> plan = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    >>> print(*path_alone(plan, plan.paths[1]).paths[0].ls)
    1 1 0
    """
    return make_plan(
        str(path.in1), str(path.in2), str(path.out), [(0, 0, 0, path.mode.name, path.weight is not None)],
        irrep_normalization=plan.irrep_normalization, path_normalization=plan.path_normalization,
        shared_weights=plan.shared_weights,
    )  # fmt: skip


_WRITTEN = {"channel": "C++ loop over channels", "batch": "C++ loop over rows", "matrix": "C++ matrix product"}


def written_as(request: FormRequest) -> dict[int, str]:
    """How each path is written, in a few words."""
    if request.strategy == "kernel":
        layouts = layouts_of(request.plan, request.layout)
        schedule = Description(request.computed, layouts).schedule(request.dtype)
        words = _WRITTEN[str(schedule).split(" ", 1)[0]]
        return {term.path: words for term in schedule.terms}
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
