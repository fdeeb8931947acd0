"""Pairs of opposite edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.kernels.runtime.native.source import compile_header_function

_ENTRIES = {torch.float32: "tpgen_pairs_float32", torch.float64: "tpgen_pairs_float64"}


@dataclass(frozen=True, eq=False)
class EdgePairs:
    """Pairs of opposite edges: both edges of a pair have one number, other edges their own.

    ``order`` holds one edge of each number, then the pairs' second edges; ``place`` is the inverse permutation.
    """

    order: Tensor
    place: Tensor
    number: Tensor  # of each edge
    pairs: int
    first: Tensor  # the two parts of the order
    second: Tensor

    @property
    def numbers(self) -> int:
        """Count of distinct numbers."""
        return self.first.shape[0]


def find_pairs(edge_index: Tensor, vectors: Tensor, rows: Tensor) -> EdgePairs | None:
    """Pair edges with opposite edges; None without a compiler.

    A pair joins the same nodes in both directions, with ``vectors (edges, 3)`` that are exact negatives and ``rows``
    equal to the last bit.  An edge is in one pair at most.  Tensors are on the CPU.

    >>> found = find_pairs(
    ...     torch.tensor([[0, 1, 1], [1, 2, 0]]),
    ...     torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [-1.0, 0, 0]]),
    ...     torch.ones(3, 1),
    ... )
    >>> found.first.tolist(), found.second.tolist(), found.number.tolist()
    ([0, 1], [2], [0, 1, 0])
    """
    find = compile_header_function("pairs", _ENTRIES[vectors.dtype], "ppppiippp")
    if find is None:
        return None
    edges = edge_index.shape[1]
    ends, vectors, rows = edge_index.long().contiguous(), vectors.detach().contiguous(), rows.detach().contiguous()
    width = rows.element_size() * (rows.numel() // edges if edges else 0)
    order, place, number = torch.empty(3, edges, dtype=torch.int64)
    given = [x.data_ptr() for x in (ends[0], ends[1], vectors, rows)]
    found = find(*given, width, edges, order.data_ptr(), place.data_ptr(), number.data_ptr())
    return None if found < 0 else EdgePairs(order, place, number, found, order[: edges - found], order[edges - found :])
