"""One-hot rows."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.kernels.runtime.native.source import compile_header_function

_ENTRIES = {torch.float32: "tpgen_one_hot_float32", torch.float64: "tpgen_one_hot_float64"}


def find_one_hot_columns(y: Tensor) -> Tensor | None:
    """Column of the 1 in each one-hot row, int64 ``(rows,)``; None unless all rows are one-hot.

    ``y (rows, columns)`` is on the CPU.

    >>> find_one_hot_columns(torch.eye(3)[[2, 0]])
    tensor([2, 0])
    >>> find_one_hot_columns(torch.ones(2, 3)) is None
    True
    """
    find = compile_header_function("one_hot", _ENTRIES[y.dtype], "piip") if y.dtype in _ENTRIES else None
    if find is None:
        return y.argmax(1) if is_one_hot(y) else None
    y, place = y.detach().contiguous(), torch.empty(len(y), dtype=torch.int64)
    return place if find(y.data_ptr(), *y.shape, place.data_ptr()) == len(y) else None


def is_one_hot(y: Tensor) -> bool:
    return bool((y.amax(1) == 1).all() & (y.count_nonzero() == len(y)))
