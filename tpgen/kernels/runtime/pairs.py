"""Rows gathered by row rules, and gradients summed back."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.kernels.rows import PAIRED, RowIndex


def check_edges_per_weight_row(edges: int, weight_rows: int) -> None:
    """Raise `InputError` unless each row of weights has one or two edges."""
    traced = type(edges) is not int or type(weight_rows) is not int
    if not traced and not weight_rows <= edges <= 2 * weight_rows:
        most = f"{-(-edges // 2)} to {edges} rows of weights"
        raise InputError(f"w: at most two edges share a row, so {edges} edges take {most}, got {weight_rows}")


def repeat_paired_rows(weights: Tensor, edges: int, axis: int = 0) -> Tensor:
    """Row of weights for each edge: all rows, then the first again.

    >>> repeat_paired_rows(torch.tensor([[1.0], [2.0]]), 3).flatten()
    tensor([1., 2., 1.])
    """
    check_edges_per_weight_row(edges, weights.shape[axis])
    return torch.cat([weights, weights.narrow(axis, 0, edges - weights.shape[axis])], axis)


def sum_paired_rows(edge_rows: Tensor, pairs: int, axis: int = 0) -> Tensor:
    """Add rows of edges that share weights: the transpose of `repeat_paired_rows`.

    >>> sum_paired_rows(torch.tensor([[1.0], [2.0], [4.0]]), 2).flatten()
    tensor([5., 2.])
    """
    more = edge_rows.shape[axis] - pairs
    both = edge_rows.narrow(axis, 0, more) + edge_rows.narrow(axis, pairs, more)
    return torch.cat([both, edge_rows.narrow(axis, more, pairs - more)], axis)


def gather_operand_rows(index: RowIndex, operand: Tensor, rows: int) -> Tensor:
    """Gather an operand's row for each row of a call, by index, pair or group."""
    if index.rule.way == PAIRED:
        return repeat_paired_rows(operand, rows)
    if index.tensor is None:  # one for all, or each its own
        return operand if operand.shape[0] == rows else operand.expand(rows, *operand.shape[1:])
    return operand.index_select(0, index.tensor)


def sum_to_operand_rows(index: RowIndex, rows: Tensor) -> Tensor:
    """Add rows that share an operand's row: the transpose of `gather_operand_rows`."""
    if index.rule.way == PAIRED:
        return sum_paired_rows(rows, index.size)
    if index.tensor is None:
        return rows if index.size == len(rows) else rows.sum(0, keepdim=True)
    wide = rows.float() if rows.dtype == torch.bfloat16 else rows
    sums = wide.new_zeros(index.size, *rows.shape[1:]).index_add_(0, index.tensor, wide)
    return sums.to(rows.dtype)
