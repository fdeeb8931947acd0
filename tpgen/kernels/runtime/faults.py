"""Errors of kernels' fault codes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tpgen.base.errors import BackendError, InputError
from tpgen.kernels.cpp.generate import BEYOND
from tpgen.kernels.rows import RowIndex


def fault_error(code: int, indices: Sequence[RowIndex]) -> Exception:
    """Error of a fault code."""
    if code < BEYOND:
        return BackendError("a kernel stopped: out of memory for scratch space; use smaller batches")
    index = indices[code - BEYOND]
    rule, (low, high) = index.rule, _least_and_largest_index(index.tensor)
    return InputError(f"{rule.argument}{rule.beyond.format(index.size - 1)}, got {low} to {high}")


def fault_of(indices: Sequence[RowIndex]) -> int:
    """Fault code of the first index out of range, or 0."""
    return next((BEYOND + n for n, index in enumerate(indices) if index.check and not _in_range(index)), 0)


def _in_range(index: RowIndex) -> bool:
    if index.tensor is None or not index.tensor.numel():
        return True
    low, high = _least_and_largest_index(index.tensor)
    return low >= 0 and high < index.size


def _least_and_largest_index(index: Tensor | None) -> tuple[int, int]:
    assert index is not None
    low, high = index.aminmax()
    return int(low), int(high)
