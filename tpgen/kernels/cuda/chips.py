"""GPU models, as data for placements."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from tpgen.base.errors import BackendError


@dataclass(frozen=True)
class Chip:
    """A GPU model with its memory sizes."""

    name: str
    arch: int  # compute capability 9.0 is 90
    block_shared: int  # bytes of shared memory that one block may have
    shared: int  # of one multiprocessor
    processors: int
    cache: int  # bytes that all multiprocessors share

    def __str__(self) -> str:
        return f"sm_{self.arch}"


LANES = 32  # of a warp
KIB = 1024
MIB = 1024 * KIB
# The best known of each capability.
CHIPS: dict[int, Chip] = {
    chip.arch: chip
    for chip in (
        Chip("V100", 70, 96 * KIB, 96 * KIB, 80, 6 * MIB),
        Chip("T4", 75, 64 * KIB, 64 * KIB, 40, 4 * MIB),
        Chip("A100", 80, 163 * KIB, 164 * KIB, 108, 40 * MIB),
        Chip("A40", 86, 99 * KIB, 100 * KIB, 84, 6 * MIB),
        Chip("L40", 89, 99 * KIB, 100 * KIB, 142, 96 * MIB),
        Chip("H200", 90, 227 * KIB, 228 * KIB, 132, 50 * MIB),
        Chip("B200", 100, 227 * KIB, 228 * KIB, 148, 126 * MIB),
        Chip("RTX PRO 6000", 120, 99 * KIB, 100 * KIB, 188, 128 * MIB),
    )
}
OLDEST = min(CHIPS)


def chip_of(arch: int) -> Chip:
    """Chip of a compute capability (90 is 9.0), else the newest earlier chip.

    >>> chip_of(90).name, chip_of(87).name
    ('H200', 'A40')

    Raises `BackendError` for a capability below 7.0.
    """
    if arch < OLDEST:
        raise BackendError(
            f"kernels need a GPU of compute capability {OLDEST / 10} or later, this one has {arch / 10}: "
            "use strategy='grouped'"
        )
    return CHIPS[max(known for known in CHIPS if known <= arch)]


_REGISTERS = 2**16  # of a multiprocessor, four bytes each
_MOST_WARPS, _MOST_BLOCKS = 64, 32  # of a multiprocessor


class KernelOnChip:
    """Base of placements: block size, registers and occupancy of a kernel on a GPU model."""

    chip: Chip
    warps: int  # of a block
    alignment = 1  # bytes of which addresses of given rows must be multiples

    @property
    @abstractmethod
    def dtype(self) -> str:
        """Dtype name of numbers in memory."""

    @property
    @abstractmethod
    def shared(self) -> int:
        """Shared bytes of a block."""

    @property
    @abstractmethod
    def registers(self) -> int:
        """Registers per thread."""

    @property
    @abstractmethod
    def block_sizes_by_kernel(self) -> dict[str, tuple[int, int]]:
        """Threads and shared bytes per block, by kernel name."""

    @property
    def number(self) -> int:
        """Bytes of a number in registers."""
        return 8 if self.dtype == "float64" else 4

    @property
    def threads(self) -> int:
        return self.warps * LANES

    @property
    def max_blocks_per_multiprocessor(self) -> int:
        """Estimated concurrent blocks."""
        registers = _REGISTERS // (self.threads * self.registers)
        return max(1, min(self.chip.shared // (self.shared + KIB), registers, _MOST_WARPS // self.warps, _MOST_BLOCKS))
