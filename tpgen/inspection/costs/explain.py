"""Explain a product: what each path costs and why it is scaled so, how it is written, what the machine allows.

>>> from tpgen.planner.presets import channelwise
>>> from tpgen.inspection.costs.roofline import Ceilings
>>> found = explain(channelwise("8x1o", "1o", "0e+1e"), strategy="einsum", ceilings=Ceilings(1e10, 1e11))
>>> found.paths[0].factors
{'irrep': 1.0, 'path': 1.0, 'variance': 1.0, 'weight': 1.0}
"""

from __future__ import annotations

from dataclasses import replace
from math import prod, sqrt
from typing import Any, overload

import torch
from typing_extensions import Unpack

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import RequestOptions
from tpgen.errors import TpgenError
from tpgen.form.form import split_layout
from tpgen.inspection.costs.cost import seconds_of_paths, written_as
from tpgen.inspection.costs.explain_linear import explain_linear
from tpgen.inspection.costs.explain_polynomial import (
    PolynomialExplainOptions,
    PolynomialExplanation,
    explain_polynomial,
)
from tpgen.inspection.costs.explanation import ROWS, SECONDS, Explanation, PathExplanation
from tpgen.inspection.costs.gpu import product_on
from tpgen.inspection.costs.measured import product_seconds
from tpgen.inspection.costs.memory import MemoryEstimate
from tpgen.inspection.costs.roofline import Ceilings, machine_ceilings
from tpgen.inspection.stages.dump import Request
from tpgen.inspection.subject import AnySubject, Subject, refused, request_of
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.linear import Linear
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.linear import LinearPlan
from tpgen.planner.plan import Path, Plan
from tpgen.planner.polynomial_plan import PolynomialPlan


class ExplainedOptions(RequestOptions, total=False):
    """How a product is written, and what it is explained for."""

    nodes: int | None
    ceilings: Ceilings | None
    gpu: str | None


class ExplainOptions(ExplainedOptions, total=False):
    """The keywords of `explain`."""

    rows: int
    measure: bool


@overload
def explain(subject: AnySubject, **options: Unpack[ExplainOptions]) -> Explanation: ...


@overload
def explain(
    subject: PolynomialModule | PolynomialPlan, **options: Unpack[PolynomialExplainOptions]
) -> PolynomialExplanation: ...


def explain(subject: Any, **options: Any) -> Explanation | PolynomialExplanation:
    """Explain a product, a convolution, a linear layer, a polynomial or a plan: what each path costs, and what the
    machine allows.

    ``options`` are those of `explain_product` and `explain_linear`, and of
    `tpgen.inspection.costs.explain_polynomial.explain_polynomial`.
    """
    if isinstance(subject, PolynomialModule | PolynomialPlan):
        return explain_polynomial(subject, **options)
    if isinstance(subject, Linear | LinearPlan):
        return explain_linear(subject, **options)
    if not isinstance(subject, TensorProduct | Plan):
        raise refused("give a tpgen TensorProduct, a Linear, a polynomial, or the plan of one", subject)
    return explain_product(subject, **options)


def explain_product(
    subject: Subject,
    *,
    rows: int = ROWS,
    nodes: int | None = None,
    measure: bool = False,
    ceilings: Ceilings | None = None,
    gpu: str | None = None,
    **options: Unpack[RequestOptions],
) -> Explanation:
    """Explain a product or a plan.

    ``rows`` is the batch that totals are for; of a convolution the edges, with ``nodes`` that they run between (where
    left out, as many as edges).  ``measure`` runs the product, and every path alone.  ``ceilings`` are
    those of another machine; without them this one's are measured once, in a quarter of a second.  ``gpu`` names one
    (A100, H200, ...) to predict what its kernels should take; none need be there.  ``options`` are the fields of
    `tpgen.inspection.stages.dump.Request`; a module brings its own.

    Raises `TpgenError` for anything that is neither, for a batch without rows, and for nodes of what is no convolution.
    """
    if rows < 1:
        raise TpgenError(f"rows is the batch that totals are for and must be positive, got {rows}")
    request = replace(request_of(subject, **options), rows=rows)
    nodes = _nodes(subject, rows, nodes)
    asked = _asked(subject, options)
    plan, how = request.plan, written_as(request)
    seconds = seconds_of_paths(request, SECONDS / 5) if measure else {}
    memory = _memory(request, nodes)
    found = Explanation(
        product=_title(plan),
        digest=plan.digest,
        normalization=f"{plan.irrep_normalization}/{plan.path_normalization}",
        rows=rows,
        dtype=str(request.dtype).removeprefix("torch."),
        device=request.device,
        layout=split_layout(request.layout),
        backend=request.backend,
        strategy=request.strategy,
        reason=asked,
        paths=tuple(_path(request, path, how.get(path.index, ""), seconds.get(path.index)) for path in plan.paths),
        dropped=len(plan.instructions) - len(plan.paths),
        flops=rows * plan.flops,
        bytes=operand_bytes(plan, rows, request.dtype.itemsize, nodes),
        peak_bytes=memory.forward,
        training_bytes=memory.training,
        ceilings=ceilings or machine_ceilings(request.dtype, request.device),
        nodes=nodes,
        on_gpu=product_on(gpu, plan, rows, request.layout, request.dtype, nodes) if gpu else None,
    )
    if not measure:
        return found
    times, of_that_moment = product_seconds(request, nodes, SECONDS)
    return replace(
        found,
        forward_seconds=times["forward"],
        backward_seconds=times["backward"],
        ceilings=ceilings or of_that_moment,
    )


