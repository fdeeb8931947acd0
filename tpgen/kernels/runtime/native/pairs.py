"""The pairs among the edges of a graph, found in one pass in C++: nothing to sort, some tens of nanoseconds an edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.kernels.runtime.native.functions import native_function

_ENTRIES = {torch.float32: "tpgen_pairs_float32", torch.float64: "tpgen_pairs_float64"}


@dataclass(frozen=True, eq=False)
class EdgePairs:
    """Numbers of edges, the same for both of a pair.  Pairs have the first numbers, edges without another one follow.

    ``order`` holds an edge of each number, then the other ones of the pairs; ``place`` is where each edge stands in it.
    """

    order: Tensor
    place: Tensor
    number: Tensor  # of each edge
    pairs: int
    first: Tensor  # the two parts of the order
    second: Tensor

    @property
    def numbers(self) -> int:
        return self.first.shape[0]


def find_pairs(edge_index: Tensor, vectors: Tensor, rows: Tensor) -> EdgePairs | None:
    """The pairs among edges; None where nothing can be compiled.

    Two edges are a pair where they join the same nodes in both directions, where ``vectors (edges, 3)`` are exact
    negatives of each other, and where ``rows`` are the same to the last bit.  An edge is in one pair at most.  All are
    on the CPU.

    >>> found = find_pairs(
    ...     torch.tensor([[0, 1, 1], [1, 2, 0]]),
    ...     torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [-1.0, 0, 0]]),
    ...     torch.ones(3, 1),
    ... )
    >>> found.first.tolist(), found.second.tolist(), found.number.tolist()
    ([0, 1], [2], [0, 1, 0])
    """
    find = native_function("pairs", _ENTRIES[vectors.dtype], "ppppiippp")
    if find is None:
        return None
    edges = edge_index.shape[1]
    ends, vectors, rows = edge_index.long().contiguous(), vectors.detach().contiguous(), rows.detach().contiguous()
    width = rows.element_size() * (rows.numel() // edges if edges else 0)
    order, place, number = torch.empty(3, edges, dtype=torch.int64)
    given = [x.data_ptr() for x in (ends[0], ends[1], vectors, rows)]
    found = find(*given, width, edges, order.data_ptr(), place.data_ptr(), number.data_ptr())
    return None if found < 0 else EdgePairs(order, place, number, found, order[: edges - found], order[edges - found :])
