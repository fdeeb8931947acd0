"""Atoms of a rank, in a simulation over several: its own stand first, then ghosts, which send but do not receive.

Sums of ghosts are cut off.  Between a convolution and the cut a gradient would be enlarged with zeros, so `local_rows`
says before which rows are wanted.  It also says whose images ghosts are: an edge to one has its reverse in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch
from torch import Tensor

_wanted = local()


@contextmanager
def local_rows(count: int, numbers: Tensor | None = None) -> Iterator[None]:
    """Let convolutions of this thread return the first rows alone: none of the others has an edge that points to it.

    ``numbers`` are those of `owners`, given only where nobody reads gradients by single edges.
    """
    _wanted.count, _wanted.owners = count, numbers
    try:
        yield
    finally:
        del _wanted.count, _wanted.owners


def rows_of(nodes: Tensor) -> int:
    """Number of rows that a convolution of nodes returns: as many as there are, or as are wanted."""
    if torch.compiler.is_compiling():
        return nodes.size(0)
    return getattr(_wanted, "count", nodes.size(0))


def owners() -> Tensor | None:
    """Number of each atom, where a ghost that is an image of one has that one's; None where single edges count."""
    return getattr(_wanted, "owners", None)
