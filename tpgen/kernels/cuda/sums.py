"""The kernel that adds the blocks' parts of the gradient of weights that all rows share: `sum.h`, how it is launched,
and what it should take.

Few threads have work where weights are few, so many warps of a block share the parts of 32 weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tpgen.kernels.cuda.chips import LATENCY, Chip
from tpgen.kernels.cuda.groups import LANES

_SUMMERS, _AT_ONCE = 16, 16  # as sum.h has them
THREADS = LANES * _SUMMERS
_RESIDENT = 4  # blocks of a multiprocessor


@dataclass(frozen=True)
class WeightSum:
    """The launch for so many weights, whose sums are of so many bytes each."""

    weights: int
    number: int

    @property
    def blocks(self) -> int:
        return ceil(self.weights / LANES)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return THREADS * self.number

    def bytes(self, parts: int) -> int:
        """Bytes of the blocks' parts, which one kernel writes and the next reads."""
        return parts * self.weights * self.number

    def seconds(self, parts: int, chip: Chip) -> float:
        """Predicted: each warp waits for some parts at once, the first for the others; or the cache gives no more.

        >>> from tpgen.kernels.cuda.chips import chip_of
        >>> one = WeightSum(300, 4)
        >>> [f"{1e6 * one.seconds(parts, chip_of(90)):.1f} µs" for parts in (1, 256, 1056)]
        ['1.5 µs', '1.5 µs', '4.4 µs']
        """
        waits = ceil(parts / (_SUMMERS * _AT_ONCE)) + 1
        rounds = ceil(self.blocks / (_RESIDENT * chip.processors))
        return max(rounds * waits * LATENCY / chip.clock, self.bytes(parts) / chip.cache_bandwidth)
