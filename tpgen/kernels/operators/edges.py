"""The edges of a convolution, as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Edges:
    """The two indices of a gather, how many rows they point into, and whether to check that they do."""

    src: Tensor
    dst: Tensor
    sources: int
    destinations: int
    check: bool
