"""Explain a product: what each path costs and why it is scaled so, how it is written, what the machine allows.

>>> from tpgen.planner.presets import channelwise
>>> from tpgen.inspection.costs.roofline import Ceilings
>>> found = explain(channelwise("8x1o", "1o", "0e+1e"), strategy="einsum", ceilings=Ceilings(1e10, 1e11))
>>> found.paths[0].factors
{'irrep': 1.0, 'path': 1.0, 'variance': 1.0, 'weight': 1.0}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from math import prod, sqrt
from pathlib import Path as FilePath
from typing import Any, overload

import torch
from typing_extensions import Unpack

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import RequestOptions
from tpgen.errors import TpgenError
from tpgen.form.form import split_layout
from tpgen.inspection.costs.cost import peak_bytes, seconds_of_paths
from tpgen.inspection.costs.explain_polynomial import (
    PolynomialExplainOptions,
    PolynomialExplanation,
    explain_polynomial,
)
from tpgen.inspection.costs.explain_text import explanation_html, explanation_text
from tpgen.inspection.costs.gpu import OnGpu, product_on
from tpgen.inspection.costs.measured import product_seconds
from tpgen.inspection.costs.pictures import draw_explanation, picture_of
from tpgen.inspection.costs.roofline import Ceilings, UnderCeilings, machine_ceilings
from tpgen.inspection.stages.dump import Request
from tpgen.inspection.subject import Subject, refused, request_of
from tpgen.kernels.operators.description import Description
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.nn.tensor_product import TensorProduct
from tpgen.notebook import Shown
from tpgen.planner.plan import Path, Plan
from tpgen.planner.polynomial_plan import PolynomialPlan

ROWS = 1000  # of a batch, unless given
_SECONDS = 0.25  # for each measured time


@dataclass(frozen=True)
class PathExplanation:
    """One path: what it couples, what scales it, what it costs per row, how it is written."""

    index: int
    in1: str
    in2: str
    out: str
    mode: str
    weight: tuple[int, int] | None  # start and stop in the flat weight
    weight_shape: tuple[int, ...]
    coefficient: float
    factors: dict[str, float]  # numbers that multiply to the coefficient
    nonzeros: int
    dense: int
    flops: int
    bytes: int
    strategy: str
    how: str
    seconds: float | None = None  # the path alone, measured

    @property
    def density(self) -> float:
        """Share of the coupling entries that are not zero."""
        return self.nonzeros / self.dense


@dataclass(frozen=True)
class Explanation(Shown, UnderCeilings):
    """A product, explained; times are for the whole batch and in seconds."""

    product: str
    digest: str
    normalization: str
    rows: int
    dtype: str
    device: str
    layout: tuple[str, str, str]
    backend: str
    strategy: str
    reason: str
    paths: tuple[PathExplanation, ...]
    dropped: int
    flops: int  # of the batch
    bytes: int  # of the batch: each operand once
    peak_bytes: int
    ceilings: Ceilings | None
    forward_seconds: float | None = None  # measured
    backward_seconds: float | None = None  # measured, forward and backward
    nodes: int | None = None  # of a convolution, whose rows are edges
    on_gpu: OnGpu | None = None

    def to_json(self) -> str:
        """Everything that is known, as JSON; what was not measured is null."""
        return json.dumps({**asdict(self), **self.derived}, indent=1)

    def plot(self, path: str | FilePath) -> None:
        """Draw costs of each path, and the product under the machine's ceilings; a `TpgenError` without matplotlib."""
        draw_explanation(self, path)

    def __str__(self) -> str:
        return explanation_text(self)

    def _repr_html_(self) -> str:
        return explanation_html(self, picture_of(self))


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
def explain(subject: Subject, **options: Unpack[ExplainOptions]) -> Explanation: ...


@overload
def explain(
    subject: PolynomialModule | PolynomialPlan, **options: Unpack[PolynomialExplainOptions]
) -> PolynomialExplanation: ...


def explain(subject: Any, **options: Any) -> Explanation | PolynomialExplanation:
    """Explain a product, a convolution, a polynomial or a plan: what each path costs, and what the machine allows.

    ``options`` are those of `explain_product` and of `tpgen.inspection.costs.explain_polynomial.explain_polynomial`.
    """
    if isinstance(subject, PolynomialModule | PolynomialPlan):
        return explain_polynomial(subject, **options)
    if not isinstance(subject, TensorProduct | Plan):
        raise refused("give a tpgen TensorProduct, a polynomial, or a Plan of either", subject)
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
    plan, how = request.plan, _how(request)
    seconds = seconds_of_paths(request, _SECONDS / 5) if measure else {}
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
        peak_bytes=peak_bytes(request) if nodes is None else _peak_of_conv(request, nodes),
        ceilings=ceilings or machine_ceilings(request.dtype, request.device),
        nodes=nodes,
        on_gpu=product_on(gpu, plan, rows, request.layout, request.dtype, nodes) if gpu else None,
    )
    if not measure:
        return found
    times, of_that_moment = product_seconds(request, nodes, _SECONDS)
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


def _peak_of_conv(request: Request, nodes: int) -> int:
    """The result; without a kernel also what every edge gathers, and its product."""
    plan, itemsize = request.plan, request.dtype.itemsize
    result = nodes * plan.irreps_out.dim * itemsize
    if request.strategy == "kernel":
        return result
    return result + request.rows * plan.irreps_in1.dim * itemsize + peak_bytes(request)


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


def _how(request: Request) -> dict[int, str]:
    """How each path is written, in a few words."""
    if request.strategy == "kernel":
        schedule = Description(request.plan, split_layout(request.layout)).schedule(request.dtype)
        kind = str(schedule).split(" ", 1)[0]
        return {term.path: f"C++ loop over {'channels' if kind == 'channel' else 'rows'}" for term in schedule.terms}
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
