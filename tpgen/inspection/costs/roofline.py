"""Ceilings of a machine, bytes copied and operations done per second; and times that a GPU should take for a plan.

Two small measurements, together under half a second: once per process, and again beside whatever is measured. They
are what torch reaches here with large operands, not what a data sheet promises; a product that runs at these is as
fast as it can be.  Times of a GPU come of the model of its kernels; no GPU is needed.

>>> from tpgen.planner.problems import find_problem
>>> print(plan_on("H200", find_problem("mace-large").plan, rows=40_000))
forward 464 µs, 100 % of a copy's bandwidth; backward 590 µs, 100 %
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from tpgen.errors import BackendError, TpgenError
from tpgen.inspection.clock import ROUGH, time_in_turns
from tpgen.inspection.stages.cuda import number_type
from tpgen.kernels.arguments import CallSizes, KernelSpec, Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import target as cuda
from tpgen.kernels.cuda.chips import Chip, chip_named
from tpgen.kernels.runtime.description import OPENED_BY_DIRECTION, described
from tpgen.planner.plan import Plan
from tpgen.text import duration, quantity

_COPIED = 2**25  # bytes: beyond the caches of a core
_SIDE = 768  # of the matrices: 0.9 billion operations
_SECONDS = 0.12  # for each measurement, at most about twice that


@dataclass(frozen=True)
class Ceilings:
    """Bytes moved per second (read and written both count) and operations per second, of one dtype on one device."""

    bandwidth: float
    flops: float
    source: str = "given"
    scatter: float = 0.0  # spread of what was timed: third quartile minus first, relative to the median

    @property
    def warning(self) -> str:
        """Warning of a machine that was busy with something else; empty for a quiet one.

        >>> Ceilings(1e10, 1e11, scatter=0.32).warning
        'times of the same call lie 32 % apart: the machine is busy, and all times are rough'
        """
        if self.scatter <= ROUGH:
            return ""
        return (
            f"times of the same call lie {100 * self.scatter:.0f} % apart: the machine is busy, and all times are rough"
        )

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic is what takes the time."""
        return self.flops / self.bandwidth

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least time for so much work.

        >>> Ceilings(bandwidth=1e10, flops=1e11).seconds(flops=1e9, nbytes=2e9)
        0.2
        """
        return max(flops / self.flops, nbytes / self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.bandwidth / 1e9:.1f} GB/s copied, {self.flops / 1e9:.0f} GFLOP/s in matrix products ({self.source})"
        )


def machine_ceilings(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Ceilings:
    """The ceilings of this machine, measured at the first call for a dtype, a device and a number of threads."""
    return _remembered(dtype, str(torch.device(device)), torch.get_num_threads())


@lru_cache(maxsize=16)
def _remembered(dtype: torch.dtype, device: str, threads: int) -> Ceilings:
    return measured_together({}, dtype, device, _SECONDS)[1]


def measured_together(
    calls: Mapping[str, Callable[[], object]], dtype: torch.dtype, device: str, seconds: float
) -> tuple[dict[str, float], Ceilings]:
    """The median time of each call, and the ceilings of the machine while they were measured.

    Calls, a copy and a matrix product are timed in turn, so that whatever else the machine does falls on all of them.
    Each has about ``seconds``.
    """
    source = torch.empty(_COPIED // dtype.itemsize, dtype=dtype, device=device).fill_(1)
    target = torch.empty_like(source).fill_(0)  # written before it is timed: fresh pages cost more than copying
    matrix = torch.full((_SIDE, _SIDE), 0.5, dtype=dtype, device=device)
    product = torch.empty_like(matrix)
    ours = {"\0copy": lambda: target.copy_(source), "\0matrices": lambda: torch.mm(matrix, matrix, out=product)}
    tasks: dict[str, Callable[[], object]] = {**ours, **calls}
    found = time_in_turns(tasks, device, len(tasks) * seconds)
    threads = torch.get_num_threads()
    ceilings = Ceilings(
        bandwidth=2 * _COPIED / found["\0copy"].median,
        flops=2 * _SIDE**3 / found["\0matrices"].median,
        source=f"measured with {threads} thread{'s' * (threads > 1)}",
        scatter=max(timing.spread for timing in found.values()),
    )
    return {name: found[name].median for name in calls}, ceilings


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
    sizes = CallSizes(torch.device("cuda"), Sizes(rows, elements, channels), ends, by_element=1 < elements < rows)
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
