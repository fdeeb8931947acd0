"""Ceilings of a machine."""

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
    """A machine's roofline: bytes moved and operations per second."""

    bandwidth: float
    flops: float
    source: str = "given"
    scatter: float = 0.0  # spread of what was timed: third quartile minus first, relative to the median

    @property
    def warning(self) -> str:
        """Warning of a busy machine, or an empty text.

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
        """Operations per byte above which arithmetic limits."""
        return self.flops / self.bandwidth

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """Least seconds for operations and bytes.

        >>> Ceilings(bandwidth=1e10, flops=1e11).least_seconds(flops=1e9, nbytes=2e9)
        0.2
        """
        return max(flops / self.flops, nbytes / self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.bandwidth / 1e9:.1f} GB/s copied, {self.flops / 1e9:.0f} GFLOP/s in matrix products ({self.source})"
        )


def measure_machine_ceilings(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Ceilings:
    """This machine's ceilings, measured once per dtype, device and number of threads."""
    return _cached_ceilings(dtype, str(torch.device(device)), torch.get_num_threads())


@lru_cache(maxsize=16)
def _cached_ceilings(dtype: torch.dtype, device: str, threads: int) -> Ceilings:
    return time_calls_and_ceilings({}, dtype, device, _SECONDS)[1]


def time_calls_and_ceilings(
    calls: Mapping[str, Callable[[], object]], dtype: torch.dtype, device: str, seconds: float
) -> tuple[dict[str, float], Ceilings]:
    """Time calls, bandwidth and arithmetic, about ``seconds`` each; return median seconds, and ceilings."""
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
