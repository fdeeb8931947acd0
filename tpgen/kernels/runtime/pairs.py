"""Rows gathered by row rules, and gradients summed back."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.kernels.rows import PAIRED, RowIndex


def check_pairs(edges: int, pairs: int) -> None:
    """Raise `InputError` unless each row of weights has one or two edges."""
    if type(edges) is int and type(pairs) is int and not pairs <= edges <= 2 * pairs:  # not of a trace
        most = f"{-(-edges // 2)} to {edges}"
        raise InputError(f"w: at most two edges share a row, so {edges} edges take {most} rows of weights, got {pairs}")


def rows_of_edges(weights: Tensor, edges: int, axis: int = 0) -> Tensor:
    """A row per edge: all rows of weights, then the first again.

    >>> rows_of_edges(torch.tensor([[1.0], [2.0]]), 3).flatten()
    tensor([1., 2., 1.])
    """
    check_pairs(edges, weights.shape[axis])
    return torch.cat([weights, weights.narrow(axis, 0, edges - weights.shape[axis])], axis)


def sums_of_pairs(rows: Tensor, pairs: int, axis: int = 0) -> Tensor:
    """Add rows of edges that share weights: the transpose of `rows_of_edges`.

    >>> sums_of_pairs(torch.tensor([[1.0], [2.0], [4.0]]), 2).flatten()
    tensor([5., 2.])
    """
    more = rows.shape[axis] - pairs
    both = rows.narrow(axis, 0, more) + rows.narrow(axis, pairs, more)
    return torch.cat([both, rows.narrow(axis, more, pairs - more)], axis)


def gather_by_rule(index: RowIndex, x: Tensor, rows: int) -> Tensor:
    """Gather an operand's row for each row of a call."""
    if index.rule.way == PAIRED:
        return rows_of_edges(x, rows)
    if index.tensor is None:  # one for all, or each its own
        return x if x.shape[0] == rows else x.expand(rows, *x.shape[1:])
    return x.index_select(0, index.tensor)


def sum_by_rule(index: RowIndex, rows: Tensor) -> Tensor:
    """Add rows that share an operand row: the transpose of `gather_by_rule`."""
    if index.rule.way == PAIRED:
        return sums_of_pairs(rows, index.size)
    if index.tensor is None:
        return rows if index.size == len(rows) else rows.sum(0, keepdim=True)
    wide = rows.float() if rows.dtype == torch.bfloat16 else rows
    sums = wide.new_zeros(index.size, *rows.shape[1:]).index_add_(0, index.tensor, wide)
    return sums.to(rows.dtype)
