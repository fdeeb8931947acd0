"""What a machine can do at most: bytes copied and operations done per second.

Two small measurements, together under half a second: once per process, and again beside whatever is measured. They
are what torch reaches here with large operands, not what a data sheet promises; a product that runs at these is as
fast as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from tpgen.inspection.clock import best_seconds

_COPIED = 2**25  # bytes: beyond the caches of a core
_SIDE = 768  # of the matrices: 0.9 billion operations
_SECONDS = 0.12  # for each measurement, at most about twice that
_ROUNDS = 4
ROUGH = 0.15  # copies that lie further apart than this say that the machine does something else beside


@dataclass(frozen=True)
class Ceilings:
    """Bytes moved per second (read and written both count) and operations per second, of one dtype on one device."""

    bandwidth: float
    flops: float
    source: str = "given"
    scatter: float = 0.0  # how far repeated copies lay apart: the slowest round over the fastest, less one

    @property
    def warning(self) -> str:
        """What to say of a machine that was busy with something else; empty for a quiet one.

        >>> Ceilings(1e10, 1e11, scatter=0.32).warning
        'the same copy took up to 32 % longer: the machine is busy, and all times are rough'
        """
        if self.scatter <= ROUGH:
            return ""
        return (
            f"the same copy took up to {100 * self.scatter:.0f} % longer: the machine is busy, and all times are rough"
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


class UnderCeilings:
    """What follows for a batch from its operations, its bytes and the ceilings, where there are any."""

    flops: int
    bytes: int
    ceilings: Ceilings | None

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def predicted_seconds(self) -> float | None:
        """The least time of a forward pass that the ceilings allow."""
        return self.ceilings.seconds(self.flops, self.bytes) if self.ceilings else None

    @property
    def bound(self) -> str | None:
        """What takes the time: ``memory`` or ``arithmetic``."""
        if not self.ceilings:
            return None
        return "memory" if self.intensity < self.ceilings.ridge else "arithmetic"

    @property
    def derived(self) -> dict[str, float | str | None]:
        """The same by name."""
        return {"intensity": self.intensity, "predicted_seconds": self.predicted_seconds, "bound": self.bound}


def machine_ceilings(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Ceilings:
    """The ceilings of this machine, measured at the first call for a dtype, a device and a number of threads."""
    return _remembered(dtype, str(torch.device(device)), torch.get_num_threads())


@lru_cache(maxsize=16)
def _remembered(dtype: torch.dtype, device: str, threads: int) -> Ceilings:
    return measured_together({}, dtype, device, _SECONDS)[1]


def measured_together(
    calls: Mapping[str, Callable[[], object]], dtype: torch.dtype, device: str, seconds: float
) -> tuple[dict[str, float], Ceilings]:
    """The shortest time of each call, and the ceilings of the machine while they were measured.

    Calls, a copy and a matrix product are timed in turn, so that whatever else the machine does falls on all of them.
    Each has about ``seconds``.
    """
    moved, worked = _copy(dtype, device), _matrices(dtype, device)
    tasks = {"\0copy": moved, "\0matrices": worked, **calls}
    rounds = [
        {name: best_seconds(call, device, seconds / _ROUNDS) for name, call in tasks.items()} for _ in range(_ROUNDS)
    ]
    best = {name: min(times[name] for times in rounds) for name in tasks}
    threads = torch.get_num_threads()
    ceilings = Ceilings(
        bandwidth=2 * _COPIED / best["\0copy"],
        flops=2 * _SIDE**3 / best["\0matrices"],
        source=f"measured with {threads} thread{'s' * (threads > 1)}",
        scatter=max(times["\0copy"] for times in rounds) / best["\0copy"] - 1,
    )
    return {name: best[name] for name in calls}, ceilings


def _copy(dtype: torch.dtype, device: str) -> Callable[[], object]:
    source = torch.empty(_COPIED // dtype.itemsize, dtype=dtype, device=device).fill_(1)
    target = torch.empty_like(source).fill_(0)  # written before it is timed: fresh pages cost more than copying
    return lambda: target.copy_(source)


def _matrices(dtype: torch.dtype, device: str) -> Callable[[], object]:
    matrix = torch.full((_SIDE, _SIDE), 0.5, dtype=dtype, device=device)
    product = torch.empty_like(matrix)
    return lambda: torch.mm(matrix, matrix, out=product)
