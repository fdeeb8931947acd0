"""Weights of pairs of edges, of which two may share a row, where kernels take a row for each edge."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.base.errors import InputError


def check_pairs(edges: int, pairs: int) -> None:
    """Raise `InputError` where more than two edges would share a row of weights, or none would have one."""
    if type(edges) is int and type(pairs) is int and not pairs <= edges <= 2 * pairs:  # not of a trace
        most = f"{-(-edges // 2)} to {edges}"
        raise InputError(f"w: at most two edges share a row, so {edges} edges take {most} rows of weights, got {pairs}")


def rows_of_edges(weights: Tensor, edges: int, axis: int = 0) -> Tensor:
    """A row for each edge: those of pairs, and from the first on again.

    >>> rows_of_edges(torch.tensor([[1.0], [2.0]]), 3).flatten()
    tensor([1., 2., 1.])
    """
    check_pairs(edges, weights.shape[axis])
    return torch.cat([weights, weights.narrow(axis, 0, edges - weights.shape[axis])], axis)


def sums_of_pairs(rows: Tensor, pairs: int, axis: int = 0) -> Tensor:
    """The transposed map: rows of edges that share one are added.

    >>> sums_of_pairs(torch.tensor([[1.0], [2.0], [4.0]]), 2).flatten()
    tensor([5., 2.])
    """
    more = rows.shape[axis] - pairs
    both = rows.narrow(axis, 0, more) + rows.narrow(axis, pairs, more)
    return torch.cat([both, rows.narrow(axis, more, pairs - more)], axis)