def _asked(subject: Subject, options: RequestOptions) -> str:
    """Why the product is written as it is."""
    if isinstance(subject, TensorProduct) and "strategy" not in options:
        return subject.choice.reason
    plan = subject if isinstance(subject, Plan) else subject.plan
    return choose_strategy(plan, Request(plan, **options)).reason


def _title(plan: Plan) -> str:
    in1, in2, out = (irreps.simplify() for irreps in (plan.irreps_in1, plan.irreps_in2, plan.irreps_out))
    return f"{in1} x {in2} -> {out}"


def _nodes(subject: Subject, rows: int, nodes: int | None) -> int | None:
    if isinstance(subject, TensorProductConv):
        return rows if nodes is None else max(nodes, 1)
    if nodes is not None:
        raise TpgenError(f"nodes={nodes} is for a TensorProductConv, whose rows are edges; leave it out")
    return None


def operand_bytes(plan: Plan, rows: int, itemsize: int, nodes: int | None = None) -> int:
    """Each operand once: shared weights once for the whole batch, and of a convolution its nodes, not its edges.

    >>> from tpgen.planner.presets import channelwise
    >>> plan = channelwise("8x0e", "0e", "0e")
    >>> operand_bytes(plan, 100, 4), operand_bytes(plan, 100, 4, nodes=10)
    (10000, 5840)
    """
    shared = plan.weight_numel if plan.shared_weights else 0
    numbers = rows * plan.row_bytes(1) + shared
    if nodes is None:
        return numbers * itemsize
    numbers += (nodes - rows) * (plan.irreps_in1.dim + plan.irreps_out.dim)
    return numbers * itemsize + 2 * rows * torch.int64.itemsize  # where each edge comes from and goes to


def _memory(request: Request, nodes: int | None) -> MemoryEstimate:
    """What the product takes, as a module that runs as it is written."""
    kind = TensorProduct if nodes is None else TensorProductConv
    module = kind.from_plan(request.plan, False, layout=request.layout, strategy=request.strategy)
    there = torch.device(request.device).type != "cuda" or torch.cuda.is_available()
    return module.to(request.device if there else "cpu", request.dtype).memory(request.rows, nodes)


def _path(request: Request, path: Path, how: str, seconds: float | None) -> PathExplanation:
    weight = path.weight
    numbers = sum(segment.stop - segment.start for segment in (path.in1, path.in2, path.out))
    if weight and not request.plan.shared_weights:
        numbers += prod(weight.shape)
    return PathExplanation(
        index=path.index,
        in1=str(path.in1),
        in2=str(path.in2),
        out=str(path.out),
        mode=path.mode.name,
        weight=(weight.start, weight.stop) if weight else None,
        weight_shape=weight.shape if weight else (),
        coefficient=path.coefficient,
        factors=coefficient_factors(path),
        nonzeros=path.nonzeros,
        dense=path.dense,
        flops=path.flops,
        bytes=numbers * request.dtype.itemsize,
        strategy=request.strategy,
        how=how,
        seconds=seconds,
    )


def coefficient_factors(path: Path) -> dict[str, float]:
    """The square roots whose product is the coefficient.

    ``irrep``: of the irrep normalisation; ``path``: one over the summed elements; ``variance``: of the output;
    ``weight``: the user's path weight.

    >>> from tpgen.planner.plan import make_plan
    >>> path = make_plan("4x1o", "1o", "4x1e", [(0, 0, 0, "uvu", True, 4.0)]).paths[0]
    >>> {name: round(value, 3) for name, value in coefficient_factors(path).items()}
    {'irrep': 1.732, 'path': 1.0, 'variance': 1.0, 'weight': 2.0}
    """
    f = path.factors
    return {
        "irrep": sqrt(f.irrep),
        "path": 1.0 / sqrt(f.path) if f.path > 0.0 else 1.0,
        "variance": sqrt(f.variance_out),
        "weight": sqrt(f.path_weight),
    }
