"""Room for large results, used again when the tensors that held it are gone.

A fresh page costs the system more to hand out and clear than a kernel needs to fill it, and large tensors go back to
the system at every free.  So results of 1 MiB and more stand in slabs, on huge pages where those are filled, that are
kept for the next result of about the same size.  One rule says how much is kept: with it, slabs take no more room than
results of the last `_WINDOW` to twice as many took at once and a quarter more, or 256 MiB.  So a program that does the
same again and again finds its pages warm, whatever their size, and one that goes on to smaller things gives the rest
back.  The quarter is for results of different sizes at different times: a step of training has its weights of edges
and their gradients in turns, and would give up each time what it needs next.

``TPGEN_REUSE_MB`` sets a limit to what is kept free instead; 0 turns all of this off.  A slab is bound to its tensor's
storage: it comes back when the last view of it dies, never before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import OrderedDict, deque
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

from tpgen.remember import Watched, setting, watched

_PAGE = 2**21
LARGE = _PAGE // 2  # results of so many bytes and more
_KEPT = 256 * 2**20
_WINDOW = 1000
_HAVE_SLABS = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MADV_HUGEPAGE")


class _Slabs:
    """Free slabs, oldest first, and how many bytes they are; ``used`` bytes are in tensors."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.held, self.used = limit, 0, 0
        self._free: OrderedDict[int, mmap.mmap] = OrderedDict()  # by a running number
        self._number = 0
        self._peaks = (0, 0)  # most bytes in use at once, in the last whole window and in this one
        self._taken = 0
        self._returned: deque[mmap.mmap] = deque()
        self.unlock()

    def unlock(self) -> None:
        """A new lock: a forked process has none of the threads that held the old one."""
        self._guard = threading.Lock()

    def take(self, size: int) -> mmap.mmap:
        """A slab of a size or somewhat more, used before where one is free; `OSError` where there is no memory."""
        with self._guard:
            self._collect()
            slab = self._pop(size) or self._new(size)
            self.used += len(slab)
            self._note()
            return slab

    def _pop(self, size: int) -> mmap.mmap | None:
        """Of the free slabs that fit, and are not more than a quarter larger, the smallest, and of these the last."""
        fitting = [n for n, slab in reversed(self._free.items()) if size <= len(slab) <= size + size // 4]
        if not fitting:
            return None
        slab = self._free.pop(min(fitting, key=lambda n: len(self._free[n])))
        self.held -= len(slab)
        return slab

    def _new(self, size: int) -> mmap.mmap:
        try:
            return _mapped(size)
        except OSError:
            self._drop(0)
            return _mapped(size)

    def give_back(self, slab: mmap.mmap) -> None:
        """Keep a slab.  A garbage collection may call this at any point, also within the other methods."""
        self._returned.append(slab)
        if self._guard.acquire(blocking=False):  # else who holds it, or the next to take one, sees to it
            try:
                self._collect()
            finally:
                self._guard.release()

    def release(self) -> None:
        """Give all that is free back to the system."""
        with self._guard:
            self._collect()
            self._drop(0)

    def _collect(self) -> None:
        while self._returned:
            slab = self._returned.popleft()
            self._number += 1
            self._free[self._number] = slab
            self.held += len(slab)
            self.used -= len(slab)
        self._drop(self._room())

    def _drop(self, room: int) -> None:
        while self.held > room:
            _, oldest = self._free.popitem(last=False)
            self.held -= len(oldest)

    def _room(self) -> int:
        return max(_KEPT, max(self._peaks) * 5 // 4) - self.used if self.limit is None else self.limit

    def _note(self) -> None:
        self._taken += 1
        before, now = self._peaks
        if self._taken % _WINDOW == 0:
            before, now = now, 0
        self._peaks = before, max(now, self.used)


def _mapped(size: int) -> mmap.mmap:
    slab = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = size // _PAGE * _PAGE  # a huge page that is not filled would be room lost
    if whole:
        with suppress(OSError):  # a system may have none
            slab.madvise(mmap.MADV_HUGEPAGE, 0, whole)
    return slab


def _rounded(size: int) -> int:
    """A size of which there are eight between powers of two, so that about the same is the same.

    It is whole huge pages where these are at most an eighth more than is asked for: systems align such slabs alone, so
    that all of a slab is on huge pages, which kernels fill faster.

    >>> [_rounded(size) / 2**20 for size in (2**20 + 1, 5 * 2**20, 11 * 2**19)]
    [1.125, 5.0, 6.0]
    """
    step = 1 << (size.bit_length() - 4)
    rounded, whole = (-(-size // unit) * unit for unit in (step, _PAGE))
    return max(rounded, whole) if 8 * whole <= 9 * size else rounded


def _limit() -> int | None:
    asked = setting("TPGEN_REUSE_MB", "MB")
    return None if asked is None else asked * 2**20


_slabs = _Slabs(_limit() if _HAVE_SLABS else 0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_slabs.unlock)


def kept() -> int:
    """Bytes that are free and kept for results to come."""
    return _slabs.held


def release() -> None:
    """Give the bytes that are `kept` back to the system."""
    _slabs.release()


watched(Watched("free pages for large results", kept, None, release, "B"))


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, on used pages where it is large.

    >>> empty((3, 2), torch.float32).shape
    torch.Size([3, 2])
    """
    count = prod(shape)
    size = count * dtype.itemsize
    if size < LARGE or _slabs.limit == 0:
        return torch.empty(shape, dtype=dtype)
    try:
        slab = _slabs.take(_rounded(size))
    except OSError:  # torch says so in the words that those who catch it know
        return torch.empty(shape, dtype=dtype)
    lease = (ctypes.c_char * size).from_buffer(slab)
    # the storage holds the lease; when it lets go, nothing can read the slab any more
    weakref.finalize(lease, _slabs.give_back, slab).atexit = False
    # no view: autograd adds into a gradient only where nothing else holds its storage
    return torch.frombuffer(lease, dtype=dtype, count=count).resize_(shape)
