"""Explain a plan, path by path.

>>> from tpgen.planner.presets import channelwise
>>> from tpgen.tools.inspection.costs.roofline import Ceilings
>>> found = explain(channelwise("8x1o", "1o", "0e+1e"), strategy="einsum", ceilings=Ceilings(1e10, 1e11))
>>> found.paths[0].factors
{'irrep': 1.0, 'path': 1.0, 'variance': 1.0, 'weight': 1.0}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt

import torch
from typing_extensions import Unpack

from tpgen.base.errors import TpgenError
from tpgen.compiler.config import RequestOptions
from tpgen.nn.planned import PlannedModule
from tpgen.planner.plan import Path
from tpgen.tools.inspection.costs.explanation import ROWS, SECONDS, Explanation, PathExplanation
from tpgen.tools.inspection.costs.measured import build_request_module, make_benchmark_calls, time_paths
from tpgen.tools.inspection.costs.memory import MemoryEstimate
from tpgen.tools.inspection.costs.roofline import Ceilings, measure_machine_ceilings, time_calls_and_ceilings
from tpgen.tools.inspection.stages.calls import Inspected, resolve_request
from tpgen.tools.inspection.stages.request import Request


def explain(
    subject: Inspected,
    *,
    rows: int = ROWS,
    nodes: int | None = None,
    measure: bool = False,
    ceilings: Ceilings | None = None,
    **options: Unpack[RequestOptions],
) -> Explanation:
    """Explain a product, convolution, linear layer, polynomial or plan: each path's costs, and the machine's ceilings.

    ``rows`` is the batch of totals, for a convolution edges between ``nodes`` (default: as many).
    ``measure`` times the subject and each path alone.  ``ceilings`` replace measured ones.  ``options`` are
    layout, strategy, backend, dtype, device, and a polynomial's channels and elements (32 and 1).

    Raises `TpgenError` for other subjects, empty batches, and ``nodes`` without a convolution.
    """
    request = replace(resolve_request(subject, **options), rows=rows)
    for name, count in request.sizes.items():
        if count < 1:
            raise TpgenError(f"{name}: the batch that totals are for must have one or more, got {count}")
    nodes = _resolve_node_count(subject, rows, nodes)
    found = replace(
        _explain_without_ceilings(request, nodes, time_paths(request, SECONDS / 5) if measure else {}),
        reason=_reason_of_strategy_choice(subject, request, options),
        ceilings=ceilings or measure_machine_ceilings(request.dtype, request.device),
    )
    if not measure:
        return found
    times, measured_ceilings = time_calls_and_ceilings(
        make_benchmark_calls(request, nodes), request.dtype, request.device, SECONDS
    )
    return replace(
        found,
        forward_seconds=times["forward"],
        backward_seconds=times["backward"],
        ceilings=ceilings or measured_ceilings,
    )


_NORMALIZATIONS = ("irrep_normalization", "path_normalization")


def _explain_without_ceilings(request: Request, nodes: int | None, path_seconds: Mapping[int, float]) -> Explanation:
    plan, how, memory = request.plan, _describe_code_by_path(request), _estimate_request_memory(request, nodes)
    return Explanation(
        product=request.title,
        digest=plan.digest,
        normalization="/".join(plan.arguments[name] for name in _NORMALIZATIONS if name in plan.arguments),
        rows=request.rows,
        dtype=str(request.dtype).removeprefix("torch."),
        device=request.device,
        layout=request.layouts,
        backend=request.backend,
        strategy=request.strategy,
        reason="",
        paths=tuple(
            _explain_path(request, paths, plan.flat.by_instruction[n], how.get(n, ""), path_seconds.get(n))
            for n, paths in plan.by_instruction.items()
        ),
        dropped=len(plan.instructions) - len(plan.biased) - len(plan.by_instruction),
        flops=request.flops,
        bytes=request.count_bytes(nodes),
        peak_bytes=memory.forward,
        training_bytes=memory.training,
        ceilings=None,
        nodes=nodes,
        noun=plan.maker.noun,
        **request.explanation_fields,
    )


def _reason_of_strategy_choice(subject: Inspected, request: Request, options: RequestOptions) -> str:
    if isinstance(subject, PlannedModule) and "strategy" not in options:
        return subject.choice.reason
    return replace(request, strategy=options.get("strategy", "auto")).choice.reason


def _resolve_node_count(subject: Inspected, rows: int, nodes: int | None) -> int | None:
    if getattr(subject, "edges", False):
        return rows if nodes is None else max(nodes, 1)
    if nodes is not None:
        raise TpgenError(f"nodes={nodes} is for a TensorProductConv, whose rows are edges; leave it out")
    return None


def _estimate_request_memory(request: Request, nodes: int | None) -> MemoryEstimate:
    there = torch.device(request.device).type != "cuda" or torch.cuda.is_available()
    eager = replace(request, backend="eager", device=request.device if there else "cpu")
    return build_request_module(eager, nodes is not None).memory(request.rows, nodes)


def _explain_path(
    request: Request, paths: Sequence[Path], flat_paths: Sequence[Path], code_description: str, seconds: float | None
) -> PathExplanation:
    # flat_paths are those of the flat plan, with all channels
    path, slices = paths[0], [p.weight for p in paths if p.weight]
    numbers = sum({leg.operand: request.numbers(leg) for leg in flat_paths[0].legs}.values())
    if flat_paths[0].weight and request.plan.operand(flat_paths[0].weight.operand).rows == "row":
        numbers += prod(flat_paths[0].weight.shape)
    legs = [str(leg) for leg in path.inputs] + [""] * 4
    return PathExplanation(
        index=path.index,
        in1=legs[0],
        in2=legs[1],
        in3=legs[2],
        in4=legs[3],
        out=str(path.legs[-1]),
        mode=path.mode.name,
        weight=(slices[0].start, slices[-1].stop) if slices else None,
        weight_shape=slices[0].shape if slices else (),
        coefficient=path.coefficient,
        factors=_coefficient_factors(path),
        nonzeros=sum(p.nonzeros for p in paths),
        dense=sum(p.dense for p in paths),
        flops=request.channels * sum(p.flops for p in flat_paths),
        bytes=numbers * request.dtype.itemsize,
        strategy=request.strategy,
        how=code_description,
        seconds=seconds,
        operand=slices[0].operand if slices and len(request.plan.weights) > 1 else "",
        constant=path.label,
        entries=tuple(p.nonzeros for p in paths) if path.label else (),
        monomials=len({key[1:] for p in paths for key in p.entries or ()}),
    )


_WRITTEN = {"channel": "C++ loop over channels", "batch": "C++ loop over rows", "matrix": "C++ matrix product"}


def _describe_code_by_path(request: Request) -> dict[int, str]:
    if request.strategy == "kernel":
        return {index: _WRITTEN[name] for index, name in request.schedule_names.items()}
    own, shared = Counter[int](), Counter[int]()
    for node in request.emit_program().graph.nodes:
        served = node.meta["tpgen"].instructions
        (own if len(served) == 1 else shared).update(served)
    return {index: f"{own[index]} nodes of its own, {shared[index]} shared" for index in {**own, **shared}}


def _coefficient_factors(path: Path) -> dict[str, float]:
    """Normalisation factors of a path's coefficient.

    >>> from tpgen.planner.product import make_plan
    >>> path = make_plan("4x1o", "1o", "4x1e", [(0, 0, 0, "uvu", True, 4.0)]).paths[0]
    >>> {name: round(value, 3) for name, value in _coefficient_factors(path).items()}
    {'irrep': 1.732, 'path': 1.0, 'variance': 1.0, 'weight': 2.0}
    """
    f = path.factors
    if path.label:
        return {}
    if not path.dense:  # an identity has no normalisation but that of the sum
        return {"path": path.coefficient}
    return {
        "irrep": sqrt(f.irrep),
        "path": 1.0 / sqrt(f.path) if f.path > 0.0 else 1.0,
        "variance": sqrt(f.variance_out),
        "weight": sqrt(f.path_weight),
    }
