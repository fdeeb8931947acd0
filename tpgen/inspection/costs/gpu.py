"""Times that a GPU should take for a plan, by the model of its kernels; no GPU is needed.

>>> from tpgen.planner.problems import find_problem
>>> print(plan_on("H200", find_problem("mace-large").plan, rows=40_000))
forward 464 µs, 100 % of a copy's bandwidth; backward 590 µs, 100 %
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpgen.errors import BackendError, TpgenError
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.inspection.stages.cuda import number_type
from tpgen.kernels.arguments import CallSizes, KernelSpec
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import target as cuda
from tpgen.kernels.cuda.chips import Chip, chip_named
from tpgen.kernels.runtime.description import OPENED_BY_DIRECTION, described
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
        most = max((one.workspace for one in self.passes.values()), default=0)
        beside = f"; {quantity(most, 'B')} beside operands and results" if most else ""
        least = duration(self.ceilings.seconds(flops, nbytes))
        return f"{least} forward at least; {'kernels: ' * bool(self.passes)}{self}{beside}; predicted, not measured"


def plan_on(
    gpu: str,
    plan: Plan,
    rows: int,
    layout: str | tuple[str, ...] = "mul_ir",
    dtype: torch.dtype = torch.float32,
    nodes: int | None = None,
    channels: int = 1,
    elements: int = 1,
) -> OnGpu:
    """Both passes of a plan, or with ``nodes`` of a convolution.

    Raises `BackendError` for a GPU that `tpgen.kernels.cuda.chips` has not.
    """
    chip, passes, reason = chip_named(gpu), dict[str, Pass](), ""
    ends = dict.fromkeys(("x1", "out"), nodes) if nodes else None
    sizes = CallSizes(torch.device("cuda"), rows, ends, 0, elements, channels, by_element=1 < elements < rows)
    try:
        number_type(dtype)
        description = described(plan, layout)
        specs = [KernelSpec(description, call, dtype, bool(nodes)) for call in description.calls()]
        if slower := cuda.slower(specs[0], chip):
            raise BackendError(slower)
        for name, spec in zip(OPENED_BY_DIRECTION, specs, strict=True):
            speed, workspace = cuda.speed(spec, sizes, chip), cuda.workspace(spec, sizes, chip)
            share, bound = speed.share_of(rows), speed.limit_of(rows)
            passes[name] = Pass(speed.seconds(rows), share, bound, speed.launches, workspace)
    except TpgenError as error:
        reason = str(error)
    return OnGpu(chip.name, gpu_ceilings(chip, dtype), passes, reason)


def gpu_ceilings(chip: Chip, dtype: torch.dtype) -> Ceilings:
    """Ceilings of a chip, outside of its tensor cores."""
    return Ceilings(chip.bandwidth, chip.flops(DTYPES.get(dtype, "float32")), f"{chip.name} as published")
