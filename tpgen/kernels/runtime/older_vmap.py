"""Torch's older vmap: ``is_grads_batched=True``, ``vectorize=True``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from tpgen.base._torch import enter_vmap, is_legacy_batchedtensor, leave_vmap, remove_batch_dim


@contextmanager
def below_vmap() -> Iterator[int]:
    """Leave the innermost older vmap; yield its level."""
    level = leave_vmap() + 1
    try:
        yield level
    finally:
        enter_vmap()


def unwrap_batched(level: int, values: Sequence[Any]) -> tuple[int, list[int | None], list[Any]]:
    """Unwrap values at a vmap level; return batch size, batch axes (0 or None), values."""
    batched: dict[int, Tensor] = {
        # of a tensor that only a level further out has batched this makes one with a batch of one
        n: remove_batch_dim(x, level, 1, 0)
        for n, x in enumerate(values)
        if isinstance(x, Tensor) and is_legacy_batchedtensor(x)
    }
    size = max(x.shape[0] for x in batched.values())
    below = [batched[n].expand(size, *batched[n].shape[1:]) if n in batched else x for n, x in enumerate(values)]
    return size, [0 if n in batched else None for n in range(len(below))], below
