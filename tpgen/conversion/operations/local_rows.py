"""Atoms of a rank, in a simulation over several: its own stand first, then ghosts, which send but do not receive.

Sums of ghosts are cut off.  Between a convolution and the cut a gradient would be enlarged with zeros, so `local_rows`
says before which rows are wanted.  It also says whether edges count in pairs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor

_wanted = local()


@contextmanager
def local_rows(count: int, *, in_pairs: bool = False) -> Iterator[None]:
    """Let convolutions of this thread return the first rows alone: none of the others has an edge that points to it.

    ``in_pairs`` says that gradients by edges are read in sums over both edges of a pair alone, whose vectors are
    negatives of each other but for rounding.
    """
    _wanted.count, _wanted.in_pairs = count, in_pairs
    try:
        yield
    finally:
        del _wanted.count, _wanted.in_pairs


def rows_of(nodes: Tensor) -> int:
    """Number of rows that a convolution of nodes returns: as many as there are, or as are wanted."""
    if torch.compiler.is_compiling():
        return nodes.size(0)
    return getattr(_wanted, "count", nodes.size(0))


def count_in_pairs() -> bool:
    """Whether nobody reads gradients by single edges, whose pairs are negatives of each other but for rounding."""
    return getattr(_wanted, "in_pairs", False)


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first rows of a tensor; where it has no others itself, as the gradient of a slice would be a copy."""
    return x if x.size(0) == count else x[:count]
