"""The pairs among the edges of a graph, found in one pass in C++: nothing to sort, some tens of nanoseconds an edge."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tpgen.errors import BackendError
from tpgen.kernels.cpp.text import read_header
from tpgen.kernels.libraries.build import Wanted, load_library
from tpgen.kernels.libraries.cache import RUNTIME

_ENTRIES = {torch.float32: "tpgen_pairs_float32", torch.float64: "tpgen_pairs_float64"}


@dataclass(frozen=True, eq=False)
class EdgePairs:
    """Which edges are a pair.  Pairs have the first numbers, edges without another one those behind them.

    ``order`` holds an edge of each number, then the other ones of the pairs; ``place`` is where each edge stands in it.
    """

    order: Tensor
    place: Tensor
    number: Tensor  # of each edge
    pairs: int

    @property
    def numbers(self) -> int:
        return len(self.order) - self.pairs

    @property
    def first(self) -> Tensor:
        return self.order[: self.numbers]

    @property
    def second(self) -> Tensor:
        return self.order[self.numbers :]


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
    find = _function(_ENTRIES[vectors.dtype])
    if find is None:
        return None
    edges = edge_index.shape[1]
    ends, vectors, rows = edge_index.long().contiguous(), vectors.detach().contiguous(), rows.detach().contiguous()
    width = rows.element_size() * (rows.numel() // edges if edges else 0)
    order, place, number = torch.empty(3, edges, dtype=torch.int64)
    given = [x.data_ptr() for x in (ends[0], ends[1], vectors, rows)]
    found = find(*given, width, edges, order.data_ptr(), place.data_ptr(), number.data_ptr())
    return None if found < 0 else EdgePairs(order, place, number, found)


_HERE = Path(__file__).parent
_ARGUMENTS = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3]


@cache
def _function(entry: str) -> Any:
    try:
        function = getattr(load_library(Wanted(_text(), entry, (), RUNTIME)), entry)
    except BackendError:  # without a compiler there are no kernels either, and who asks for one is told
        return None
    function.argtypes, function.restype = _ARGUMENTS, ctypes.c_int64
    return function


def _text() -> str:
    here = Path(__file__).parent
    return "\n".join(
        ["typedef long long i64;", read_header(here.parent / "cpp/system.h"), read_header(here / "pairs.h")]
    )
