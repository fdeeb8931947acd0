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
    """The edges in another order: those of owners that stay whole, then those of the long ones, which are cut."""

    order: Tensor
    first: Tensor  # where the edges of each owner begin; a long one has none here
    long: Tensor  # which owners are cut
    begins: Tensor  # where the edges of each part begin
    offsets: Tensor  # which part is the first of each long owner

    @property
    def count(self) -> int:
        return len(self.begins) - 1

    def add(self, sums: Tensor) -> Tensor:
        """The sums of the parts as sums of the long owners, each in the order of its parts."""
        return torch.segment_reduce(sums, "sum", offsets=self.offsets, axis=0, unsafe=True, initial=0)


def _longest(edges: int, processors: int) -> int:
    """Edges of a part."""
    return max(_SHORT, -(-2 * edges // (_BLOCKS * processors)))


def most_parts(edges: int, processors: int) -> int:
    """More are never made: one for as many edges as it has, and one that is left of each long owner.

    >>> most_parts(100, 132), most_parts(1_000, 132), most_parts(1_000_000, 132)
    (0, 31, 527)
    """
    longest = _longest(edges, processors)
    return 2 * edges // longest if edges > 2 * longest else 0


def parts_of(order: Order, edges: int, processors: int) -> Parts | None:
    """The parts of long owners; None where no owner has many more edges than others.

    Waits for the device.

    >>> parts = parts_of(Order(torch.tensor([0, 10, 310, 310]), torch.arange(310)), 310, processors=2)
    >>> parts.first.tolist(), parts.long.tolist(), parts.begins.tolist(), parts.offsets.tolist()
    ([0, 10, 10, 10], [1], [10, 88, 166, 244, 310], [0, 4])
    >>> parts_of(Order(torch.tensor([0, 155, 310]), torch.arange(310)), 310, processors=2)
    """
    most = _longest(edges, processors)
    counts = order.first.diff()
    if not edges or int(counts.max()) <= 2 * most:
        return None
    cut = counts > most
    of_long = torch.repeat_interleave(cut, counts)
    first, long = _ends(counts.masked_fill(cut, 0)), cut.nonzero().flatten()
    parts, starts = counts[long].add(most - 1).div(most, rounding_mode="floor"), first[-1] + _ends(counts[long])
    offsets, owner = _ends(parts), torch.repeat_interleave(parts)
    within = torch.arange(len(owner), device=owner.device) - offsets[owner]
    begins = torch.cat([starts[owner] + within * most, starts[-1:]])
    return Parts(torch.cat([order.order[~of_long], order.order[of_long]]), first, long, begins, offsets)


def _ends(counts: Tensor) -> Tensor:
    """Where each of some neighbours begins, and where the last one ends."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


_known = Memory[tuple[Parts | None]](by_stream=True)


def known_parts(index: Tensor, owners: int, order: Order, processors: int) -> Parts | None:
    """The same for edges in their order, found once for each index as that order is."""
    return _known.of(index, owners, lambda index, _: (parts_of(order, len(index), processors),))[0]
