"""Rows of nodes that a convolution of a project returns.

In a simulation over several ranks, atoms of other ranks stand behind a rank's own as senders alone, and their sums are
cut off.  Between the two a gradient would be enlarged with zeros; so `local_rows` says before which rows are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor

_wanted = local()


@contextmanager
def local_rows(count: int) -> Iterator[None]:
    """Let convolutions of this thread return the first rows alone: none of the others has an edge that points to it."""
    _wanted.count = count
    try:
        yield
    finally:
        del _wanted.count


def rows_of(nodes: Tensor) -> int:
    """Number of rows that a convolution of nodes returns: as many as there are, or as are wanted."""
    if torch.compiler.is_compiling():
        return nodes.size(0)
    return getattr(_wanted, "count", nodes.size(0))
