"""Memory that knows who wrote and read each *grain* of it last, and whether a later access has to wait for that.

Two accesses are in order if one thread makes both, if a barrier of the block stands between, or, in one warp, a
barrier of the warp.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

WARP = 32
_NOBODY, _SEVERAL = -1, -2
_MARGIN = 256  # bytes around every tensor that nobody may read or write


class Fault(Exception):
    """What a device would do wrong, or in no fixed order."""


@dataclass
class Clock:
    """What every thread has passed: barriers of blocks, which all of them pass, and barriers of its warp."""

    threads: int
    block: int = 0
    warps: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.warps = np.zeros(self.threads, np.int32)


class Accesses:
    """Of each grain, the threads that last accessed it in one way, and when."""

    def __init__(self, grains: int) -> None:
        self.thread = np.full(grains, _NOBODY, np.int32)  # or several, of one warp or of several
        self.warp = np.full(grains, _NOBODY, np.int32)
        self.block_time, self.warp_time = np.zeros(grains, np.int32), np.zeros(grains, np.int32)

    def forget(self, grains: np.ndarray | slice) -> None:
        self.thread[grains] = _NOBODY

    def unordered(self, grains: np.ndarray, threads: np.ndarray, clock: Clock) -> np.ndarray:
        """Which of these grains was accessed by another thread, with nothing between that waits for it."""
        by = self.thread[grains]
        found = (by != _NOBODY) & (by != threads) & (self.block_time[grains] == clock.block)
        if found.any():
            same = self.warp[grains] == threads // WARP
            found &= ~(same & (self.warp_time[grains] < clock.warps[threads]))
        return found

    def note(self, grains: np.ndarray, threads: np.ndarray, clock: Clock) -> None:
        """Keep an access; with one that is not in order before it, the two are of several threads."""
        beside = self.unordered(grains, threads, clock)
        several_warps = beside & (self.warp[grains] != threads // WARP)
        self.thread[grains], self.warp[grains] = threads, threads // WARP
        beside |= self.thread[grains] != threads  # lanes of this very access
        several_warps |= self.warp[grains] != threads // WARP
        self.thread[grains[beside]] = _SEVERAL
        self.warp[grains[several_warps]] = _SEVERAL
        self.block_time[grains], self.warp_time[grains] = clock.block, clock.warps[threads]


class Watched:
    """Bytes in grains of so many, with who wrote and read them."""

    def __init__(self, name: str, data: np.ndarray, grain: int, clock: Clock) -> None:
        self.name, self.grain, self.clock = name, grain, clock
        self.bytes = data
        self.data = data.view({2: np.uint16, 4: np.uint32}[grain])
        self.written, self.read = Accesses(len(self.data)), Accesses(len(self.data))
        self.within = {size: np.arange(max(1, size // grain)) for size in (1, 2, 4, 8, 16)}

    def grains(self, places: np.ndarray, size: int) -> np.ndarray:
        """Of so many bytes at each of some places; a fault where they are not aligned or leave it."""
        if (places % size).any():
            raise Fault(f"{self.name}: {size} bytes at {places[places % size != 0][0]}, which is no multiple")
        if places.min() < 0 or places.max() + size > len(self.bytes):
            raise Fault(f"{self.name}: {size} bytes at {places.min()} to {places.max()} leave it")
        return (places // self.grain)[:, None] + self.within[size]

    def load(self, places: np.ndarray, size: int, threads: np.ndarray) -> np.ndarray:
        """So many bytes at each of some places, by a thread each."""
        grains = self.grains(places, size)
        flat, by = grains.ravel(), np.repeat(threads, grains.shape[1])
        self.may_read(flat, by)
        self.check("reads what has just been written", self.written.unordered(flat, by, self.clock), flat, by)
        self.read.note(flat, by, self.clock)
        return self.data[grains] if size >= self.grain else self.bytes[places[:, None] + np.arange(size)]

    def store(self, places: np.ndarray, values: np.ndarray, threads: np.ndarray) -> None:
        """Values of some bytes each, by a thread each."""
        grains = self.grains(places, values.shape[1] * values.itemsize)
        assert grains.size * self.grain == values.nbytes, "threads write less than a grain"
        flat, by = grains.ravel(), np.repeat(threads, grains.shape[1])
        self.may_write(flat, by)
        self.note_write(flat, by)
        self.data[grains] = values.view(self.data.dtype)

    def note_write(self, grains: np.ndarray, by: np.ndarray) -> None:
        for what, accesses in (("written", self.written), ("read", self.read)):
            self.check(f"writes what has just been {what}", accesses.unordered(grains, by, self.clock), grains, by)
        self.written.note(grains, by, self.clock)
        self.check("writes with another one", self.written.thread[grains] == _SEVERAL, grains, by)

    def check(self, what: str, wrong: np.ndarray, grains: np.ndarray, by: np.ndarray) -> None:
        if wrong.any():
            n = int(np.argmax(wrong))
            raise Fault(f"{self.name}: thread {by[n]} {what}, at {grains[n] * self.grain}")

    def may_read(self, grains: np.ndarray, by: np.ndarray) -> None:
        """A fault where something else forbids it."""

    def may_write(self, grains: np.ndarray, by: np.ndarray) -> None:
        """A fault where something else forbids it."""


class Arena(Watched):
    """The device's memory: tensors that a kernel is given, at the addresses that they have, with margins between."""

    def __init__(self, size: int, grain: int) -> None:
        self.storage = torch.empty(-(-size // 16) * 16, dtype=torch.uint8)
        data = self.storage.numpy()
        data[:] = 0xFF  # of floating point numbers, none
        self.base, self.end = self.storage.data_ptr(), 256 - self.storage.data_ptr() % 256
        super().__init__("memory", data, grain, Clock(0))
        self.there = np.zeros(len(self.data), bool)
        self.block_began = 0

    def place(self, x: Tensor) -> Tensor:
        """A copy of a tensor that a kernel may read and write."""
        begin, size = self.end, x.numel() * x.element_size()
        self.end = begin + -(-(size + _MARGIN) // _MARGIN) * _MARGIN
        if self.end > len(self.bytes):
            raise MemoryError(f"an arena of {len(self.bytes)} bytes is too small")
        inner = self.storage[begin : begin + size].view(x.dtype).view(x.shape)
        inner.copy_(x)
        self.there[begin // self.grain : -(-(begin + size) // self.grain)] = True
        return inner

    def begin_kernel(self) -> None:
        """All that was before has ended."""
        for accesses in (self.written, self.read):
            accesses.forget(slice(None))

    def may_read(self, grains: np.ndarray, by: np.ndarray) -> None:
        self.check("reads beside a tensor", ~self.there[grains], grains, by)
        self.check("reads what another block writes", self._elsewhere(self.written, grains), grains, by)

    def may_write(self, grains: np.ndarray, by: np.ndarray) -> None:
        self.check("writes beside a tensor", ~self.there[grains], grains, by)
        for accesses, what in ((self.written, "writes"), (self.read, "reads")):
            self.check(f"writes what another block {what}", self._elsewhere(accesses, grains), grains, by)

    def _elsewhere(self, accesses: Accesses, grains: np.ndarray) -> np.ndarray:
        return (accesses.thread[grains] != _NOBODY) & (accesses.block_time[grains] < self.block_began)
