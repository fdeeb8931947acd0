"""What a machine can do at most: bytes copied and operations done per second, measured once per process.

Two small measurements, together under half a second.  They are what torch reaches here with large operands, not what a
data sheet promises; a product that runs at these is as fast as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from tpgen.inspection.clock import best_seconds

_COPIED = 2**25  # bytes: beyond the caches of a core
_SIDE = 768  # of the matrices: 0.9 billion operations
_SECONDS = 0.12  # for each measurement, at most about twice that


@dataclass(frozen=True)
class Ceilings:
    """Bytes moved per second (read and written both count) and operations per second, of one dtype on one device."""

    bandwidth: float
    flops: float
    source: str = "given"

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
    return _measured(dtype, str(torch.device(device)), torch.get_num_threads())


@lru_cache(maxsize=16)
def _measured(dtype: torch.dtype, device: str, threads: int) -> Ceilings:
    source = torch.empty(_COPIED // dtype.itemsize, dtype=dtype, device=device).fill_(1)
    target = torch.empty_like(source).fill_(0)  # written before it is timed: fresh pages cost more than copying
    matrix = torch.full((_SIDE, _SIDE), 0.5, dtype=dtype, device=device)
    product = torch.empty_like(matrix)
    return Ceilings(
        bandwidth=2 * _COPIED / best_seconds(lambda: target.copy_(source), device, _SECONDS),
        flops=2 * _SIDE**3 / best_seconds(lambda: torch.mm(matrix, matrix, out=product), device, _SECONDS),
        source=f"measured with {threads} thread{'s' * (threads > 1)}",
    )
