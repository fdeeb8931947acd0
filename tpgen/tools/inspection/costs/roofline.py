"""Ceilings of a machine: bytes copied and operations done per second.

Two small measurements, together under half a second: once per process, and again beside whatever is measured. They
are what torch reaches here with large operands, not what a data sheet promises; a product that runs at these is as
fast as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from tpgen.base.clock import ROUGH, time_in_turns

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
