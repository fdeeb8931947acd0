"""Times that a GPU should take for a product or a polynomial, by the model of its kernels; no GPU is needed.

>>> from tpgen.planner.problems import find_problem
>>> print(product_on("H200", find_problem("mace-large").plan, rows=40_000))
forward 464 µs, 100 % of a copy's bandwidth; backward 590 µs, 100 %
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpgen.errors import BackendError, TpgenError
from tpgen.form.form import form_of
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.inspection.stages.cuda import number_type
from tpgen.kernels.arguments import Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda.chips import Chip, chip_named
from tpgen.kernels.cuda.choice import graphs_are_faster
from tpgen.kernels.cuda.model import Prediction, predict
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.cuda.polynomials.launch import polynomial_bytes
from tpgen.kernels.cuda.polynomials.model import geometry_expected, predict_polynomial
from tpgen.kernels.cuda.polynomials.placement import place_polynomial
from tpgen.kernels.cuda.workspace import product_bytes
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.runtime.description import DIRECTIONS
from tpgen.kernels.runtime.polynomials import describe_polynomial, named_call
from tpgen.planner.plan import Plan
from tpgen.text import duration, quantity


@dataclass(frozen=True)
class Pass:
    """One pass over the batch."""

    seconds: float
    share: float  # of the bandwidth of a copy
    bound: str  # what is reached first
    launches: int
    workspace: int  # bytes that the kernels take beside operands and results

    def __str__(self) -> str:
        bound = "" if self.bound == "memory" else f", bound by {self.bound}"
        return f"{duration(self.seconds)}, {100 * self.share:.0f} %{bound}"


@dataclass(frozen=True)
class OnGpu:
    """Prediction of the model; no pass, with the reason, where there is no kernel."""

    gpu: str
    ceilings: Ceilings
    passes: dict[str, Pass]  # forward; backward: all gradients, without the forward pass
    reason: str = ""
    measured: bool = False  # nothing here is

    @property
    def launches(self) -> int:
        """Kernels of all passes."""
        return sum(one.launches for one in self.passes.values())

    def __str__(self) -> str:
        if not self.passes:
            return f"no kernel: {self.reason}"
        told = "; ".join(f"{name} {one}" for name, one in self.passes.items())
        return told.replace("%", "% of a copy's bandwidth", 1)

    def least(self, flops: float, nbytes: float) -> str:
        """The shortest time of a forward pass that the chip allows, and what the kernels should take."""
        seconds = self.ceilings.seconds(flops, nbytes)
        return f"{duration(seconds)} forward at least; {self._kernels}; predicted, not measured"

    @property
    def _kernels(self) -> str:
        if not self.passes:
            return str(self)
        most = max(one.workspace for one in self.passes.values())
        return f"kernels: {self}" + (f"; {quantity(most, 'B')} beside operands and results" if most else "")


def product_on(
    gpu: str,
    plan: Plan,
    rows: int,
    layout: str | tuple[str, ...] = "mul_ir",
    dtype: torch.dtype = torch.float32,
    nodes: int | None = None,
) -> OnGpu:
    """Both passes of a product, a linear layer, or with ``nodes`` of a convolution.

    Raises `BackendError` for a GPU that `tpgen.kernels.cuda.chips` has not.
    """
    chip = chip_named(gpu)
    try:
        form, number = form_of(plan, layout), number_type(dtype)
        reason = graphs_are_faster(form, number, chip)
        if reason:
            raise BackendError(reason)
        schedule = plan_schedule(form, cuda_target(number))
        per_node = rows / nodes if nodes else 1.0
        placed = {name: place_cuda(schedule, opened, chip, nodes is not None) for name, opened in DIRECTIONS.items()}
    except TpgenError as error:
        return _none(chip, dtype, error)
    ends = dict.fromkeys(("x1", "out"), nodes or 0)
    passes = {name: _pass(predict(p, per_node), rows, product_bytes(p, rows, ends)) for name, p in placed.items()}
    return OnGpu(chip.name, gpu_ceilings(chip, dtype), passes)


def polynomial_on(gpu: str, plan: Plan, sizes: Sizes, dtype: torch.dtype = torch.float32) -> OnGpu:
    """Both passes of a polynomial."""
    chip, kernels = chip_named(gpu), describe_polynomial(plan)
    try:
        sweeps = {name: kernels.sweep(named_call(plan, name)) for name in DIRECTIONS}
        placed = {name: place_polynomial(plan, sweep, number_type(dtype), chip) for name, sweep in sweeps.items()}
    except TpgenError as error:
        return _none(chip, dtype, error)
    indexed = 1 < sizes.elements < sizes.rows
    passes = {
        name: _pass(
            predict_polynomial(plan, sweeps[name], number_type(dtype), chip, sizes),
            sizes.rows,
            polynomial_bytes(geometry_expected(p, sizes), dtype, indexed),
        )
        for name, p in placed.items()
    }
    return OnGpu(chip.name, gpu_ceilings(chip, dtype), passes)


def gpu_ceilings(chip: Chip, dtype: torch.dtype) -> Ceilings:
    """Ceilings of a chip, outside of its tensor cores."""
    return Ceilings(chip.bandwidth, chip.flops(DTYPES.get(dtype, "float32")), f"{chip.name} as published")


def _none(chip: Chip, dtype: torch.dtype, error: TpgenError) -> OnGpu:
    return OnGpu(chip.name, gpu_ceilings(chip, dtype), {}, str(error))


def _pass(found: Prediction, rows: int, workspace: int) -> Pass:
    return Pass(found.seconds(rows), found.share_of(rows), found.limit_of(rows), found.launches, workspace)
