"""Explain a linear layer: the matrix of each path, what it costs, how it is written, what the machine allows.

>>> from tpgen.inspection.costs.roofline import Ceilings
>>> from tpgen.planner.linear import make_linear_plan
>>> plan = make_linear_plan("8x0e+8x1o", "16x0e+8x1o")
>>> found = explain_linear(plan, strategy="einsum", ceilings=Ceilings(1e10, 1e11))
>>> found.paths[0].in1, found.paths[0].out, found.paths[0].weight_shape, found.bound
('8x0e', '16x0e', (8, 16), 'memory')
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from typing_extensions import Unpack

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import RequestOptions
from tpgen.errors import TpgenError
from tpgen.form.linear import split_linear_layout
from tpgen.inspection.costs.cost import seconds_in_turn, written_as
from tpgen.inspection.costs.explanation import ROWS, SECONDS, Explanation, PathExplanation
from tpgen.inspection.costs.gpu import product_on
from tpgen.inspection.costs.measured import both_seconds
from tpgen.inspection.costs.roofline import Ceilings, machine_ceilings
from tpgen.inspection.stages.dump import FormRequest
from tpgen.inspection.subject import LinearSubject, linear_request
from tpgen.nn.linear import Linear
from tpgen.planner.linear import LinearPath, LinearPlan, make_linear_plan


class LinearExplainOptions(RequestOptions, total=False):
    """The keywords of `explain_linear`."""

    rows: int
    measure: bool
    ceilings: Ceilings | None
    gpu: str | None


def explain_linear(
    subject: LinearSubject,
    *,
    rows: int = ROWS,
    measure: bool = False,
    ceilings: Ceilings | None = None,
    gpu: str | None = None,
    **options: Unpack[RequestOptions],
) -> Explanation:
    """Explain a linear layer or its plan.

    ``rows`` is the batch that totals are for; of a layer with channels a row has all of them.  ``measure``,
    ``ceilings``, ``gpu`` and ``options`` are those of `tpgen.inspection.costs.explain.explain_product`.

    Raises `TpgenError` for a batch without rows, and for an option that is none.
    """
    if rows < 1:
        raise TpgenError(f"rows is the batch that totals are for and must be positive, got {rows}")
    request = replace(linear_request(subject, **options), rows=rows)
    plan, how = request.plan, written_as(request)
    assert isinstance(plan, LinearPlan)
    seconds = _seconds_of_paths(request, plan) if measure else {}
    layout = split_linear_layout(request.layout)
    memory = Linear.from_plan(plan, False, layout=layout, strategy=request.strategy).to(request.dtype).memory(rows)
    channels = "" if plan.f_in is None else f", {plan.f_in} -> {plan.f_out} channels"
    found = Explanation(
        product=f"{plan.irreps_in.simplify()} -> {plan.irreps_out.simplify()}{channels}",
        digest=plan.digest,
        normalization=plan.path_normalization,
        rows=rows,
        dtype=str(request.dtype).removeprefix("torch."),
        device=request.device,
        layout=layout,
        backend=request.backend,
        strategy=request.strategy,
        reason=_reason(subject, request, options),
        paths=tuple(
            _path(request, plan, path, how.get(path.index, ""), seconds.get(path.index)) for path in plan.paths
        ),
        dropped=len(plan.pairs) - len(plan.paths),
        flops=rows * (plan.flops + plan.bias_numel * (plan.f_out or 1)),
        bytes=_numbers(plan, rows) * request.dtype.itemsize,
        peak_bytes=memory.forward,
        training_bytes=memory.training,
        ceilings=ceilings or machine_ceilings(request.dtype, request.device),
        on_gpu=product_on(gpu, plan, rows, split_linear_layout(request.layout), request.dtype) if gpu else None,
    )
    if not measure:
        return found
    layer, operands = _layer(request, plan)
    times, of_that_moment = both_seconds(lambda: layer(*operands), operands, request.dtype, request.device, SECONDS)
    return replace(
        found,
        forward_seconds=times["forward"],
        backward_seconds=times["backward"],
        ceilings=ceilings or of_that_moment,
    )


def _reason(subject: LinearSubject, request: FormRequest, options: RequestOptions) -> str:
    if isinstance(subject, Linear) and "strategy" not in options:
        return subject.choice.reason
    return choose_strategy(request.computed, replace(request, strategy=options.get("strategy", "auto"))).reason


def _weights(plan: LinearPlan) -> int:
    """Weights and biases, of all channels."""
    f_in, f_out = plan.f_in or 1, plan.f_out or 1
    return f_in * f_out * plan.weight_numel + f_out * plan.bias_numel


def _numbers(plan: LinearPlan, rows: int) -> int:
    """Numbers of all operands and the result: shared weights once for the whole batch."""
    of_row = (plan.f_in or 1) * plan.irreps_in.dim + (plan.f_out or 1) * plan.irreps_out.dim
    return rows * of_row + _weights(plan) * (1 if plan.shared_weights else rows)


def _path(request: FormRequest, plan: LinearPlan, path: LinearPath, how: str, seconds: float | None) -> PathExplanation:
    f_in, f_out = plan.f_in or 1, plan.f_out or 1
    numbers = f_in * (path.in1.stop - path.in1.start) + f_out * (path.out.stop - path.out.start)
    if not plan.shared_weights:
        numbers += f_in * f_out * prod(path.weight.shape)
    return PathExplanation(
        index=path.index,
        in1=str(path.in1),
        in2="",
        out=str(path.out),
        mode="",
        weight=(path.weight.start, path.weight.stop),
        weight_shape=path.weight.shape,
        coefficient=path.coefficient,
        factors={"path": path.coefficient},
        nonzeros=0,
        dense=0,
        flops=f_in * f_out * path.flops,
        bytes=numbers * request.dtype.itemsize,
        strategy=request.strategy,
        how=how,
        seconds=seconds,
    )


def _layer(request: FormRequest, plan: LinearPlan) -> tuple[Linear, list[Tensor]]:
    """The layer as it is written and run, and its operands: features, weights and biases."""
    layer = Linear.from_plan(
        plan,
        internal_weights=False,
        layout=split_linear_layout(request.layout),
        strategy=request.strategy,
        backend=request.backend,
    ).to(device=request.device, dtype=request.dtype)
    pair = () if plan.f_in is None else (plan.f_in, plan.f_out or 1)
    batch = () if plan.shared_weights else (request.rows,)
    shapes = [(request.rows, *pair[:1], plan.irreps_in.dim), (*batch, *pair, plan.weight_numel)]
    shapes.append((*batch, *pair[1:], plan.bias_numel))
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return layer, [x.to(device=request.device, dtype=request.dtype) for x in drawn]


def _seconds_of_paths(request: FormRequest, plan: LinearPlan) -> dict[int, float]:
    """The time of every path as a layer of its own, in the strategy of the whole."""
    calls = {}
    for path in plan.paths:
        alone = make_linear_plan(
            str(path.in1), str(path.out), f_in=plan.f_in, f_out=plan.f_out, shared_weights=plan.shared_weights
        )
        layer, operands = _layer(replace(request, plan=alone, backend="eager"), alone)
        calls[path.index] = lambda layer=layer, operands=operands: layer(*operands)
    return seconds_in_turn(calls, request.device, SECONDS / 5)
