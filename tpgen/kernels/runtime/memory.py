"""Room for large results, used again when the tensors that held it are gone.

A fresh page costs the system more to hand out and clear than a kernel needs to fill it, and large tensors go back to
the system at every free.  So results of 1 MiB and more stand in `Region`s of addresses, whose pages are kept for the
next results, of whatever sizes.  A program that does the same again and again needs the same pages again and again, and
finds them warm.  One rule says how much is kept: with it, results take at most twice the room that those of the last
`_WINDOW` to twice as many took at once, or 256 MiB.  That bounds what a program that goes on to smaller things keeps.
One that does not is far below: placed at the lowest free addresses, results of networks take some twentieth more than
they are.  And what is kept is offered to the system, to take when it runs out of memory: whenever `_OFFERED` places
or 256 MiB have come back, since an offer at each costs a kernel that fills some megabytes a fifth of its time.

``TPGEN_REUSE_MB`` sets a limit to what is kept free instead; 0 turns all of this off.  A place is bound to its tensor's
storage: it becomes free when the last view of it dies, never before.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.base.remember import Watched, setting, watched
from tpgen.kernels.runtime.pages import HAVE_REGIONS, PAGE, Region, whole_pages

LARGE = PAGE // 2  # results of so many bytes and more
_KEPT = 256 * 2**20
_RESERVED = 2**30  # of addresses at least: they are no memory yet
_WINDOW = 1000
_OFFERED = 64


class _Place(NamedTuple):
    region: Region
    begin: int
    size: int


class _Arena:
    """Regions, how many bytes of their pages hold memory, and how many of those are ``used`` by tensors."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.filled, self.used = limit, 0, 0
        self._regions: list[Region] = []
        self._peaks = (0, 0)  # most bytes in use at once, in the last whole window and in this one
        self._taken = 0
        self._freed = self._freed_bytes = 0  # since pages were offered
        self._returned: deque[_Place] = deque()
        self.unlock()

    def unlock(self) -> None:
        """A new lock: a forked process has none of the threads that held the old one."""
        self._guard = threading.Lock()

    @property
    def kept(self) -> int:
        """Bytes that hold memory and no tensor."""
        return self.filled - self.used

    def take(self, size: int) -> _Place:
        """A place of a size; `OSError` where there is no memory."""
        with self._guard:
            self._collect()
            place = self._find(whole_pages(size))
            self.used += place.size
            self._note()
            return place

    def _find(self, size: int) -> _Place:
        for region in self._regions:
            if (found := region.take(size)) is not None:
                break
        else:
            region = self._reserve(size)
            found = region.take(size)
            assert found is not None
        begin, fresh = found
        self.filled += fresh
        return _Place(region, begin, size)

    def _reserve(self, size: int) -> Region:
        """A new region, as large as all others together where the system allows it."""
        for wanted in (max(size, _RESERVED, sum(region.size for region in self._regions)), size, size):
            try:
                region = Region(wanted)
            except OSError:
                if wanted == size:
                    self._trim(0)
            else:
                self._regions.append(region)
                return region
        raise OSError(f"no {size} bytes of addresses")

    def give_back(self, place: _Place) -> None:
        """Make a place free.  A garbage collection may call this at any point, also within the other methods."""
        self._returned.append(place)
        if self._guard.acquire(blocking=False):  # else who holds it, or the next to take a place, sees to it
            try:
                self._collect()
            finally:
                self._guard.release()

    def release(self) -> None:
        """Give all that is free back to the system."""
        with self._guard:
            self._collect()
            self._trim(0)

    def _collect(self) -> None:
        while self._returned:
            region, begin, size = self._returned.popleft()
            region.give_back(begin, size)
            self.used -= size
            self._freed, self._freed_bytes = self._freed + 1, self._freed_bytes + size
        if self.kept > (room := self._room()):
            self._trim(room)
        if self._freed >= _OFFERED or self._freed_bytes >= _KEPT:
            self._freed = self._freed_bytes = 0
            for region in self._regions:
                region.offer()

    def _trim(self, room: int) -> None:
        """Keep so many bytes, those of the lowest addresses, and no region that is empty then."""
        for region in reversed(self._regions):
            if self.kept > room:
                self.filled -= region.trim(self.kept - room)
        self._regions = [region for region in self._regions if not region.empty]

    def _room(self) -> int:
        return max(_KEPT, 2 * max(self._peaks)) - self.used if self.limit is None else self.limit

    def _note(self) -> None:
        self._taken += 1
        before, now = self._peaks
        if self._taken % _WINDOW == 0:
            before, now = now, 0
        self._peaks = before, max(now, self.used)


def _limit() -> int | None:
    asked = setting("TPGEN_REUSE_MB", "MB")
    return None if asked is None else asked * 2**20


_arena = _Arena(_limit() if HAVE_REGIONS else 0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_arena.unlock)


def kept() -> int:
    """Bytes that are free and kept for results to come."""
    return _arena.kept


def release() -> None:
    """Give the bytes that are `kept` back to the system."""
    _arena.release()


@contextmanager
def none_kept() -> Iterator[None]:
    """Take all memory of results from torch meanwhile: whoever reads the figures of its allocator finds them there."""
    global _arena
    before, _arena = _arena, _Arena(0)
    try:
        yield
    finally:
        _arena = before


watched(Watched("free pages for large results", kept, None, release, "B"))


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, on used pages where it is large.

    >>> empty((3, 2), torch.float32).shape
    torch.Size([3, 2])
    """
    count = prod(shape)
    size = count * dtype.itemsize
    if size < LARGE or _arena.limit == 0:
        return torch.empty(shape, dtype=dtype)
    try:
        place = _arena.take(size)
    except OSError:  # torch says so in the words that those who catch it know
        return torch.empty(shape, dtype=dtype)
    lease = place.region.lease(place.begin, size)
    # the storage holds the lease; when it lets go, nothing can read the place any more
    weakref.finalize(lease, _arena.give_back, place).atexit = False
    # no view: autograd adds into a gradient only where nothing else holds its storage
    return torch.frombuffer(lease, dtype=dtype, count=count).resize_(shape)
