"""Room for large results, used again when the tensors that held it are gone.

A fresh page costs the system more to hand out and clear than a kernel needs to fill it, and large tensors go back to
the system at every free.  So results of 1 MiB and more stand in slabs of huge pages that are kept for the next result
of the same size, up to ``TPGEN_REUSE_MB`` (256) in all; 0 turns this off.  A slab is bound to its tensor's storage:
it comes back when the last view of it dies, never before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import warnings
import weakref
from collections import OrderedDict
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

_PAGE = 2**21
_LARGE = _PAGE // 2
_HAVE_SLABS = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MADV_HUGEPAGE")


class _Slabs:
    """Free slabs by size, oldest first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self._free: OrderedDict[int, mmap.mmap] = OrderedDict()  # by a running number
        self._number = 0
        self.unlock()

    def unlock(self) -> None:
        """A new lock: a forked process has none of the threads that held the old one."""
        # entered again when a collection inside it frees a tensor
        self._guard = threading.RLock()

    def take(self, size: int) -> mmap.mmap:
        with self._guard:
            for number in reversed(self._free):
                if len(self._free[number]) == size:
                    self.held -= size
                    return self._free.pop(number)
        slab = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a system may have none
            slab.madvise(mmap.MADV_HUGEPAGE)
        return slab

    def give_back(self, slab: mmap.mmap) -> None:
        with self._guard:
            self._number += 1
            self._free[self._number] = slab
            self.held += len(slab)
            while self.held > self.limit:
                _, oldest = self._free.popitem(last=False)
                self.held -= len(oldest)


def _limit() -> int:
    text = os.environ.get("TPGEN_REUSE_MB", "256")
    if not text.isdigit():
        warnings.warn(f"TPGEN_REUSE_MB must be a whole number of MB, got {text!r}: taking 256", stacklevel=2)
        text = "256"
    return int(text) * 2**20


_slabs = _Slabs(_limit() if _HAVE_SLABS else 0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_slabs.unlock)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, on used pages where it is large.

    >>> empty((3, 2), torch.float32).shape
    torch.Size([3, 2])
    """
    count = prod(shape)
    size = count * dtype.itemsize
    if size < _LARGE or size > _slabs.limit:
        return torch.empty(shape, dtype=dtype)
    slab = _slabs.take(-(-size // _PAGE) * _PAGE)
    lease = (ctypes.c_char * size).from_buffer(slab)
    # the storage holds the lease; when it lets go, nothing can read the slab any more
    weakref.finalize(lease, _slabs.give_back, slab).atexit = False
    # no view: autograd adds into a gradient only where nothing else holds its storage
    return torch.frombuffer(lease, dtype=dtype, count=count).resize_(shape)
