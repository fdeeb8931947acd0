"""The order of edges by the row that they are added to: sorted once for an index, as long as its tensor lives.

A network that gives all its convolutions the same tensors sorts each once, and asks once whether it is in range.  Most
give a row of one ``edge_index``, and take that row anew in every layer: so what is known is known of a part of the
whole tensor, and of its version.  Tensors of inference mode have no version, so nothing is kept of them.

An order is made on the stream of the call that asks, and is known to that stream alone: another would read it before
it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.kernels.cuda.driver import stream_of


class Order(NamedTuple):
    """Order of edges by owner: places at which each owner's begin, and the edges, one owner's as they stood."""

    first: Tensor
    order: Tensor


Known = TypeVar("Known")
_PARTS = 8  # of one tensor, at most: whoever walks over a long one in slices keeps the last of them


@dataclass
class _Parts(Generic[Known]):
    """Facts of the parts of a tensor, by their places in it and the rows that they point into."""

    version: int
    known: dict[tuple, Known] = field(default_factory=dict)


@dataclass
class Memory(Generic[Known]):
    """Facts of index tensors into so many rows, kept as long as they live and nobody writes to them.

    What stands on the device is known to the stream alone that made it.
    """

    by_stream: bool = False
    _kept: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def of(self, index: Tensor, rows: int, find: Callable[[Tensor, int], Known]) -> Known:
        """Find a fact once; one that is known to a stream alone, once for each stream."""
        if index.is_inference():  # writes to such a tensor are not counted
            return find(index, rows)
        parts = self._parts(index)
        if parts is None:
            parts = self._kept[_whole(index)] = _Parts[Known](index._version)
        part = self._part(index, rows)
        found = parts.known.get(part)
        if found is None:
            found = find(index, rows)
            if len(parts.known) >= _PARTS:
                parts.known.pop(next(iter(parts.known)), None)
            parts.known[part] = found
        return found

    def recall(self, index: Tensor, rows: int) -> Known | None:
        """A fact that has been found already."""
        parts = None if index.is_inference() else self._parts(index)
        return None if parts is None else parts.known.get(self._part(index, rows))

    def _parts(self, index: Tensor) -> _Parts[Known] | None:
        parts = self._kept.get(_whole(index))
        return parts if parts is not None and parts.version == index._version else None

    def _part(self, index: Tensor, rows: int) -> tuple:
        stream = _stream(index) if self.by_stream else 0
        return index.storage_offset(), index.stride(), index.shape, rows, stream


def _whole(index: Tensor) -> Tensor:
    """The tensor that an index is a part of: they count writes together."""
    return index if index._base is None else index._base


_orders, _ranges = Memory[Order](by_stream=True), Memory[bool]()
_wide = Memory[Tensor](by_stream=True)


def order_of(index: Tensor, owners: int) -> Order:
    """The edges by their owner.

    >>> first, order = order_of(torch.tensor([2, 0, 2]), 3)
    >>> first.tolist(), order.tolist()
    ([0, 1, 1, 3], [1, 0, 2])
    """
    found, order = torch.sort(index, stable=True)
    first = torch.searchsorted(found, torch.arange(owners + 1, device=index.device, dtype=index.dtype))
    return Order(first, order)


def in_range(index: Tensor, rows: int) -> bool:
    """Whether all of an index is in range; waits for the device."""
    return bool(((index >= 0) & (index < rows)).all())


def known_order(index: Tensor, owners: int, capturing: bool = False) -> Order:
    """Order of an index tensor, sorted anew only where the tensor is another, or was written to.

    While a CUDA graph is captured it is sorted always, and so in every replay: the graph may find other edges in the
    tensor then, and nobody would keep an order of outside alive for it.
    """
    return order_of(index, owners) if capturing else _orders.of(index, owners, order_of)


def known_wide(index: Tensor, capturing: bool = False) -> Tensor:
    """An index in int64, as kernels read it: of int32 a copy, made once for each tensor as its order is.

    >>> index = torch.tensor([2, 0], dtype=torch.int32)
    >>> known_wide(index).dtype, known_wide(index) is known_wide(index)
    (torch.int64, True)
    """
    if index.dtype == torch.int64:  # kept by what is known of it, it would live for ever
        return index
    return index.long() if capturing else _wide.of(index, 0, lambda index, _: index.long())


def recall_order(index: Tensor, owners: int) -> Order | None:
    """The order that is known of an index tensor."""
    return _orders.recall(index, owners)


def recall_wide(index: Tensor) -> Tensor | None:
    """An index in int64, where it is at hand."""
    return index if index.dtype == torch.int64 else _wide.recall(index, 0)


def recall_inside(index: Tensor, rows: int) -> bool:
    """Whether all of an index is known to be in range."""
    return _ranges.recall(index, rows) is True


def _stream(index: Tensor) -> int:
    return stream_of(index.get_device()) if index.is_cuda else 0


def is_inside(index: Tensor, rows: int) -> bool:
    """Whether all of an index is in range; waits for the device, once for each tensor."""
    return _ranges.of(index, rows, in_range)
