"""Owners of very many edges, cut into parts: a block takes a part, and the parts of an owner are added in their order.

A block takes the edges of one owner.  So one node that most others point to, or few nodes of many edges, would leave
the other multiprocessors idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.kernels.cuda.orders import Memory, Order

_BLOCKS = 4  # of each multiprocessor, that are to have as much work as the longest part
_SHORT = 64  # edges: no part is shorter


@dataclass(frozen=True)
class Parts:
    """Where the edges of each part begin, and which part is the first of each owner."""

    first: Tensor
    offsets: Tensor

    @property
    def count(self) -> int:
        return len(self.first) - 1

    def add(self, sums: Tensor) -> Tensor:
        """The sums of the parts as sums of their owners, each in the order of its parts."""
        return torch.segment_reduce(sums, "sum", offsets=self.offsets, axis=0, unsafe=True, initial=0)


def parts_of(first: Tensor, edges: int, processors: int) -> Parts | None:
    """The parts of owners whose edges begin at ``first``; None where no owner has many more than others.

    Waits for the device.

    >>> parts = parts_of(torch.tensor([0, 500, 500, 510]), 510, processors=2)
    >>> parts.first.tolist(), parts.offsets.tolist()
    ([0, 128, 256, 384, 500, 500, 510], [0, 4, 5, 6])
    >>> parts_of(torch.tensor([0, 245, 490]), 490, processors=2)
    """
    most = max(_SHORT, -(-2 * edges // (_BLOCKS * processors)))
    counts = first.diff()
    if not edges or int(counts.max()) <= 2 * most:
        return None
    parts = counts.add(most - 1).div(most, rounding_mode="floor").clamp(min=1)
    offsets = torch.cat([parts.new_zeros(1), parts.cumsum(0)])
    owner = torch.repeat_interleave(parts)
    within = torch.arange(len(owner), device=first.device) - offsets[owner]
    return Parts(torch.cat([first[owner] + within * most, first[-1:]]), offsets)


_known = Memory[tuple[Parts | None]](by_stream=True)


def known_parts(index: Tensor, owners: int, order: Order, processors: int) -> Parts | None:
    """The same for edges in their order, found once for each index as that order is."""
    return _known.of(index, owners, lambda index, _: (parts_of(order.first, len(index), processors),))[0]
