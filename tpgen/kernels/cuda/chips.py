"""Devices that kernels are written for, as data: what a placement and a prediction need to know of them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from tpgen.errors import BackendError, unknown


@dataclass(frozen=True)
class Chip:
    """A device of one compute capability; ``bandwidth`` is what a copy reaches, in bytes a second."""

    name: str
    arch: int  # compute capability 9.0 is 90
    block_shared: int  # bytes of shared memory that one block may have
    shared: int  # of one multiprocessor
    processors: int
    clock: float
    bandwidth: float
    fmas: int  # multiply-adds in float32 that a multiprocessor starts in a cycle
    double_fmas: int  # in float64
    double_matrix: int  # the same by matrix products of the library, which may have tensor cores
    half_matrix: int  # in bfloat16
    cache: int  # bytes that all multiprocessors share
    cache_bandwidth: float  # what it gives, in bytes a second

    def matrix_flops(self, dtype: str) -> float:
        """Operations a second of matrix products, of float32 without the shorter numbers of tensor cores.

        >>> [round(chip_named("A100").matrix_flops(d) / 1e12, 1) for d in ("float64", "float32", "bfloat16")]
        [19.5, 19.5, 311.9]
        """
        own = {"float64": self.double_matrix, "bfloat16": self.half_matrix}
        return 2 * self.processors * self.clock * own.get(dtype, self.fmas)

    def flops(self, dtype: str) -> float:
        """Operations a second outside of tensor cores."""
        return 2 * self.processors * self.clock * self.multiply_adds(dtype)

    def multiply_adds(self, dtype: str) -> int:
        """Multiply-adds that a multiprocessor starts in a cycle; bfloat16 is computed with as float32."""
        return self.double_fmas if dtype == "float64" else self.fmas

    def __str__(self) -> str:
        return f"sm_{self.arch}"


LANES = 32  # of a warp
KIB = 1024
LATENCY = 1300  # cycles from asking for a number in memory to having it, while others ask as well
MIB = 1024 * KIB
# The best known of each capability; bandwidths of copies as published, nine tenths of the peak where none are;
# those of caches as published for A100 and H200, two and a half times memory's elsewhere.
CHIPS: dict[int, Chip] = {
    chip.arch: chip
    for chip in (
        Chip("V100", 70, 96 * KIB, 96 * KIB, 80, 1.53e9, 0.80e12, 64, 32, 32, 64, 6 * MIB, 2.0e12),
        Chip("T4", 75, 64 * KIB, 64 * KIB, 40, 1.59e9, 0.27e12, 64, 2, 2, 64, 4 * MIB, 0.7e12),
        Chip("A100", 80, 163 * KIB, 164 * KIB, 108, 1.41e9, 1.75e12, 64, 32, 64, 1024, 40 * MIB, 4.0e12),
        Chip("A40", 86, 99 * KIB, 100 * KIB, 84, 1.74e9, 0.63e12, 128, 2, 2, 512, 6 * MIB, 1.6e12),
        Chip("L40", 89, 99 * KIB, 100 * KIB, 142, 2.49e9, 0.78e12, 128, 2, 2, 256, 96 * MIB, 2.0e12),
        Chip("H200", 90, 227 * KIB, 228 * KIB, 132, 1.755e9, 4.3e12, 128, 64, 128, 2048, 50 * MIB, 6.0e12),
        Chip("B200", 100, 227 * KIB, 228 * KIB, 148, 1.85e9, 7.2e12, 128, 64, 64, 4096, 126 * MIB, 10.0e12),
        Chip("RTX PRO 6000", 120, 99 * KIB, 100 * KIB, 188, 2.6e9, 1.6e12, 128, 2, 2, 512, 128 * MIB, 4.0e12),
    )
}
OLDEST = min(CHIPS)
# Others that can be named: of the same capabilities, with fewer processors or slower memory.
NAMED: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        *CHIPS.values(),
        replace(CHIPS[90], name="H100", bandwidth=3.0e12),  # SXM
        replace(CHIPS[90], name="H100 PCIe", processors=114, bandwidth=1.8e12),
        replace(
            CHIPS[86],
            name="RTX 3090",
            processors=82,
            clock=1.695e9,
            bandwidth=0.84e12,
            half_matrix=256,
            cache_bandwidth=2.1e12,
        ),
        replace(CHIPS[89], name="RTX 4090", processors=128, clock=2.52e9, bandwidth=0.9e12, cache=72 * MIB),
    )
}


def chip_named(name: str) -> Chip:
    """A chip by its name; raises `BackendError` with the known ones.

    >>> chip_named("H200").arch, chip_named("H100 PCIe").processors
    (90, 114)
    """
    found = next((chip for chip in NAMED.values() if chip.name.lower() == name.lower()), None)
    if found is None:
        raise BackendError(unknown("GPU", name, NAMED))
    return found


def chip_of(arch: int) -> Chip:
    """The chip of a compute capability, or the newest one known before it: kernels for that run on it as well.

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


class OnChip:
    """Placement of a kernel on blocks of a chip: their threads, their memory, and how many run at once."""

    chip: Chip
    warps: int  # of a block
    alignment = 1  # bytes of which addresses of given rows must be multiples

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The name of the numbers in memory."""

    @property
    @abstractmethod
    def shared(self) -> int:
        """Bytes of shared memory of a block."""

    @property
    @abstractmethod
    def registers(self) -> int:
        """Registers that are left to each thread."""

    @property
    @abstractmethod
    def entries(self) -> dict[str, tuple[int, int]]:
        """Threads of a block and its bytes of shared memory, by the names of the kernels."""

    @property
    def number(self) -> int:
        """Bytes of a number that is computed with."""
        return 8 if self.dtype == "float64" else 4

    @property
    def threads(self) -> int:
        return self.warps * LANES

    @property
    def blocks_at_once(self) -> int:
        """Blocks that one multiprocessor has room for; a block leaves 1 KiB to the system."""
        registers = _REGISTERS // (self.threads * self.registers)
        return max(1, min(self.chip.shared // (self.shared + KIB), registers, _MOST_WARPS // self.warps, _MOST_BLOCKS))
