"""The edges of a convolution, as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

_CHECKED, _NARROW_SRC, _NARROW_DST = 1, 2, 4  # as kernels/cpp/edges.h has them


@dataclass(frozen=True)
class Edges:
    """The two indices of a gather, how many rows they point into, and whether to check that they do.

    Indices are int64 or int32, each as it was given.
    """

    src: Tensor
    dst: Tensor
    sources: int
    destinations: int
    check: bool

    @property
    def how(self) -> int:
        """What a C++ kernel must know of a call besides pointers and sizes."""
        narrow = (self.src.dtype == torch.int32) * _NARROW_SRC | (self.dst.dtype == torch.int32) * _NARROW_DST
        return self.check * _CHECKED | narrow

    def wide(self) -> Edges:
        """The same in int64, which is no copy of what is int64 already."""
        return replace(self, src=self.src.long(), dst=self.dst.long())
