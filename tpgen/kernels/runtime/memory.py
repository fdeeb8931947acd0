"""Reuse of memory of large results.

``TPGEN_REUSE_MB`` limits free bytes kept; 0 turns reuse off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from tpgen.base.remember import RegisteredCache, register_cache
from tpgen.kernels.runtime.native.runtime import get_loaded_cpp_runtime, load_cpp_runtime

LARGE = 2**20  # bytes, as in native/memory.h


def kept_bytes() -> int:
    """Bytes of freed results kept for reuse."""
    made = get_loaded_cpp_runtime()
    return made.kept_bytes() if made else 0


def release() -> None:
    """Return freed memory kept for reuse to the system."""
    if made := get_loaded_cpp_runtime():
        made.release()


@contextmanager
def disable_memory_reuse() -> Iterator[None]:
    """Context without reuse of freed results' memory."""
    made = load_cpp_runtime()
    before = made.limit(0) if made else 0
    try:
        yield
    finally:
        if made:
            made.limit(before)


def _free_lock_of_kept_memory() -> None:
    if made := get_loaded_cpp_runtime():
        made.free_memory_lock_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock_of_kept_memory)
register_cache(RegisteredCache("free pages for large results", kept_bytes, None, release, "B"))


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised CPU tensor, on reused memory if large.

    >>> empty_tensor((3, 2), torch.float32).shape
    torch.Size([3, 2])
    """
    made = load_cpp_runtime() if prod(shape) * dtype.itemsize >= LARGE else None
    found = made.allocate_tensor(shape, dtype) if made else None
    return torch.empty(shape, dtype=dtype) if found is None else found
