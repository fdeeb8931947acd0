"""A region of addresses, the free spans in it, and which of its huge pages hold memory.

Addresses cost nothing until something is written there.  So a region is reserved in one piece, results are placed at
its lowest addresses that are free, and neighbours that become free are one span again: results of all sizes share the
same pages.  Pages of a free span stay.  They can be offered to the system (``MADV_FREE``), which takes them first where
it runs out of memory; until then they are written again without a fault.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect
from contextlib import suppress

PAGE = 2**21
HAVE_REGIONS = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MADV_HUGEPAGE")


def whole_pages(size: int, unit: int = mmap.PAGESIZE) -> int:
    """A size in whole pages.

    >>> whole_pages(1, 4096), whole_pages(8192, 4096)
    (4096, 8192)
    """
    return -(-size // unit) * unit


class Region:
    """So many bytes of addresses, in whole huge pages; `OSError` where the system has none."""

    def __init__(self, size: int) -> None:
        size = self.size = whole_pages(size, PAGE)
        self._pages = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = -ctypes.addressof(ctypes.c_char.from_buffer(self._pages)) % PAGE  # its first huge page
        self._advise("MADV_HUGEPAGE", 0, size)
        self._free = [(0, size)]  # (begin, end), ascending, none beside another
        self._filled = bytearray(size // PAGE)  # 1 for each huge page that may hold memory

    @property
    def empty(self) -> bool:
        """Nothing stands in it, and no page holds memory."""
        return self._free == [(0, self.size)] and 1 not in self._filled

    def lease(self, begin: int, size: int) -> ctypes.Array[ctypes.c_char]:
        """The bytes from a place on, as an object that keeps the region."""
        return (ctypes.c_char * size).from_buffer(self._pages, self._base + begin)

    def take(self, size: int) -> tuple[int, int] | None:
        """The lowest free place for so many bytes, and how many bytes of fresh pages it needs; None where none fits."""
        index = next((i for i, (begin, end) in enumerate(self._free) if end - begin >= size), None)
        if index is None:
            return None
        begin, end = self._free[index]
        self._free[index : index + 1] = [(begin + size, end)] if begin + size < end else []
        pages = slice(begin // PAGE, -(-(begin + size) // PAGE))
        fresh = self._filled[pages].count(0)
        self._filled[pages] = bytes([1]) * (pages.stop - pages.start)
        return begin, fresh * PAGE

    def give_back(self, begin: int, size: int) -> None:
        """Make a place free."""
        end = begin + size
        index = bisect(self._free, (begin, end))
        first, last = begin, end
        if index < len(self._free) and self._free[index][0] == end:
            last = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == begin:
            index -= 1
            first = self._free.pop(index)[0]
        self._free.insert(index, (first, last))

    def offer(self) -> None:
        """Let the system take what is free: whole huge pages that hold memory."""
        for begin, end in self._free:
            first, last = -(-begin // PAGE), min(end // PAGE, self._filled.rfind(1) + 1)
            if first < last:
                self._advise("MADV_FREE", first * PAGE, (last - first) * PAGE)

    def trim(self, wanted: int) -> int:
        """Give pages of free spans back to the system, the highest first, until so many bytes are; how many were."""
        given = 0
        for begin, end in reversed(self._free):
            first, last = -(-begin // PAGE), end // PAGE
            while given < wanted and (top := self._filled.rfind(1, first, max(first, last))) >= 0:
                low = max(self._filled.rfind(0, first, top) + 1, first, top + 1 - -(-(wanted - given) // PAGE))
                count = top + 1 - low
                self._filled[low : top + 1] = bytes(count)
                self._advise("MADV_DONTNEED", low * PAGE, count * PAGE)
                given += count * PAGE
        return given

    def _advise(self, advice: str, begin: int, size: int) -> None:
        with suppress(OSError, AttributeError):  # a system may not know it
            self._pages.madvise(getattr(mmap, advice), self._base + begin, size)
